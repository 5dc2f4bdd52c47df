CREATE TRIGGER trg_episodes_judged_v1 AFTER UPDATE OF reward, status ON episodes
FOR EACH ROW WHEN (OLD.reward IS DISTINCT FROM NEW.reward OR (OLD.status = 'aborted') <> (NEW.status = 'aborted'))
EXECUTE FUNCTION sqlbuffer_judge_rollout_v1()
