-- Updates the group of an episode: Welford's update of count, mean and sum of squares. Returns that
-- are infinite, or that would overflow when squared, are not counted.
CREATE TRIGGER trg_rollout_stats_insert_v1 AFTER INSERT ON rollout_stats
WHEN NEW.episode_id <> 0
BEGIN
    INSERT INTO group_stats (buffer_id, task_id, n_rollouts, n_returns, mean, m2, min, max, spread)
    SELECT NEW.buffer_id, NEW.task_id, 1, r.value IS NOT NULL, r.value, 0.0, r.value, r.value, r.value - r.value
    FROM (SELECT CASE WHEN abs(NEW."return") < 1e100 THEN NEW."return" END AS value) r
    WHERE true
    ON CONFLICT (buffer_id, task_id) DO UPDATE
    SET n_rollouts = n_rollouts + 1, n_returns = n_returns + excluded.n_returns,
        mean = coalesce(mean + (excluded.mean - mean) / (n_returns + 1), excluded.mean, mean),
        m2 = m2 + coalesce((excluded.mean - mean) * (excluded.mean - mean) * n_returns / (n_returns + 1), 0.0),
        min = coalesce(min(min, excluded.min), min, excluded.min), max = coalesce(max(max, excluded.max), max, excluded.max),
        spread = coalesce(max(max, excluded.max), max, excluded.max) - coalesce(min(min, excluded.min), min, excluded.min);
END
