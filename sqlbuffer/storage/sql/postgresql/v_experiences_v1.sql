CREATE VIEW v_experiences AS
SELECT w.buffer, e.seq, e.id, e.task_id, e.task_name, e.agent_id, e.pre_agent, p.key AS episode_id, e.step,
    CASE WHEN e.execute_time BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(e.execute_time) END AS executed_at,
    e.inserted_at, e.reward_t AS reward, e.adv_t AS advantage, e.v_t AS value, e.terminated, e.truncated,
    e.model_version, s.key AS session_id, e.state, e.actions, e.messages,
    CASE WHEN e.extra -> '$none' IS NULL THEN e.extra - '$reals' END AS extra,
    e.fields
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
LEFT JOIN episodes p ON p.id = e.episode_id
LEFT JOIN sessions s ON s.id = e.session_id
