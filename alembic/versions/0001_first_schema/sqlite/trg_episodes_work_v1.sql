-- The end of the episode of a work item ends the item. An item whose episode was aborted, or has no
-- step, waits for another attempt.
CREATE TRIGGER trg_episodes_work_v1 AFTER UPDATE OF status, was_used ON episodes
WHEN NEW.item_id IS NOT NULL AND (NEW.status <> OLD.status OR NEW.was_used <> OLD.was_used)
BEGIN
    UPDATE work_items
    SET status = CASE WHEN NEW.status = 'complete' AND NEW.length > 0 THEN 'done' WHEN attempt < coalesce(max_attempts, 9223372036854775807) THEN 'waiting' ELSE 'failed' END,
        reason = CASE WHEN NEW.status = 'aborted' THEN 'its episode was aborted' WHEN coalesce(NEW.length, 0) = 0 THEN 'its episode ended without a step' END,
        leased_until = NULL,
        ended_at = CASE WHEN (NEW.status = 'complete' AND NEW.length > 0) OR attempt >= max_attempts THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now') END
    WHERE id = NEW.item_id AND buffer_id = NEW.buffer_id AND episode_id = NEW.key AND status = 'taken' AND NEW.status <> 'open';
    UPDATE work_items SET is_consumed = NEW.was_used
    WHERE id = NEW.item_id AND buffer_id = NEW.buffer_id AND episode_id = NEW.key AND NEW.was_used <> OLD.was_used;
END
