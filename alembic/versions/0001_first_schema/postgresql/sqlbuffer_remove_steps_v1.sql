-- Deletes steps of chunks by number, with their rows in the narrow tables; returns how many
-- existed. Chunks are not rewritten: a chunk without steps left is deleted as a whole, and deleted
-- steps of others are noted in deleted_steps. Transactions that delete steps inside the window hold
-- the lock on the row of the buffer. p_left: none of the steps is inside.
-- The chunk of a step is looked up in a range of one buffer, in order: only the primary key gives
-- that. A scan of a small table for each step would be read 4,000 times.
CREATE FUNCTION sqlbuffer_remove_steps_v1(p_buffer_id integer, p_seqs bigint[], p_left boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    b buffers%ROWTYPE;
    low bigint;
    seqs bigint[];
    firsts bigint[];
    task_ids text[];
    episode_ids bigint[];
    whole bigint[];
    n_emptied bigint;
BEGIN
    IF p_seqs = '{}' THEN
        RETURN 0;
    END IF;
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id;
    IF b.has_queue THEN
        -- First, and in one order, as in claims.
        PERFORM 1 FROM queue_items WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs) ORDER BY seq FOR UPDATE;
    END IF;
    IF b.evict_unit <> 'row' THEN
        PERFORM 1 FROM buffers WHERE id = p_buffer_id FOR NO KEY UPDATE;
    END IF;
    PERFORM 1 FROM chunks c WHERE c.buffer_id = p_buffer_id AND c.first_seq = ANY (ARRAY(
        SELECT DISTINCT f.first_seq FROM unnest(p_seqs) AS g(seq) CROSS JOIN LATERAL (
            SELECT x.first_seq FROM chunks x WHERE x.buffer_id >= p_buffer_id AND x.buffer_id <= p_buffer_id AND x.first_seq <= g.seq AND x.first_seq > g.seq - 256
            ORDER BY x.buffer_id DESC, x.first_seq DESC LIMIT 1) AS f))
    ORDER BY c.first_seq FOR UPDATE;
    SELECT coalesce(array_agg(g.seq), '{}'), coalesce(array_agg(f.first_seq), '{}'), array_agg(f.task_id), array_agg(f.episode_id)
    INTO seqs, firsts, task_ids, episode_ids
    FROM (SELECT DISTINCT u.seq FROM unnest(p_seqs) AS u(seq)) AS g CROSS JOIN LATERAL (
        SELECT x.first_seq, x.n_steps, x.task_id, x.episode_id FROM chunks x
        WHERE x.buffer_id >= p_buffer_id AND x.buffer_id <= p_buffer_id AND x.first_seq <= g.seq AND x.first_seq > g.seq - 256 ORDER BY x.buffer_id DESC, x.first_seq DESC LIMIT 1
    ) AS f
    WHERE g.seq < f.first_seq + f.n_steps
      AND NOT EXISTS (SELECT 1 FROM deleted_steps d WHERE d.buffer_id = p_buffer_id AND d.seq = g.seq OFFSET 0);
    IF seqs = '{}' THEN
        RETURN 0;
    END IF;
    whole := ARRAY(
        SELECT h.first_seq FROM (SELECT u.first_seq, count(*) AS n FROM unnest(firsts) AS u(first_seq) GROUP BY 1) AS h
        CROSS JOIN LATERAL (SELECT x.n_steps FROM chunks x WHERE x.buffer_id = p_buffer_id AND x.first_seq = h.first_seq LIMIT 1) AS c
        WHERE c.n_steps - h.n = (
            SELECT count(*) FROM deleted_steps d
            WHERE d.buffer_id = p_buffer_id AND d.seq >= h.first_seq AND d.seq < h.first_seq + c.n_steps));
    IF cardinality(whole) < (SELECT count(DISTINCT u) FROM unnest(firsts) AS u) THEN
        UPDATE buffers SET has_deleted = true WHERE id = p_buffer_id AND NOT has_deleted;
        INSERT INTO deleted_steps (buffer_id, seq)
        SELECT p_buffer_id, h.seq FROM unnest(seqs, firsts) AS h(seq, first_seq)
        WHERE h.first_seq <> ALL (whole) ORDER BY h.seq ON CONFLICT DO NOTHING;
    END IF;
    IF b.evict_unit = 'task' THEN
        UPDATE tasks t SET n_rows = t.n_rows - g.n
        FROM (SELECT u.task_id, count(*) AS n FROM unnest(task_ids) AS u(task_id) GROUP BY 1) AS g
        WHERE t.buffer_id = p_buffer_id AND t.task_id = g.task_id;
        DELETE FROM tasks WHERE buffer_id = p_buffer_id AND task_id = ANY (task_ids) AND n_rows <= 0;
        UPDATE buffers SET live_rows = live_rows - cardinality(seqs) WHERE id = p_buffer_id;
    ELSIF b.evict_unit = 'episode' THEN
        WITH shrunk AS (
            UPDATE episodes p SET n_rows = p.n_rows - g.n
            FROM (SELECT u.episode_id, count(*) AS n FROM unnest(episode_ids) AS u(episode_id) GROUP BY 1) AS g
            WHERE p.id = g.episode_id AND p.n_rows > 0 RETURNING p.n_rows
        )
        SELECT count(*) FILTER (WHERE n_rows <= 0) INTO n_emptied FROM shrunk;
        UPDATE buffers SET live_rows = live_rows - cardinality(seqs), live_episodes = live_episodes - n_emptied
        WHERE id = p_buffer_id;
    ELSIF NOT p_left THEN
        SELECT w.low_seq INTO low FROM v_windows w WHERE w.buffer_id = p_buffer_id;
        UPDATE row_blocks k SET n_rows = k.n_rows - g.n
        FROM (SELECT u.seq / 4096 AS block, count(*) AS n FROM unnest(seqs) AS u(seq) WHERE u.seq > low GROUP BY 1) AS g
        WHERE k.buffer_id = p_buffer_id AND k.block = g.block;
    END IF;
    PERFORM sqlbuffer_forget_v1(p_buffer_id, seqs, NOT p_left);
    PERFORM sqlbuffer_drop_chunks_v1(p_buffer_id, whole);
    RETURN cardinality(seqs);
END
$$
