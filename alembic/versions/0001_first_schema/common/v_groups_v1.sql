-- A rollout is an episode, or the whole task if its rows have no episode. Its reward is that of the
-- episode itself, or else the sum of its steps' rewards. A group with a rollout without a reward has no
-- spread. Means are computed in the same pass, and states of open episodes are looked up: PostgreSQL
-- expects so few groups that it would compare each rollout with all others.
CREATE VIEW v_groups AS
SELECT buffer, task_id, group_id, count(*) - sum(incomplete) AS rollouts, sum(steps) AS steps,
    avg(reward) AS return_mean, min(reward) AS return_min, max(reward) AS return_max,
    CASE WHEN count(reward) = count(*) - sum(incomplete) THEN max(reward) - min(reward) END AS return_spread,
    avg((reward - mean) * (reward - mean)) AS return_variance, sum(incomplete) AS incomplete, sum(late) AS late
FROM (
    SELECT r.buffer, r.task_id, r.steps, r.group_id, r.incomplete, r.reward, r.late,
        avg(r.reward) OVER (PARTITION BY r.buffer, r.task_id, r.group_id) AS mean
    FROM (
        SELECT c.buffer, c.task_id, c.steps, c.group_id, c.incomplete,
            CASE WHEN c.incomplete = 0 THEN coalesce(c.own_reward, c.total) END AS reward,
            CASE WHEN c.is_unused AND c.incomplete = 0 AND EXISTS (
                SELECT 1 FROM rollout_stats g JOIN episodes u ON u.id = g.episode_id
                WHERE g.buffer_id = c.buffer_id AND g.group_id = c.group_id AND u.used_at < c.started_at
            ) THEN 1 ELSE 0 END AS late
        FROM (
            SELECT s.buffer, s.task_id, s.steps, CASE WHEN p.status <> 'open' THEN p."return" ELSE s.total END AS total, b.id AS buffer_id, p.reward AS own_reward, p.started_at,
                b.has_queue AND NOT p.was_used AS is_unused, coalesce(p.group_id, s.task_id) AS group_id,
                CASE WHEN p.status = 'aborted' THEN 1
                    WHEN p.status = 'open' AND (SELECT e.status FROM episode_states e WHERE e.id = p.id) = 'abandoned' THEN 1
                    ELSE 0 END AS incomplete
            FROM (
                SELECT buffer, task_id, episode_id, sum(n_steps) AS steps, sum(total_reward) AS total
                FROM step_sums
                WHERE n_steps > 0
                GROUP BY buffer, task_id, episode_id
            ) s
            LEFT JOIN episodes p ON p.id = s.episode_id
            LEFT JOIN buffers b ON b.id = p.buffer_id
        ) c
    ) r
) rollouts
GROUP BY buffer, task_id, group_id
