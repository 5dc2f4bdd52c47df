CREATE TRIGGER trg_rollout_stats_update_v1 AFTER UPDATE OF "return", reward, is_aborted ON rollout_stats
WHEN NEW.episode_id <> 0
    AND (NEW.is_aborted <> OLD.is_aborted OR (NOT NEW.is_aborted AND coalesce(OLD.reward, OLD."return") IS NOT coalesce(NEW.reward, NEW."return")))
BEGIN
    INSERT INTO new_group_changes (buffer_id, group_id, n_rollouts, was, now)
    VALUES (NEW.buffer_id, NEW.group_id, OLD.is_aborted - NEW.is_aborted, CASE WHEN NOT OLD.is_aborted THEN coalesce(OLD.reward, OLD."return") END,
        CASE WHEN NOT NEW.is_aborted THEN coalesce(NEW.reward, NEW."return") END);
END
