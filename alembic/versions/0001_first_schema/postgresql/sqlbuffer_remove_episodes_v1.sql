-- Deletes the chunks of episodes and their rollouts, and logs and counts that; returns the episodes
-- that there were, with the number of their steps. Locks the row of the buffer. Chunk by chunk, if
-- the narrow tables have no rows of its steps: a thousand steps take a tenth of the time.
CREATE FUNCTION sqlbuffer_remove_episodes_v1(
    p_buffer_id integer, p_keys text[], p_tasks text[], p_origin uuid
) RETURNS TABLE (id bigint, task_id text, status text, n_steps bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    b buffers%ROWTYPE;
    firsts bigint[];
    sizes integer[];
    removed bigint[];
    n_removed bigint := 0;
BEGIN
    FOR place IN 1 .. cardinality(p_keys) LOOP
        SELECT e.id, e.task_id, e.status INTO id, task_id, status
        FROM episodes e WHERE e.buffer_id = p_buffer_id AND e.key = p_keys[place] AND e.task_id = p_tasks[place];
        IF NOT FOUND THEN
            CONTINUE;
        END IF;
        UPDATE buffers u SET deletions = u.deletions + 1 WHERE u.id = p_buffer_id RETURNING * INTO b;
        DELETE FROM rollout_stats r
        WHERE r.buffer_id = p_buffer_id AND r.task_id = sqlbuffer_remove_episodes_v1.task_id AND r.episode_id = sqlbuffer_remove_episodes_v1.id;
        SELECT coalesce(array_agg(k.first_seq), '{}'), array_agg(k.n_steps), coalesce(sum(k.n_steps), 0) INTO firsts, sizes, n_steps FROM (
            SELECT c.first_seq, c.n_steps FROM chunks c
            WHERE c.buffer_id = p_buffer_id AND c.episode_id = sqlbuffer_remove_episodes_v1.id
            ORDER BY c.first_seq FOR UPDATE) AS k;
        removed := ARRAY(
            SELECT k.first_seq + g FROM unnest(firsts, sizes) AS k(first_seq, n_steps) CROSS JOIN LATERAL generate_series(0, k.n_steps - 1) AS g);
        n_removed := n_removed + n_steps;
        RETURN NEXT;
        IF firsts = '{}' OR b.evict_unit <> 'row' OR b.has_queue OR b.has_labels OR b.has_quarantine OR b.has_parts OR b.has_changes
            OR b.has_deleted OR b.has_step_ids OR b.has_priorities OR b.has_uses
        THEN
            PERFORM sqlbuffer_remove_v1(p_buffer_id, removed);
            CONTINUE;
        END IF;
        INSERT INTO change_log (buffer_id, kind, seqs) VALUES (p_buffer_id, 'deleted', removed);
        UPDATE row_blocks k SET n_rows = k.n_rows - g.n
        FROM (
            SELECT s.block, sum(least(u.first_seq + u.n_steps, (s.block + 1) * 4096) - greatest(u.first_seq, s.block * 4096)) AS n
            FROM unnest(firsts, sizes) AS u(first_seq, n_steps)
            CROSS JOIN LATERAL generate_series(u.first_seq / 4096, (u.first_seq + u.n_steps - 1) / 4096) AS s(block) GROUP BY 1
        ) AS g
        WHERE k.buffer_id = p_buffer_id AND k.block = g.block;
        PERFORM sqlbuffer_drop_chunks_v1(p_buffer_id, firsts);
    END LOOP;
    IF n_removed > 0 THEN
        PERFORM sqlbuffer_count_evictions_v1(p_buffer_id, 'deleted', p_origin, n_removed);
    END IF;
END
$$
