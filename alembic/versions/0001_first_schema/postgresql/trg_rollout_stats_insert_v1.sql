CREATE TRIGGER trg_rollout_stats_insert_v1 AFTER INSERT ON rollout_stats
REFERENCING NEW TABLE AS new_rollouts FOR EACH STATEMENT EXECUTE FUNCTION sqlbuffer_after_rollouts_v1()
