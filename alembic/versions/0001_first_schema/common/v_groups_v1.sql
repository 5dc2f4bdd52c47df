-- A rollout is an episode of the task, or the whole task if its rows have no episode.
CREATE VIEW v_groups AS
WITH rollouts AS (
    SELECT buffer, task_id, episode_id, sum(n_steps) AS steps, sum(total_reward) AS return_
    FROM step_sums
    WHERE n_steps > 0
    GROUP BY buffer, task_id, episode_id
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
