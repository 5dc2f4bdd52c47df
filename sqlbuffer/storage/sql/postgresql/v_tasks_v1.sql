CREATE VIEW v_tasks AS
SELECT w.buffer, e.task_id, max(e.task_name) AS task_name, count(*) AS steps, count(DISTINCT e.agent_id) AS agents,
    CASE WHEN min(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(min(e.execute_time)) END AS first_at,
    CASE WHEN max(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(max(e.execute_time)) END AS last_at,
    sum(e.reward_t) AS total_reward, avg(e.reward_t) AS mean_reward
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
GROUP BY w.buffer, e.task_id
