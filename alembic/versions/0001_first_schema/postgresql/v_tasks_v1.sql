CREATE VIEW v_tasks AS
SELECT buffer, task_id, max(task_name) AS task_name, sum(n_steps) AS steps, count(DISTINCT agent_id) AS agents,
    CASE WHEN min(first_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(min(first_time)) END AS first_at,
    CASE WHEN max(last_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(max(last_time)) END AS last_at,
    sum(total_reward) AS total_reward, sum(total_reward) / sum(n_rewards) AS mean_reward
FROM step_sums
WHERE n_steps > 0
GROUP BY buffer, task_id
