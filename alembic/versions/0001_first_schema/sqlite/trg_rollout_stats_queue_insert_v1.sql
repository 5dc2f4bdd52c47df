-- The rewards of a group in the queue, and those of its task, are to be compared again.
CREATE TRIGGER trg_rollout_stats_queue_insert_v1 AFTER INSERT ON rollout_stats
WHEN (SELECT has_queue FROM buffers WHERE id = NEW.buffer_id)
BEGIN
    INSERT INTO queue_groups (buffer_id, key)
    SELECT NEW.buffer_id, NEW.task_id UNION SELECT NEW.buffer_id, NEW.group_id WHERE true
    ON CONFLICT (buffer_id, key) DO UPDATE SET task_bound = 1e308, group_bound = 1e308
    WHERE task_bound <> 1e308 OR group_bound <> 1e308;
END
