-- Updates the groups of episodes, or leaves the changes to the next transaction that does. A task
-- without episodes may make the list of rollouts without steps too long; it is checked as in
-- sqlbuffer_after_episode_v1.
CREATE FUNCTION sqlbuffer_after_rollouts_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b record;
BEGIN
    IF TG_OP = 'INSERT' THEN
        FOR b IN
            SELECT k.id, k.keep_episodes FROM buffers k
            WHERE k.id IN (SELECT n.buffer_id FROM new_rollouts n WHERE n.episode_id = 0) AND random() * k.keep_episodes < 100
        LOOP
            DELETE FROM rollout_stats r
            WHERE r.buffer_id = b.id AND r.episode_id = 0
              AND r.first_seq <= (
                  SELECT first_seq FROM rollout_stats WHERE buffer_id = b.id ORDER BY first_seq DESC OFFSET b.keep_episodes LIMIT 1)
              AND r.last_seq <= (SELECT w.low_seq FROM v_windows w WHERE w.buffer_id = b.id);
        END LOOP;
        PERFORM sqlbuffer_note_groups_v1(n.buffer_id, array_agg(n.group_id), array_agg(1),
            array_agg(NULL::double precision), array_agg(coalesce(n.reward, n."return")))
        FROM new_rollouts n WHERE n.episode_id <> 0 AND NOT n.is_aborted GROUP BY n.buffer_id;
    ELSIF TG_OP = 'UPDATE' THEN
        PERFORM sqlbuffer_note_groups_v1(c.buffer_id, array_agg(c.group_id), array_agg(c.n_rollouts), array_agg(c.was), array_agg(c.now))
        FROM (
            SELECT n.buffer_id, n.group_id, o.is_aborted::integer - n.is_aborted::integer AS n_rollouts,
                CASE WHEN NOT o.is_aborted THEN coalesce(o.reward, o."return") END AS was,
                CASE WHEN NOT n.is_aborted THEN coalesce(n.reward, n."return") END AS now
            FROM new_rollouts n
            JOIN old_rollouts o ON o.buffer_id = n.buffer_id AND o.task_id = n.task_id AND o.episode_id = n.episode_id
            WHERE n.episode_id <> 0
        ) c
        WHERE c.n_rollouts <> 0 OR c.was IS DISTINCT FROM c.now GROUP BY c.buffer_id;
    ELSE
        PERFORM sqlbuffer_note_groups_v1(o.buffer_id, array_agg(o.group_id), array_agg(-1), array_agg(coalesce(o.reward, o."return")),
            array_agg(NULL::double precision))
        FROM old_rollouts o WHERE o.episode_id <> 0 AND NOT o.is_aborted GROUP BY o.buffer_id;
    END IF;
    RETURN NULL;
END
$$
