CREATE VIEW v_agents AS
SELECT buffer, agent_id, sum(n_steps) AS steps, count(DISTINCT task_id) AS tasks,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(first_time), 'unixepoch') AS first_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', max(last_time), 'unixepoch') AS last_at,
    sum(total_reward) AS total_reward, sum(total_reward) / sum(n_rewards) AS mean_reward
FROM step_sums
WHERE n_steps > 0
GROUP BY buffer, agent_id
