-- The reward of a rollout is the reward of the episode itself, or else the sum of its steps' rewards.
CREATE FUNCTION sqlbuffer_judge_rollout_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE rollout_stats SET reward = NEW.reward, is_aborted = NEW.status = 'aborted'
    WHERE buffer_id = NEW.buffer_id AND task_id = NEW.task_id AND episode_id = NEW.id;
    RETURN NULL;
END
$$
