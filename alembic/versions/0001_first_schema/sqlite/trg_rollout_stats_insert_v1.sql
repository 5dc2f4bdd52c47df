CREATE TRIGGER trg_rollout_stats_insert_v1 AFTER INSERT ON rollout_stats
WHEN NEW.episode_id <> 0 AND NOT NEW.is_aborted
BEGIN
    INSERT INTO new_group_changes (buffer_id, group_id, n_rollouts, was, now)
    VALUES (NEW.buffer_id, NEW.group_id, 1, NULL, coalesce(NEW.reward, NEW."return"));
END
