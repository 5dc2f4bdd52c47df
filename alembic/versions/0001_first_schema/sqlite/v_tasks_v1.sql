-- Without statistics SQLite would bound `seq` by the window, whatever the query filters by. The likelihood leaves that to a
-- bound of the query, and a filter on a task finds its index by the third column, whose condition is always true.
CREATE VIEW v_tasks AS
SELECT w.buffer, e.task_id, max(e.task_name) AS task_name, count(*) AS steps, count(DISTINCT e.agent_id) AS agents,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(e.execute_time), 'unixepoch') AS first_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', max(e.execute_time), 'unixepoch') AS last_at,
    sum(CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END) AS total_reward,
    avg(CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END) AS mean_reward
FROM v_windows w
JOIN experiences e ON e.buffer_id = w.buffer_id AND likelihood(e.seq > w.low_seq, 0.999) AND e.agent_id >= ''
GROUP BY w.buffer, e.task_id
