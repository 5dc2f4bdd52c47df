-- The sums over the steps in the window, one for each row and each chunk. The values of a chunk are
-- added up together if all of its steps are still there, and none was replaced.
CREATE VIEW step_sums AS
WITH w AS MATERIALIZED (SELECT buffer_id, buffer, low_seq, has_labels FROM v_windows)
SELECT w.buffer, e.task_id, e.task_name, e.agent_id, e.episode_id, CAST(1 AS integer) AS n_steps, e.execute_time AS first_time,
    e.execute_time AS last_time, CAST(CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l."key" = e."key"), e.reward_t) ELSE e.reward_t END AS REAL) AS total_reward,
    CAST(CASE WHEN CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l."key" = e."key"), e.reward_t) ELSE e.reward_t END IS NULL THEN 0 ELSE 1 END AS integer) AS n_rewards
FROM w
JOIN experiences e ON e.buffer_id = w.buffer_id AND likelihood(e.seq > w.low_seq, 0.999) AND e.agent_id >= ''
UNION ALL
SELECT c.buffer, c.task_id, c.task_name, c.agent_id, c.episode_id,
    CAST(CASE WHEN c.is_whole THEN c.n_steps ELSE (SELECT count(*) FROM chunk_steps s WHERE s.buffer_id = c.buffer_id AND s.first_seq = c.first_seq AND s.seq > c.low_seq) END AS integer),
    CASE WHEN c.is_whole THEN min(c.first_time, c.last_time) ELSE (SELECT min(s.execute_time) FROM chunk_steps s WHERE s.buffer_id = c.buffer_id AND s.first_seq = c.first_seq AND s.seq > c.low_seq) END,
    CASE WHEN c.is_whole THEN max(c.first_time, c.last_time) ELSE (SELECT max(s.execute_time) FROM chunk_steps s WHERE s.buffer_id = c.buffer_id AND s.first_seq = c.first_seq AND s.seq > c.low_seq) END,
    CAST(CASE WHEN c.is_whole AND NOT c.has_labels THEN (SELECT sum(r.value) FROM json_each(c.reward_t) r)
        WHEN c.is_whole THEN (SELECT sum(coalesce(l.reward_t, r.value)) FROM json_each(coalesce(c.reward_t, '[' || substr(replace(hex(zeroblob(c.n_steps)), '00', ',null'), 2) || ']')) r LEFT JOIN labels l ON l."key" = c."key" + r."key") ELSE
        (SELECT sum(CASE WHEN c.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l."key" = c."key" + s.place), s.reward_t) ELSE s.reward_t END) FROM chunk_steps s WHERE s.buffer_id = c.buffer_id AND s.first_seq = c.first_seq AND s.seq > c.low_seq) END AS REAL),
    CAST(CASE WHEN c.is_whole AND NOT c.has_labels THEN (SELECT count(r.value) FROM json_each(c.reward_t) r)
        WHEN c.is_whole THEN (SELECT count(coalesce(l.reward_t, r.value)) FROM json_each(coalesce(c.reward_t, '[' || substr(replace(hex(zeroblob(c.n_steps)), '00', ',null'), 2) || ']')) r LEFT JOIN labels l ON l."key" = c."key" + r."key") ELSE
        (SELECT count(CASE WHEN c.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l."key" = c."key" + s.place), s.reward_t) ELSE s.reward_t END) FROM chunk_steps s WHERE s.buffer_id = c.buffer_id AND s.first_seq = c.first_seq AND s.seq > c.low_seq) END AS integer)
FROM (
    SELECT w.buffer, w.low_seq, w.has_labels, c.*, c.first_seq > w.low_seq AND NOT EXISTS (
        SELECT 1 FROM deleted_steps x
        WHERE x.buffer_id = c.buffer_id AND x.seq BETWEEN c.first_seq AND c.first_seq + c.n_steps - 1
    ) AND NOT EXISTS (
        SELECT 1 FROM replaced_steps y
        WHERE y.buffer_id = c.buffer_id AND y.seq BETWEEN c.first_seq AND c.first_seq + c.n_steps - 1) AS is_whole
    FROM w
    JOIN chunks c ON c.buffer_id = w.buffer_id AND likelihood(c.first_seq > w.low_seq - 256, 0.999) AND c.agent_id >= ''
        AND c.first_seq + c.n_steps - 1 > w.low_seq
) c
