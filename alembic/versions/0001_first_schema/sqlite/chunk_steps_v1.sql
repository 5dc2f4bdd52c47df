-- The steps of chunks, with the columns of experiences, also those that have left the window. A
-- query on some of them bounds first_seq as well as seq: no index knows seq. For two paths,
-- json_extract returns a list whose text has each value as it is stored. For one path, a text would
-- come without its quotes, and a number with other digits.
CREATE VIEW chunk_steps AS
SELECT c.buffer_id, c.first_seq + n.place AS seq, c.first_seq, n.place,
    coalesce(
        (SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = c.first_seq + n.place),
        c.id || '/' || n.place
    ) AS id,
    c.task_id, c.task_name, c.agent_id, c.pre_agent,
    CASE WHEN c.steps IS NULL THEN c.step + n.place ELSE json_extract(c.steps, n.path) END AS step,
    CASE WHEN c.times IS NOT NULL THEN json_extract(c.times, n.path) WHEN n.place = 0 THEN c.first_time ELSE c.first_time + (c.last_time - c.first_time) * n.place / (c.n_steps - 1) END AS execute_time,
    c.episode_id, c.t + n.place AS t, c.session_id,
    CASE WHEN d.payloads IS NOT NULL THEN nullif(substr(json_extract(d.payloads, '$.none', n.path || '.state'), 7, length(json_extract(d.payloads, '$.none', n.path || '.state')) - 7), 'null') END AS state,
    CASE WHEN d.payloads IS NOT NULL THEN nullif(substr(json_extract(d.payloads, '$.none', n.path || '.actions'), 7, length(json_extract(d.payloads, '$.none', n.path || '.actions')) - 7), 'null') END AS actions,
    CASE WHEN d.payloads IS NULL THEN NULL
        WHEN (SELECT b.has_messages FROM buffers b WHERE b.id = c.buffer_id) AND json_type(d.payloads, n.path || '.message_ids') IS NOT NULL THEN
        (SELECT coalesce(group_concat(
        CASE WHEN m.hash IS NULL AND m.id > r.value THEN m.content
        WHEN m.id > r.value OR m.id > 0 AND r."key" > 0 THEN ',' || m.content
        WHEN m.id > 0 THEN '[' || m.content
        ELSE CASE WHEN r."key" > 0 THEN ',' ELSE '[' END || CASE WHEN r.value > 0 THEN 'null' ELSE substr(json_extract(json_extract(d.payloads, n.path || '.messages'), '$.none', '$[' || json_extract(json_extract(d.payloads, n.path || '.message_ids'), '$[' || (r."key" + 1) || ']') || ']'), 7, length(json_extract(json_extract(d.payloads, n.path || '.messages'), '$.none', '$[' || json_extract(json_extract(d.payloads, n.path || '.message_ids'), '$[' || (r."key" + 1) || ']') || ']')) - 7) END
        END, ''), '[') || ']'
        FROM json_each(json_extract(d.payloads, n.path || '.message_ids')) r LEFT JOIN messages m
        ON m.buffer_id = c.buffer_id AND m.id >= nullif(r.value, 0) AND m.id < r.value + json_extract(json_extract(d.payloads, n.path || '.message_ids'), '$[' || (r."key" + 1) || ']')
        WHERE r."key" % 2 = 0)
        ELSE nullif(substr(json_extract(d.payloads, '$.none', n.path || '.messages'), 7, length(json_extract(d.payloads, '$.none', n.path || '.messages')) - 7), 'null') END AS messages,
    json_extract(d.payloads, n.path || '.extra') AS extra,
    CASE WHEN y.seq IS NOT NULL THEN y.fields
        WHEN (SELECT b.field_defaults FROM buffers b WHERE b.id = c.buffer_id) IS NOT NULL THEN json_patch((SELECT b.field_defaults FROM buffers b WHERE b.id = c.buffer_id), coalesce(CASE WHEN c.fields IS NOT NULL THEN
        (SELECT '{' || group_concat(json_quote(f.key) || ':' || substr(json_extract(f.value, '$.none', n.path), 7, length(json_extract(f.value, '$.none', n.path)) - 7)) || '}' FROM json_each(c.fields) f) END, '{}'))
        WHEN c.fields IS NOT NULL THEN
        (SELECT '{' || group_concat(json_quote(f.key) || ':' || substr(json_extract(f.value, '$.none', n.path), 7, length(json_extract(f.value, '$.none', n.path)) - 7)) || '}' FROM json_each(c.fields) f)
    END AS fields,
    CASE WHEN y.seq IS NULL THEN c.fields END AS field_lists,
    CASE WHEN y.seq IS NULL THEN json_extract(c.reward_t, n.path) ELSE y.reward_t END AS reward_t,
    json_extract(c.adv_t, n.path) AS adv_t,
    json_extract(c.v_t, n.path) AS v_t,
    CASE WHEN y.seq IS NOT NULL THEN y.terminated WHEN c.terminated = '[]' THEN 0 ELSE json_extract(c.terminated, n.path) END AS terminated,
    CASE WHEN y.seq IS NOT NULL THEN y.truncated WHEN c.truncated = '[]' THEN 0 ELSE json_extract(c.truncated, n.path) END AS truncated,
    c.model_version,
    json_extract(c.initial_priority, n.path) AS initial_priority,
    substr(
        d.payload_arrays, json_extract(d.payloads, n.path || '.arrays[0]') + 1, json_extract(d.payloads, n.path || '.arrays[1]')
    ) AS arrays,
    NULL AS payload_bytes, c.inserted_at,
    CASE
        WHEN y.seq IS NOT NULL THEN y.record
        WHEN d.offsets IS NULL THEN substr(d.records, n.place * (length(d.records) / c.n_steps) + 1, length(d.records) / c.n_steps)
        ELSE substr(
            d.records, json_extract(d.offsets, '$[' || (n.place / d.block_steps) || ']') + 1,
            json_extract(d.offsets, '$[' || (n.place / d.block_steps + 1) || ']')
                - json_extract(d.offsets, '$[' || (n.place / d.block_steps) || ']'))
    END AS block,
    CASE WHEN d.offsets IS NULL OR y.seq IS NOT NULL THEN 0 ELSE n.place % d.block_steps END AS block_place, d.layout
FROM chunks c
CROSS JOIN chunk_places n ON n.place < c.n_steps
LEFT JOIN chunk_data d ON d.key = c.key
LEFT JOIN replaced_steps y ON y.buffer_id = c.buffer_id AND y.seq = c.first_seq + n.place
LEFT JOIN deleted_steps x ON x.buffer_id = c.buffer_id AND x.seq = c.first_seq + n.place
WHERE x.seq IS NULL
