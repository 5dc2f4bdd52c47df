-- Runs after a DELETE or TRUNCATE of plain SQL. Counts the rows again for buffers that evict by
-- task or episode. Removes the sums of the blocks of priorities, so that they are computed again.
-- Deletes the rows of deleted steps in the narrow tables.
-- The chunk of a step is looked up in a range of one buffer, in order: only the primary key gives
-- that.
CREATE FUNCTION sqlbuffer_after_delete_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM set_config('sqlbuffer.internal', 'on', true);
    DELETE FROM chunks c USING (
        SELECT k.buffer_id, k.first_seq, count(*) AS n FROM deleted_steps d CROSS JOIN LATERAL (
            SELECT x.buffer_id, x.first_seq FROM chunks x WHERE x.buffer_id >= d.buffer_id AND x.buffer_id <= d.buffer_id AND x.first_seq <= d.seq AND x.first_seq > d.seq - 256
            ORDER BY x.buffer_id DESC, x.first_seq DESC LIMIT 1
        ) AS k GROUP BY 1, 2
    ) AS g
    WHERE c.buffer_id = g.buffer_id AND c.first_seq = g.first_seq AND c.n_steps = g.n;
    PERFORM set_config('sqlbuffer.internal', '', true);
    DELETE FROM tasks t
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = t.buffer_id AND e.task_id = t.task_id);
    UPDATE tasks t SET n_rows = e.n
    FROM (
        SELECT e.buffer_id, e.task_id, count(*) AS n FROM step_numbers e
        JOIN buffers b ON b.id = e.buffer_id AND b.evict_unit = 'task' GROUP BY e.buffer_id, e.task_id
    ) e
    WHERE t.buffer_id = e.buffer_id AND t.task_id = e.task_id AND t.n_rows <> e.n;
    UPDATE buffers b SET live_rows = coalesce((SELECT sum(t.n_rows) FROM tasks t WHERE t.buffer_id = b.id), 0)
    WHERE b.evict_unit = 'task';
    UPDATE episodes p SET n_rows = e.n
    FROM (
        SELECT p.id, count(e.seq) AS n FROM episodes p
        JOIN buffers b ON b.id = p.buffer_id AND b.evict_unit = 'episode'
        LEFT JOIN step_numbers e ON e.buffer_id = p.buffer_id AND e.episode_id = p.id
        WHERE p.n_rows > 0 GROUP BY p.id
    ) e
    WHERE p.id = e.id AND p.n_rows <> e.n;
    UPDATE buffers b SET live_rows = (SELECT count(*) FROM step_numbers e WHERE e.buffer_id = b.id),
        live_episodes = (SELECT count(*) FROM episodes p WHERE p.buffer_id = b.id AND p.n_rows > 0)
    WHERE b.evict_unit = 'episode';
    DELETE FROM priorities p
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = p.buffer_id AND e.seq = p.seq AND e.first_seq BETWEEN p.seq - 255 AND p.seq);
    DELETE FROM priority_blocks;
    DELETE FROM row_blocks;
    DELETE FROM uses u
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = u.buffer_id AND e.seq = u.seq AND e.first_seq BETWEEN u.seq - 255 AND u.seq);
    DELETE FROM queue_items n
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
    DELETE FROM labels n
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
    DELETE FROM label_history n
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
    DELETE FROM quarantine n
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
    DELETE FROM payload_parts n
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
    DELETE FROM payload_changes n
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
    DELETE FROM replaced_steps n
    WHERE NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
    DELETE FROM chunk_data d
    WHERE NOT EXISTS (SELECT 1 FROM chunks c WHERE c.buffer_id = d.buffer_id AND c.first_seq = d.first_seq);
    DELETE FROM step_ids n WHERE NOT EXISTS (
        SELECT 1 FROM chunks c WHERE c.buffer_id = n.buffer_id AND c.first_seq BETWEEN n.seq - 255 AND n.seq AND c.first_seq + c.n_steps > n.seq);
    DELETE FROM deleted_steps n WHERE NOT EXISTS (
        SELECT 1 FROM chunks c WHERE c.buffer_id = n.buffer_id AND c.first_seq BETWEEN n.seq - 255 AND n.seq AND c.first_seq + c.n_steps > n.seq);
    RETURN NULL;
END
$$
