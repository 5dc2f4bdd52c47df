CREATE TRIGGER trg_episodes_insert_v1 AFTER INSERT ON episodes
FOR EACH ROW EXECUTE FUNCTION sqlbuffer_after_episode_v1()
