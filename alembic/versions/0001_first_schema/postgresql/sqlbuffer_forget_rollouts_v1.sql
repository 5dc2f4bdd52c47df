CREATE FUNCTION sqlbuffer_forget_rollouts_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM rollout_stats r USING old_episodes o
    WHERE r.buffer_id = o.buffer_id AND r.task_id = o.task_id AND r.episode_id = o.id;
    RETURN NULL;
END
$$
