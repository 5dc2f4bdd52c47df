CREATE TRIGGER trg_rollout_stats_delete_v1 AFTER DELETE ON rollout_stats
REFERENCING OLD TABLE AS old_rollouts FOR EACH STATEMENT EXECUTE FUNCTION sqlbuffer_after_rollouts_v1()
