CREATE VIEW v_experiences AS
SELECT w.buffer, e.seq, e.id, e.task_id, e.task_name, e.agent_id, e.pre_agent, p.key AS episode_id, e.step,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.execute_time, 'unixepoch') AS executed_at,
    e.inserted_at, e.reward_t AS reward, e.adv_t AS advantage, e.v_t AS value, e.terminated, e.truncated,
    e.model_version, s.key AS session_id, e.state, e.actions, e.messages,
    CASE WHEN json_extract(e.extra, '$."$none"') IS NULL THEN json_remove(e.extra, '$."$reals"') END AS extra,
    e.fields
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
LEFT JOIN episodes p ON p.id = e.episode_id
LEFT JOIN sessions s ON s.id = e.session_id
