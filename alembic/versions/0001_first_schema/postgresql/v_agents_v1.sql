CREATE VIEW v_agents AS
SELECT w.buffer, e.agent_id, count(*) AS steps, count(DISTINCT e.task_id) AS tasks,
    CASE WHEN min(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(min(e.execute_time)) END AS first_at,
    CASE WHEN max(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(max(e.execute_time)) END AS last_at,
    sum(CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END) AS total_reward,
    avg(CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END) AS mean_reward
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
GROUP BY w.buffer, e.agent_id
