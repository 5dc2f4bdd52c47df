-- Values of labels are looked up if a buffer has any: a join takes twice the time of the whole
-- query.
CREATE VIEW v_experiences AS
(
WITH w AS MATERIALIZED (SELECT buffer_id, buffer, low_seq, has_labels FROM v_windows)
SELECT w.buffer, e.seq, e.seq AS first_seq, e.id, e.task_id, e.task_name, e.agent_id, e.pre_agent, p.key AS episode_id, e.step,
    CASE WHEN e.execute_time BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(e.execute_time) END AS executed_at,
    e.execute_time, e.inserted_at,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END AS reward,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.adv_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.adv_t) ELSE e.adv_t END AS advantage,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.v_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.v_t) ELSE e.v_t END AS value,
    e.terminated, e.truncated,
    e.model_version, s.key AS session_id, e.state, e.actions,
    CASE WHEN e.message_ids IS NULL THEN e.messages ELSE sqlbuffer_messages_v1(e.buffer_id, e.message_ids, e.messages)::jsonb END AS messages,
    CASE
        WHEN w.has_labels THEN coalesce(
            (SELECT CASE WHEN l.extra -> '$none' IS NULL THEN l.extra - '$reals' END FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq),
            CASE WHEN e.extra -> '$none' IS NULL THEN e.extra - '$reals' END
        )
        WHEN e.extra -> '$none' IS NULL THEN e.extra - '$reals'
    END AS extra,
    e.fields,
    CASE
        WHEN w.has_labels THEN coalesce((SELECT l.extra FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.extra) -> '$reals'
        ELSE e.extra -> '$reals'
    END AS special_numbers,
    CASE WHEN p.attempt > 1 THEN 1 + (SELECT count(*)::integer FROM jsonb_array_elements(p.writers) AS a(writer) WHERE (a.writer ->> 'from_t')::bigint <= e.t)
        ELSE nullif(p.attempt, 0) END AS attempt,
    p.group_id, e.t, p.parent_id
FROM w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
LEFT JOIN episodes p ON p.id = e.episode_id AND p.buffer_id = w.buffer_id
LEFT JOIN sessions s ON s.id = e.session_id
)
UNION ALL
(
WITH w AS MATERIALIZED (
    SELECT v.buffer_id, v.buffer, v.low_seq, v.has_labels, b.has_deleted, b.has_step_ids, b.has_messages, b.field_defaults,
        EXISTS (SELECT 1 FROM replaced_steps y WHERE y.buffer_id = b.id) AS has_replaced
    FROM v_windows v
    JOIN buffers b ON b.id = v.buffer_id
)
SELECT w.buffer, c.first_seq + n.place, c.first_seq,
    coalesce(
        CASE WHEN w.has_step_ids THEN (SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = c.first_seq + n.place) END,
        c.id || '/' || n.place
    ) COLLATE "C",
    c.task_id, c.task_name, c.agent_id, c.pre_agent, p.key,
    CASE WHEN c.steps IS NULL THEN c.step + n.place ELSE c.steps[n.place + 1] END,
    CASE WHEN x.execute_time BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(x.execute_time) END,
    x.execute_time,
    c.inserted_at,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = c.buffer_id AND l.seq = c.first_seq + n.place), o.reward_t) ELSE o.reward_t END,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.adv_t FROM labels l WHERE l.buffer_id = c.buffer_id AND l.seq = c.first_seq + n.place), c.adv_t[n.place + 1]) ELSE c.adv_t[n.place + 1] END,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.v_t FROM labels l WHERE l.buffer_id = c.buffer_id AND l.seq = c.first_seq + n.place), c.v_t[n.place + 1]) ELSE c.v_t[n.place + 1] END,
    o.terminated, o.truncated,
    c.model_version, s.key,
    d.payloads -> n.place -> 'state', d.payloads -> n.place -> 'actions',
    CASE WHEN w.has_messages THEN sqlbuffer_step_messages_v1(w.buffer_id, d.payloads -> n.place) ELSE d.payloads -> n.place -> 'messages' END,
    CASE WHEN y.extra -> '$none' IS NULL THEN y.extra - '$reals' END,
    CASE
        WHEN w.has_labels THEN nullif(
            coalesce(q.fields, '{}') || coalesce((SELECT l.fields FROM labels l WHERE l.buffer_id = c.buffer_id AND l.seq = c.first_seq + n.place), '{}'), '{}')
        ELSE q.fields
    END,
    y.extra -> '$reals',
    CASE WHEN p.attempt > 1 THEN 1 + (SELECT count(*)::integer FROM jsonb_array_elements(p.writers) AS a(writer) WHERE (a.writer ->> 'from_t')::bigint <= c.t + n.place)
        ELSE nullif(p.attempt, 0) END,
    p.group_id, c.t + n.place, p.parent_id
FROM w
JOIN chunks c ON c.buffer_id = w.buffer_id AND c.first_seq > w.low_seq - 256
LEFT JOIN episodes p ON p.id = c.episode_id AND p.buffer_id = w.buffer_id
LEFT JOIN sessions s ON s.id = c.session_id
LEFT JOIN chunk_data d ON d.buffer_id = c.buffer_id AND d.first_seq = c.first_seq
-- The numbers refer to the window, so that chunks are looked up for the window, not the window for
-- chunks.
CROSS JOIN LATERAL ROWS FROM (generate_series(0, c.n_steps - 1 + 0 * w.buffer_id), unnest(c.reward_t)) AS n(place, reward_t)
CROSS JOIN LATERAL (
    SELECT CASE WHEN w.has_replaced THEN (SELECT y FROM replaced_steps y WHERE y.buffer_id = c.buffer_id AND y.seq = c.first_seq + n.place) END
) AS r(y)
CROSS JOIN LATERAL (
    SELECT CASE WHEN (r.y).seq IS NULL THEN n.reward_t ELSE (r.y).reward_t END,
        CASE WHEN (r.y).seq IS NULL THEN CASE WHEN c.terminated = '{}' THEN false ELSE c.terminated[n.place + 1] END ELSE (r.y).terminated END,
        CASE WHEN (r.y).seq IS NULL THEN CASE WHEN c.truncated = '{}' THEN false ELSE c.truncated[n.place + 1] END ELSE (r.y).truncated END
) AS o(reward_t, terminated, truncated)
CROSS JOIN LATERAL (
    SELECT CASE WHEN c.times IS NOT NULL THEN c.times[n.place + 1] WHEN n.place = 0 THEN c.first_time ELSE c.first_time + (c.last_time - c.first_time) * n.place / (c.n_steps - 1) END
) AS x(execute_time)
CROSS JOIN LATERAL (
    SELECT coalesce(
        CASE WHEN w.has_labels THEN (SELECT l.extra FROM labels l WHERE l.buffer_id = c.buffer_id AND l.seq = c.first_seq + n.place) END,
        d.payloads -> n.place -> 'extra'
    )
) AS y(extra)
CROSS JOIN LATERAL (
    SELECT CASE WHEN (r.y).seq IS NOT NULL THEN (r.y).fields
        WHEN c.fields IS NOT NULL THEN coalesce(w.field_defaults, '{}') || (SELECT jsonb_object_agg(f.key, f.value -> n.place) FROM jsonb_each(c.fields) f)
        ELSE w.field_defaults END
) AS q(fields)
WHERE c.first_seq + n.place > w.low_seq AND (
    NOT w.has_deleted OR NOT EXISTS (SELECT 1 FROM deleted_steps g WHERE g.buffer_id = c.buffer_id AND g.seq = c.first_seq + n.place))
)
