CREATE TRIGGER trg_rollout_stats_delete_v1 AFTER DELETE ON rollout_stats
WHEN OLD.episode_id <> 0 AND NOT OLD.is_aborted
BEGIN
    INSERT INTO new_group_changes (buffer_id, group_id, n_rollouts, was, now)
    VALUES (OLD.buffer_id, OLD.group_id, -1, coalesce(OLD.reward, OLD."return"), NULL);
END
