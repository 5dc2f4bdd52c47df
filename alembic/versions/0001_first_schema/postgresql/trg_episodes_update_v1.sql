CREATE TRIGGER trg_episodes_update_v1 AFTER UPDATE OF status ON episodes
FOR EACH ROW WHEN (OLD.status = 'open' AND NEW.status <> 'open') EXECUTE FUNCTION sqlbuffer_after_episode_v1()
