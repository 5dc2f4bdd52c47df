-- UNION ALL is at the outermost level of the subselect, and both parts have columns of the same
-- affinity. Otherwise SQLite would not run a query over each of them, with its indexes. If a query
-- groups, SQLite before 3.42 computes each column of both parts. So the parts have only cheap
-- columns, and the rest is looked up for the steps and columns of a query. Without statistics
-- SQLite would bound `seq` by the window for any filter of the query. The likelihood leaves that to
-- a bound of the query, and a filter on a task finds its index by the third column, whose condition
-- is always true.
CREATE VIEW v_experiences AS
SELECT s.buffer, s.seq, s.first_seq, s.id, s.task_id, s.task_name, s.agent_id, s.pre_agent, s.episode_id, s.step,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.execute_time, 'unixepoch') AS executed_at,
    s.execute_time, s.inserted_at,
    s.reward_t AS reward,
    coalesce(
        s.late_adv,
        CASE WHEN s.place IS NULL THEN s.adv_t ELSE (SELECT json_extract(c.adv_t, '$[' || s.place || ']') FROM chunks c WHERE c."key" = s."key") END
    ) AS advantage,
    coalesce(
        s.late_v,
        CASE WHEN s.place IS NULL THEN s.v_t ELSE (SELECT json_extract(c.v_t, '$[' || s.place || ']') FROM chunks c WHERE c."key" = s."key") END
    ) AS value,
    CASE WHEN s.place IS NULL OR s.is_replaced THEN s.terminated ELSE (SELECT CASE WHEN c.terminated = '[]' THEN 0 ELSE json_extract(c.terminated, '$[' || s.place || ']') END FROM chunks c WHERE c."key" = s."key") END AS terminated,
    CASE WHEN s.place IS NULL OR s.is_replaced THEN s.truncated ELSE (SELECT CASE WHEN c.truncated = '[]' THEN 0 ELSE json_extract(c.truncated, '$[' || s.place || ']') END FROM chunks c WHERE c."key" = s."key") END AS truncated,
    s.model_version, (SELECT n."key" FROM sessions n WHERE n.id = s.session_id) AS session_id,
    CASE WHEN s.place IS NULL THEN (SELECT e.state FROM experiences e WHERE e."key" = s."key") ELSE
        (SELECT c.state FROM chunk_steps c WHERE c.buffer_id = s.buffer_id AND c.first_seq = s.first_seq AND c.place = s.place) END AS state,
    CASE WHEN s.place IS NULL THEN (SELECT e.actions FROM experiences e WHERE e."key" = s."key") ELSE
        (SELECT c.actions FROM chunk_steps c WHERE c.buffer_id = s.buffer_id AND c.first_seq = s.first_seq AND c.place = s.place) END AS actions,
    CASE WHEN s.place IS NULL THEN (SELECT w.messages FROM row_messages w WHERE w."key" = s."key") ELSE
        (SELECT c.messages FROM chunk_steps c WHERE c.buffer_id = s.buffer_id AND c.first_seq = s.first_seq AND c.place = s.place) END AS messages,
    (SELECT CASE WHEN json_extract(x.extra, '$."$none"') IS NULL THEN json_remove(x.extra, '$."$reals"') END FROM (SELECT coalesce(
        CASE WHEN s.has_labels THEN (SELECT l.extra FROM labels l WHERE l."key" = s."key" + coalesce(s.place, 0)) END,
        CASE WHEN s.place IS NULL THEN (SELECT e.extra FROM experiences e WHERE e."key" = s."key") ELSE
            (SELECT c.extra FROM chunk_steps c WHERE c.buffer_id = s.buffer_id AND c.first_seq = s.first_seq AND c.place = s.place) END
    ) AS extra) x) AS extra,
    CASE WHEN s.place IS NULL THEN (SELECT e.fields FROM experiences e WHERE e."key" = s."key")
        WHEN s.has_labels THEN (SELECT CASE WHEN l.fields IS NULL THEN c.fields ELSE json_patch(coalesce(c.fields, '{}'), l.fields) END
            FROM chunk_steps c LEFT JOIN labels l ON l."key" = s."key" + s.place
            WHERE c.buffer_id = s.buffer_id AND c.first_seq = s.first_seq AND c.place = s.place)
        ELSE (SELECT c.fields FROM chunk_steps c WHERE c.buffer_id = s.buffer_id AND c.first_seq = s.first_seq AND c.place = s.place) END AS fields,
    json_extract(coalesce(
        CASE WHEN s.has_labels THEN (SELECT l.extra FROM labels l WHERE l."key" = s."key" + coalesce(s.place, 0)) END,
        CASE WHEN s.place IS NULL THEN (SELECT e.extra FROM experiences e WHERE e."key" = s."key") ELSE
            (SELECT c.extra FROM chunk_steps c WHERE c.buffer_id = s.buffer_id AND c.first_seq = s.first_seq AND c.place = s.place) END
    ), '$."$reals"') AS special_numbers,
    CASE WHEN s.attempt > 1 THEN 1 + (SELECT count(*) FROM json_each(s.writers) a WHERE json_extract(a.value, '$.from_t') <= s.t)
        ELSE nullif(s.attempt, 0) END AS attempt,
    s.group_id, s.t, s.parent_id
FROM (
    WITH w AS MATERIALIZED (
        SELECT v.buffer_id, v.buffer, v.low_seq, v.has_labels, b.has_deleted, b.has_step_ids
        FROM v_windows v
        JOIN buffers b ON b.id = v.buffer_id
    )
    SELECT w.buffer, w.buffer_id, w.has_labels, e."key", CAST(NULL AS INTEGER) AS place, e.seq, e.seq AS first_seq, e.id,
        e.task_id, e.task_name, e.agent_id, e.pre_agent, p."key" AS episode_id, e.step, e.execute_time, e.inserted_at,
        CAST(coalesce(l.reward_t, e.reward_t) AS REAL) AS reward_t, e.adv_t, e.v_t, l.adv_t AS late_adv, l.v_t AS late_v, CAST(e.terminated AS INTEGER) AS terminated, CAST(e.truncated AS INTEGER) AS truncated, e.model_version,
        e.session_id, CAST(0 AS INTEGER) AS is_replaced, CAST(p.attempt AS INTEGER) AS attempt, CAST(p.writers AS TEXT) AS writers, p.group_id, e.t, p.parent_id
    FROM w
    JOIN experiences e ON e.buffer_id = w.buffer_id AND likelihood(e.seq > w.low_seq, 0.999) AND e.agent_id >= ''
    LEFT JOIN episodes p ON p.id = e.episode_id AND p.buffer_id = w.buffer_id
    LEFT JOIN labels l ON w.has_labels AND l."key" = e."key"
    UNION ALL
    SELECT w.buffer, w.buffer_id, w.has_labels, c."key", CAST(n."key" AS INTEGER), CAST(c.first_seq + n."key" AS INTEGER), c.first_seq,
        CAST(coalesce(
            CASE WHEN w.has_step_ids THEN (SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = c.first_seq + n."key") END,
            c.id || '/' || n."key"
        ) AS TEXT),
        c.task_id, c.task_name, c.agent_id, c.pre_agent, p."key",
        CAST(CASE WHEN c.steps IS NULL THEN c.step + n."key" ELSE json_extract(c.steps, n.fullkey) END AS INTEGER),
        CAST(CASE WHEN c.times IS NOT NULL THEN json_extract(c.times, n.fullkey) WHEN n."key" = 0 THEN c.first_time ELSE c.first_time + (c.last_time - c.first_time) * n."key" / (c.n_steps - 1) END AS REAL),
        c.inserted_at, CAST(coalesce(l.reward_t, CASE WHEN y.seq IS NULL THEN n.value ELSE y.reward_t END) AS REAL), CAST(NULL AS REAL), CAST(NULL AS REAL),
        l.adv_t, l.v_t,
        CAST(y.terminated AS INTEGER), CAST(y.truncated AS INTEGER), c.model_version, c.session_id, CAST(y.seq IS NOT NULL AS INTEGER), CAST(p.attempt AS INTEGER), CAST(p.writers AS TEXT), p.group_id,
        CAST(c.t + n."key" AS INTEGER), p.parent_id
    FROM w
    JOIN chunks c ON c.buffer_id = w.buffer_id AND likelihood(c.first_seq > w.low_seq - 256, 0.999) AND c.agent_id >= ''
    LEFT JOIN episodes p ON p.id = c.episode_id AND p.buffer_id = w.buffer_id
    CROSS JOIN json_each(coalesce(c.reward_t, '[' || substr(replace(hex(zeroblob(c.n_steps)), '00', ',null'), 2) || ']')) n
    LEFT JOIN replaced_steps y ON y.buffer_id = c.buffer_id AND y.seq = c.first_seq + n."key"
    LEFT JOIN labels l ON w.has_labels AND l."key" = c."key" + n."key"
    WHERE c.first_seq + n."key" > w.low_seq AND (
        NOT w.has_deleted OR NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = c.buffer_id AND x.seq = c.first_seq + n."key"))
) s
