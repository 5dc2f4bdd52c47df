-- The reward of a rollout is the reward of the episode itself, or else the sum of its steps' rewards.
CREATE TRIGGER trg_episodes_judged_v1 AFTER UPDATE OF reward, status ON episodes
WHEN NEW.reward IS NOT OLD.reward OR (NEW.status = 'aborted') <> (OLD.status = 'aborted')
BEGIN
    UPDATE rollout_stats SET reward = NEW.reward, is_aborted = NEW.status = 'aborted'
    WHERE buffer_id = NEW.buffer_id AND task_id = NEW.task_id AND episode_id = NEW.id;
END
