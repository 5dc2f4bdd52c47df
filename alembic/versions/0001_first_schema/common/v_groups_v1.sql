-- A rollout is an episode of the task, or the whole task if its rows have no episode. Its mean is
-- computed in the same pass: PostgreSQL expects so few groups that it would compare each rollout
-- with all means of a second pass.
CREATE VIEW v_groups AS
SELECT buffer, task_id, count(*) AS rollouts, sum(steps) AS steps, avg(return_) AS return_mean,
    min(return_) AS return_min, max(return_) AS return_max, max(return_) - min(return_) AS return_spread,
    avg((return_ - mean_) * (return_ - mean_)) AS return_variance
FROM (
    SELECT buffer, task_id, sum(n_steps) AS steps, sum(total_reward) AS return_,
        avg(sum(total_reward)) OVER (PARTITION BY buffer, task_id) AS mean_
    FROM step_sums
    WHERE n_steps > 0
    GROUP BY buffer, task_id, episode_id
) rollouts
GROUP BY buffer, task_id
