-- A rollout is an episode of the task, or the whole task where its rows name none.
CREATE VIEW v_groups AS
WITH rollouts AS (
    SELECT w.buffer, e.task_id, e.episode_id, count(*) AS steps,
        sum(CASE WHEN w.has_labels THEN coalesce((SELECT l.reward_t FROM labels l WHERE l.buffer_id = e.buffer_id AND l.seq = e.seq), e.reward_t) ELSE e.reward_t END) AS return_
    FROM v_windows w
    JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
    GROUP BY w.buffer, e.task_id, e.episode_id
), means AS (
    SELECT buffer, task_id, avg(return_) AS mean_ FROM rollouts GROUP BY buffer, task_id
)
SELECT r.buffer, r.task_id, count(*) AS rollouts, sum(r.steps) AS steps,
    m.mean_ AS return_mean, min(r.return_) AS return_min, max(r.return_) AS return_max,
    max(r.return_) - min(r.return_) AS return_spread,
    avg((r.return_ - m.mean_) * (r.return_ - m.mean_)) AS return_variance
FROM rollouts r
JOIN means m ON m.buffer = r.buffer AND m.task_id = r.task_id
GROUP BY r.buffer, r.task_id, m.mean_
