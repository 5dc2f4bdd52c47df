-- Subtracts a rollout from its group; see trg_rollout_stats_insert_v1.
CREATE TRIGGER trg_rollout_stats_delete_v1 AFTER DELETE ON rollout_stats
WHEN OLD.episode_id <> 0
BEGIN
    DELETE FROM group_stats WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id AND n_rollouts <= 1;
    UPDATE group_stats SET n_rollouts = n_rollouts - 1 WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id;
    UPDATE group_stats
    SET n_returns = n_returns - 1, mean = CASE WHEN n_returns > 1 THEN mean + (mean - OLD."return") / (n_returns - 1) END,
        m2 = CASE WHEN n_returns > 1
            THEN max(0.0, m2 - (OLD."return" - mean) * (OLD."return" - mean) * n_returns / (n_returns - 1)) ELSE 0.0 END,
        min = (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = OLD.buffer_id AND r.task_id = OLD.task_id
            AND r."return" > -1e100 AND r."return" < 1e100 AND r.episode_id > 0 ORDER BY r."return" LIMIT 1),
        max = (SELECT r."return" FROM rollout_stats r WHERE r.buffer_id = OLD.buffer_id AND r.task_id = OLD.task_id
            AND r."return" > -1e100 AND r."return" < 1e100 AND r.episode_id > 0 ORDER BY r."return" DESC LIMIT 1)
    WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id AND abs(OLD."return") < 1e100;
    UPDATE group_stats SET spread = max - min WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id;
END
