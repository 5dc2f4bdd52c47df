CREATE TRIGGER trg_episodes_delete_v1 AFTER DELETE ON episodes
REFERENCING OLD TABLE AS old_episodes FOR EACH STATEMENT EXECUTE FUNCTION sqlbuffer_forget_rollouts_v1()
