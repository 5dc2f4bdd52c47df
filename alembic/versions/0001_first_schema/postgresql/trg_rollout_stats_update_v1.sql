CREATE TRIGGER trg_rollout_stats_update_v1 AFTER UPDATE ON rollout_stats
REFERENCING OLD TABLE AS old_rollouts NEW TABLE AS new_rollouts FOR EACH STATEMENT EXECUTE FUNCTION sqlbuffer_after_rollouts_v1()
