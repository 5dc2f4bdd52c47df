CREATE TRIGGER trg_episodes_delete_v1 AFTER DELETE ON episodes
BEGIN
    DELETE FROM rollout_stats WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id AND episode_id = OLD.id;
END
