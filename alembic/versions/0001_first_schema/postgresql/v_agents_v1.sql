CREATE VIEW v_agents AS
SELECT buffer, agent_id, sum(n_steps) AS steps, count(DISTINCT task_id) AS tasks,
    CASE WHEN min(first_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(min(first_time)) END AS first_at,
    CASE WHEN max(last_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(max(last_time)) END AS last_at,
    sum(total_reward) AS total_reward, sum(total_reward) / sum(n_rewards) AS mean_reward
FROM step_sums
WHERE n_steps > 0
GROUP BY buffer, agent_id
