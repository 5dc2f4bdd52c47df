CREATE TRIGGER trg_rollout_stats_queue_delete_v1 AFTER DELETE ON rollout_stats
BEGIN
    DELETE FROM queue_groups
    WHERE buffer_id = OLD.buffer_id AND key IN (OLD.task_id, OLD.group_id)
      AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = OLD.buffer_id AND q.task_id = queue_groups.key)
      AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = OLD.buffer_id AND q.group_id = queue_groups.key);
END
