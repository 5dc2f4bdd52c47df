-- The steps of chunks, with the columns of experiences, also those that have left the window. A
-- query on some of them bounds first_seq as well as seq: no index knows seq.
CREATE VIEW chunk_steps AS
SELECT c.buffer_id, c.first_seq + n.place AS seq, c.first_seq, n.place,
    coalesce(
        (SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = c.first_seq + n.place),
        c.id || '/' || n.place
    ) COLLATE "C" AS id,
    c.task_id, c.task_name, c.agent_id, c.pre_agent,
    CASE WHEN c.steps IS NULL THEN c.step + n.place ELSE c.steps[n.place + 1] END AS step,
    CASE WHEN c.times IS NOT NULL THEN c.times[n.place + 1] WHEN n.place = 0 THEN c.first_time ELSE c.first_time + (c.last_time - c.first_time) * n.place / (c.n_steps - 1) END AS execute_time,
    c.episode_id, c.t + n.place AS t, c.session_id,
    d.payloads -> n.place -> 'state' AS state,
    d.payloads -> n.place -> 'actions' AS actions,
    CASE WHEN (SELECT b.has_messages FROM buffers b WHERE b.id = c.buffer_id) THEN sqlbuffer_step_messages_v1(c.buffer_id, d.payloads -> n.place)
        ELSE d.payloads -> n.place -> 'messages' END AS messages,
    d.payloads -> n.place -> 'extra' AS extra,
    CASE WHEN y.seq IS NOT NULL THEN y.fields
        WHEN c.fields IS NOT NULL THEN coalesce((SELECT b.field_defaults FROM buffers b WHERE b.id = c.buffer_id), '{}') || (SELECT jsonb_object_agg(f.key, f.value -> n.place) FROM jsonb_each(c.fields) f)
        ELSE (SELECT b.field_defaults FROM buffers b WHERE b.id = c.buffer_id) END AS fields,
    CASE WHEN y.seq IS NULL THEN c.fields END AS field_lists,
    CASE WHEN y.seq IS NULL THEN n.reward_t ELSE y.reward_t END AS reward_t,
    n.adv_t, n.v_t,
    CASE WHEN y.seq IS NOT NULL THEN y.terminated WHEN c.terminated = '{}' THEN false ELSE n.terminated END AS terminated,
    CASE WHEN y.seq IS NOT NULL THEN y.truncated WHEN c.truncated = '{}' THEN false ELSE n.truncated END AS truncated,
    c.model_version, n.initial_priority,
    substr(
        d.payload_arrays, (d.payloads -> n.place -> 'arrays' ->> 0)::integer + 1, (d.payloads -> n.place -> 'arrays' ->> 1)::integer
    ) AS arrays,
    NULL::bigint AS payload_bytes, c.inserted_at,
    CASE
        WHEN y.seq IS NOT NULL THEN y.record
        WHEN d.offsets IS NULL THEN substr(d.records, n.place * (octet_length(d.records) / c.n_steps) + 1, octet_length(d.records) / c.n_steps)
        ELSE substr(
            d.records, d.offsets[n.place / d.block_steps + 1]::integer + 1,
            (d.offsets[n.place / d.block_steps + 2] - d.offsets[n.place / d.block_steps + 1])::integer)
    END AS block,
    CASE WHEN d.offsets IS NULL OR y.seq IS NOT NULL THEN 0 ELSE n.place % d.block_steps END AS block_place, d.layout
FROM chunks c
-- Chunk by chunk: otherwise the server reads all deleted steps of the buffer.
CROSS JOIN LATERAL (
    SELECT array_agg(g.seq) AS seqs FROM deleted_steps g
    WHERE g.buffer_id = c.buffer_id AND g.seq >= c.first_seq AND g.seq < c.first_seq + c.n_steps
) x
CROSS JOIN LATERAL ROWS FROM (
    generate_series(0, c.n_steps - 1), unnest(c.reward_t), unnest(c.adv_t), unnest(c.v_t), unnest(c.terminated),
    unnest(c.truncated), unnest(c.initial_priority)
) AS n(place, reward_t, adv_t, v_t, terminated, truncated, initial_priority)
LEFT JOIN chunk_data d ON d.buffer_id = c.buffer_id AND d.first_seq = c.first_seq
LEFT JOIN replaced_steps y ON y.buffer_id = c.buffer_id AND y.seq = c.first_seq + n.place
WHERE x.seqs IS NULL OR c.first_seq + n.place <> ALL (x.seqs)
