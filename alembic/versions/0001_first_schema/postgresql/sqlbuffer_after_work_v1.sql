-- The end of the episode of a work item ends the item. An item whose episode was aborted, or has no
-- step, waits for another attempt.
CREATE FUNCTION sqlbuffer_after_work_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF NEW.status <> OLD.status AND NEW.status <> 'open' THEN
        UPDATE work_items w
        SET status = CASE WHEN NEW.status = 'complete' AND NEW.length > 0 THEN 'done' WHEN w.attempt < w.max_attempts OR w.max_attempts IS NULL THEN 'waiting' ELSE 'failed' END,
            reason = CASE WHEN NEW.status = 'aborted' THEN 'its episode was aborted' WHEN coalesce(NEW.length, 0) = 0 THEN 'its episode ended without a step' END,
            leased_until = NULL,
            ended_at = CASE WHEN (NEW.status = 'complete' AND NEW.length > 0) OR w.attempt >= w.max_attempts THEN now() END
        WHERE w.id = NEW.item_id AND w.buffer_id = NEW.buffer_id AND w.episode_id = NEW.key AND w.status = 'taken';
    END IF;
    IF NEW.was_used <> OLD.was_used THEN
        UPDATE work_items w SET is_consumed = NEW.was_used
        WHERE w.id = NEW.item_id AND w.buffer_id = NEW.buffer_id AND w.episode_id = NEW.key;
    END IF;
    RETURN NULL;
END
$$
