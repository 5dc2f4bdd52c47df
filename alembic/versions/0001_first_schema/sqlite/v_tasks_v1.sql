CREATE VIEW v_tasks AS
SELECT buffer, task_id, max(task_name) AS task_name, sum(n_steps) AS steps, count(DISTINCT agent_id) AS agents,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(first_time), 'unixepoch') AS first_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', max(last_time), 'unixepoch') AS last_at,
    sum(total_reward) AS total_reward, sum(total_reward) / sum(n_rewards) AS mean_reward
FROM step_sums
WHERE n_steps > 0
GROUP BY buffer, task_id
