CREATE VIEW v_agents AS
SELECT w.buffer, e.agent_id, count(*) AS steps, count(DISTINCT e.task_id) AS tasks,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(e.execute_time), 'unixepoch') AS first_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', max(e.execute_time), 'unixepoch') AS last_at,
    sum(e.reward_t) AS total_reward, avg(e.reward_t) AS mean_reward
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
GROUP BY w.buffer, e.agent_id
