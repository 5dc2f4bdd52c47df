-- Keeps the group of a rollout: Welford's update of count, mean and sum of squares. Returns without an end (infinities, and what
-- would overflow when squared) are not counted.
CREATE TRIGGER trg_rollout_stats_insert_v1 AFTER INSERT ON rollout_stats
WHEN NEW.episode_id <> 0
BEGIN
    INSERT INTO group_stats (buffer_id, task_id, n_rollouts, n_returns, m2) VALUES (NEW.buffer_id, NEW.task_id, 0, 0, 0.0)
    ON CONFLICT (buffer_id, task_id) DO NOTHING;
    UPDATE group_stats SET n_rollouts = n_rollouts + 1 WHERE buffer_id = NEW.buffer_id AND task_id = NEW.task_id;
    UPDATE group_stats
    SET n_returns = n_returns + 1, mean = coalesce(mean + (NEW."return" - mean) / (n_returns + 1), NEW."return"),
        m2 = m2 + coalesce((NEW."return" - mean) * (NEW."return" - mean) * n_returns / (n_returns + 1), 0.0),
        min = min(coalesce(min, NEW."return"), NEW."return"), max = max(coalesce(max, NEW."return"), NEW."return"),
        spread = max(coalesce(max, NEW."return"), NEW."return") - min(coalesce(min, NEW."return"), NEW."return")
    WHERE buffer_id = NEW.buffer_id AND task_id = NEW.task_id AND abs(NEW."return") < 1e100;
END
