CREATE FUNCTION sqlbuffer_forget_rollouts_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- One by one, by the key: without statistics the planner would rather read all rollouts.
    DELETE FROM rollout_stats WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM old_episodes o CROSS JOIN LATERAL (
            SELECT k.ctid FROM rollout_stats k
            WHERE k.buffer_id = o.buffer_id AND k.task_id = o.task_id AND k.episode_id = o.id OFFSET 0
        ) r));
    RETURN NULL;
END
$$
