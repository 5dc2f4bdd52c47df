-- Subtracts the old return from the group, and adds the new one; see trg_rollout_stats_insert_v1.
CREATE TRIGGER trg_rollout_stats_update_v1 AFTER UPDATE OF "return" ON rollout_stats
WHEN NEW.episode_id <> 0 AND OLD."return" IS NOT NEW."return"
BEGIN
    UPDATE group_stats
    SET n_returns = n_returns - 1, mean = CASE WHEN n_returns > 1 THEN mean + (mean - OLD."return") / (n_returns - 1) END,
        m2 = CASE WHEN n_returns > 1
            THEN max(0.0, m2 - (OLD."return" - mean) * (OLD."return" - mean) * n_returns / (n_returns - 1)) ELSE 0.0 END
    WHERE buffer_id = NEW.buffer_id AND task_id = NEW.task_id AND abs(OLD."return") < 1e100;
    UPDATE group_stats
    SET n_returns = n_returns + 1, mean = coalesce(mean + (NEW."return" - mean) / (n_returns + 1), NEW."return"),
        m2 = m2 + coalesce((NEW."return" - mean) * (NEW."return" - mean) * n_returns / (n_returns + 1), 0.0)
    WHERE buffer_id = NEW.buffer_id AND task_id = NEW.task_id AND abs(NEW."return") < 1e100;
    UPDATE group_stats SET min = e.low, max = e.high, spread = e.high - e.low
    FROM (
        SELECT (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = NEW.buffer_id AND r.task_id = NEW.task_id
                AND r."return" > -1e100 AND r."return" < 1e100 AND r.episode_id > 0 ORDER BY r."return" LIMIT 1) AS low,
            (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = NEW.buffer_id AND r.task_id = NEW.task_id
                AND r."return" > -1e100 AND r."return" < 1e100 AND r.episode_id > 0 ORDER BY r."return" DESC LIMIT 1) AS high
    ) e
    WHERE buffer_id = NEW.buffer_id AND task_id = NEW.task_id;
END
