-- Deletes rows by key, with their rows in the narrow tables, and logs that; returns how many.
-- Transactions that delete rows inside the window hold the lock on the row of the buffer.
-- p_evicted: they leave because the buffer is full. If eviction is by row, none of them is inside
-- the window then, and neither a check nor a log entry is needed. Tasks and episodes leave from the
-- middle: that is logged for followers alone. The plan is generic: if it knew the numbers, without
-- statistics, the planner would read the whole buffer for 100 of them, in 40 ms instead of one.
CREATE FUNCTION sqlbuffer_remove_v1(
    p_buffer_id integer, p_seqs bigint[], p_evicted boolean DEFAULT false, p_origin uuid DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    b buffers%ROWTYPE;
    n_removed bigint;
    gone_tasks text[];
    n_emptied bigint;
    inside bigint[] := '{}';
BEGIN
    IF p_seqs = '{}' THEN
        RETURN 0;
    END IF;
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id;
    IF b.evict_unit = 'row' AND NOT p_evicted THEN
        inside := ARRAY(
            SELECT g.seq FROM unnest(p_seqs) AS g(seq)
            WHERE g.seq > (SELECT w.low_seq FROM v_windows w WHERE w.buffer_id = p_buffer_id));
    ELSIF b.evict_unit <> 'row' AND (NOT p_evicted OR b.has_followers) THEN
        inside := p_seqs;
    END IF;
    IF inside <> '{}' THEN
        BEGIN
            INSERT INTO change_log (buffer_id, kind, seqs, origin) VALUES (p_buffer_id, 'deleted', inside, p_origin);
        EXCEPTION WHEN disk_full THEN
            -- Rows are deleted to free the disk. Followers must not miss it.
            IF b.has_followers THEN
                RAISE;
            END IF;
        END;
    END IF;
    IF b.has_chunks THEN
        RETURN sqlbuffer_remove_steps_v1(p_buffer_id, p_seqs, p_evicted AND b.evict_unit = 'row');
    END IF;
    -- Not in the head of the function: there it needs a superuser.
    PERFORM set_config('sqlbuffer.internal', 'on', true);
    IF b.has_queue THEN
        -- First, and in one order, as in claims.
        PERFORM 1 FROM queue_items WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs) ORDER BY seq FOR UPDATE;
    END IF;
    IF b.evict_unit = 'task' THEN
        PERFORM 1 FROM buffers WHERE id = p_buffer_id FOR NO KEY UPDATE;
        WITH gone AS (
            DELETE FROM experiences WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs) RETURNING task_id
        ), counts AS (
            UPDATE tasks t SET n_rows = t.n_rows - g.n
            FROM (SELECT task_id, count(*) AS n FROM gone GROUP BY task_id) g
            WHERE t.buffer_id = p_buffer_id AND t.task_id = g.task_id
        )
        SELECT count(*), array_agg(DISTINCT task_id) INTO n_removed, gone_tasks FROM gone;
        DELETE FROM tasks WHERE buffer_id = p_buffer_id AND task_id = ANY (gone_tasks) AND n_rows <= 0;
        UPDATE buffers SET live_rows = live_rows - n_removed WHERE id = p_buffer_id;
    ELSIF b.evict_unit = 'episode' THEN
        PERFORM 1 FROM buffers WHERE id = p_buffer_id FOR NO KEY UPDATE;
        WITH gone AS (
            DELETE FROM experiences WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs) RETURNING episode_id
        ), shrunk AS (
            UPDATE episodes p SET n_rows = p.n_rows - g.n
            FROM (SELECT episode_id, count(*) AS n FROM gone GROUP BY episode_id) g
            WHERE p.id = g.episode_id AND p.n_rows > 0 RETURNING p.n_rows
        )
        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM shrunk WHERE n_rows <= 0) INTO n_removed, n_emptied;
        UPDATE buffers SET live_rows = live_rows - n_removed, live_episodes = live_episodes - n_emptied WHERE id = p_buffer_id;
    ELSIF inside = '{}' THEN
        DELETE FROM experiences WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
        GET DIAGNOSTICS n_removed = ROW_COUNT;
    ELSE
        WITH gone AS (
            DELETE FROM experiences WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs) RETURNING seq
        ), counts AS (
            UPDATE row_blocks k SET n_rows = k.n_rows - g.n
            FROM (SELECT seq / 4096 AS block, count(*) AS n FROM gone WHERE seq = ANY (inside) GROUP BY 1) g
            WHERE k.buffer_id = p_buffer_id AND k.block = g.block
        )
        SELECT count(*) INTO n_removed FROM gone;
    END IF;
    PERFORM sqlbuffer_forget_v1(p_buffer_id, p_seqs, b.evict_unit <> 'row' OR inside <> '{}');
    PERFORM set_config('sqlbuffer.internal', '', true);
    RETURN n_removed;
END
$$
