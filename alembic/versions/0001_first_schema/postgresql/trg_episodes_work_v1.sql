CREATE TRIGGER trg_episodes_work_v1 AFTER UPDATE OF status, was_used ON episodes
FOR EACH ROW WHEN (NEW.item_id IS NOT NULL AND (NEW.status <> OLD.status OR NEW.was_used <> OLD.was_used))
EXECUTE FUNCTION sqlbuffer_after_work_v1()
