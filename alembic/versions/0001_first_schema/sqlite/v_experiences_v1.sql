-- Without statistics SQLite would bound `seq` by the window, whatever the query filters by. The likelihood leaves that to a
-- bound of the query, and a filter on a task finds its index by the third column, whose condition is always true.
CREATE VIEW v_experiences AS
SELECT w.buffer, e.seq, e.id, e.task_id, e.task_name, e.agent_id, e.pre_agent, p.key AS episode_id, e.step,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.execute_time, 'unixepoch') AS executed_at,
    e.execute_time, e.inserted_at,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END AS reward,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.adv_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.adv_t) ELSE e.adv_t END AS advantage,
    CASE WHEN w.has_labels THEN coalesce((SELECT l.v_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.v_t) ELSE e.v_t END AS value,
    e.terminated, e.truncated,
    e.model_version, s.key AS session_id, e.state, e.actions, e.messages,
    CASE
        WHEN w.has_labels THEN coalesce(
            (SELECT CASE WHEN json_extract(l.extra, '$."$none"') IS NULL THEN json_remove(l.extra, '$."$reals"') END FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq),
            CASE WHEN json_extract(e.extra, '$."$none"') IS NULL THEN json_remove(e.extra, '$."$reals"') END
        )
        WHEN json_extract(e.extra, '$."$none"') IS NULL THEN json_remove(e.extra, '$."$reals"')
    END AS extra,
    e.fields,
    CASE
        WHEN w.has_labels THEN json_extract(coalesce((SELECT l.extra FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.extra), '$."$reals"')
        ELSE json_extract(e.extra, '$."$reals"')
    END AS special_numbers
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND likelihood(e.seq > w.low_seq, 0.999) AND e.agent_id >= ''
LEFT JOIN episodes p ON p.id = e.episode_id
LEFT JOIN sessions s ON s.id = e.session_id
