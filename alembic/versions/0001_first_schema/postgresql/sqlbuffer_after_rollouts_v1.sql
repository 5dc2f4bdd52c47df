-- Updates the groups of episodes, or leaves the changes to the next transaction that does. A task
-- without episodes may make the list of rollouts without steps too long; it is checked as in
-- sqlbuffer_after_episode_v1.
CREATE FUNCTION sqlbuffer_after_rollouts_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b record;
BEGIN
    -- An insert that finds its rows there calls this for no new row, and again for those it updates.
    IF TG_OP = 'INSERT' THEN
        IF NOT EXISTS (SELECT FROM new_rollouts) THEN
            RETURN NULL;
        END IF;
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
        PERFORM sqlbuffer_note_groups_v1(c.buffer_id, array_agg(c.key), array_agg(c.n_rollouts),
            array_agg(NULL::double precision), array_agg(c.now))
        FROM (
            SELECT n.buffer_id, n.group_id AS key, 1 AS n_rollouts, coalesce(n.reward, n."return") AS now
            FROM new_rollouts n WHERE n.episode_id <> 0 AND NOT n.is_aborted
            UNION ALL
            SELECT DISTINCT n.buffer_id, k.key, NULL::integer, NULL::double precision
            FROM new_rollouts n CROSS JOIN LATERAL (VALUES (n.task_id), (n.group_id)) AS k(key)
            WHERE (SELECT u.has_queue FROM buffers u WHERE u.id = n.buffer_id)
        ) c
        GROUP BY c.buffer_id;
    ELSIF TG_OP = 'UPDATE' THEN
        -- Tasks without episodes belong to no group.
        IF NOT EXISTS (SELECT FROM new_rollouts n WHERE n.episode_id <> 0)
            AND NOT EXISTS (SELECT FROM buffers u WHERE u.has_queue AND u.id IN (SELECT n.buffer_id FROM new_rollouts n)) THEN
            RETURN NULL;
        END IF;
        PERFORM sqlbuffer_note_groups_v1(c.buffer_id, array_agg(c.key), array_agg(c.n_rollouts), array_agg(c.was), array_agg(c.now))
        FROM (
            SELECT n.buffer_id, n.group_id AS key, o.is_aborted::integer - n.is_aborted::integer AS n_rollouts,
                CASE WHEN NOT o.is_aborted THEN coalesce(o.reward, o."return") END AS was,
                CASE WHEN NOT n.is_aborted THEN coalesce(n.reward, n."return") END AS now
            FROM new_rollouts n
            JOIN old_rollouts o ON o.buffer_id = n.buffer_id AND o.task_id = n.task_id AND o.episode_id = n.episode_id
            WHERE n.episode_id <> 0
            UNION ALL
            -- Steps without a reward change nothing, unless a claim has seen nothing of the group.
            SELECT DISTINCT n.buffer_id, k.key, NULL::integer, NULL::double precision, NULL::double precision
            FROM new_rollouts n
            JOIN old_rollouts o ON o.buffer_id = n.buffer_id AND o.task_id = n.task_id AND o.episode_id = n.episode_id AND o.part = n.part
            CROSS JOIN LATERAL (VALUES (n.task_id), (n.group_id)) AS k(key)
            WHERE (SELECT u.has_queue FROM buffers u WHERE u.id = n.buffer_id)
              AND (n.episode_id = 0 OR n.length <= o.length OR n.is_aborted OR o.is_aborted
                   OR coalesce(n.reward, n."return") IS DISTINCT FROM coalesce(o.reward, o."return")
                   OR NOT EXISTS (
                       SELECT 1 FROM queue_groups q WHERE q.buffer_id = n.buffer_id AND q.key = k.key AND q.task_bound >= 0 AND q.group_bound >= 0))
        ) c
        WHERE c.n_rollouts IS NULL OR c.n_rollouts <> 0 OR c.was IS DISTINCT FROM c.now GROUP BY c.buffer_id;
    ELSE
        PERFORM sqlbuffer_note_groups_v1(o.buffer_id, array_agg(o.group_id), array_agg(-1), array_agg(coalesce(o.reward, o."return")),
            array_agg(NULL::double precision))
        FROM old_rollouts o WHERE o.episode_id <> 0 AND NOT o.is_aborted GROUP BY o.buffer_id;
        DELETE FROM queue_groups WHERE ctid = ANY (ARRAY(
            SELECT q.ctid
            FROM (SELECT DISTINCT o.buffer_id, k.key FROM old_rollouts o CROSS JOIN LATERAL (VALUES (o.task_id), (o.group_id)) AS k(key)) k
            CROSS JOIN LATERAL (
                SELECT g.ctid, g.buffer_id, g.key FROM queue_groups g
                WHERE g.buffer_id = k.buffer_id AND g.key = k.key
                  AND NOT EXISTS (SELECT 1 FROM queue_items i WHERE i.buffer_id = k.buffer_id AND i.task_id = k.key)
                  AND NOT EXISTS (SELECT 1 FROM queue_items i WHERE i.buffer_id = k.buffer_id AND i.group_id = k.key)
                FOR UPDATE SKIP LOCKED
            ) q
        ));
    END IF;
    RETURN NULL;
END
$$
