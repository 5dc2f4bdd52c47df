-- Deletes the rows of deleted rows or steps in the narrow tables. Rows that leave first in, first
-- out are below the window: their priorities and uses are deleted later by sqlbuffer_summarize_v1
-- and by samplers, so that writers do not wait for learners. p_inside: some were inside the window,
-- or there is no such window.
CREATE FUNCTION sqlbuffer_forget_v1(p_buffer_id integer, p_seqs bigint[], p_inside boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    b buffers%ROWTYPE;
BEGIN
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id;
    IF (b.has_priorities OR b.has_uses) AND p_inside THEN
        DELETE FROM priorities WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
        DELETE FROM priority_blocks WHERE buffer_id = p_buffer_id
          AND block = ANY (ARRAY(SELECT DISTINCT g.seq / b.block_size FROM unnest(p_seqs) AS g(seq)));
        -- Locked in the order in which claims lock them.
        PERFORM 1 FROM uses WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs) ORDER BY seq FOR UPDATE;
        DELETE FROM uses WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
    END IF;
    IF b.has_queue THEN
        DELETE FROM queue_items WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
    END IF;
    IF b.has_labels THEN
        -- Locked in the order in which annotations lock them.
        PERFORM 1 FROM (SELECT g.seq FROM unnest(p_seqs) AS g(seq) ORDER BY g.seq) AS s
        CROSS JOIN LATERAL (SELECT FROM labels l WHERE l.buffer_id = p_buffer_id AND l.seq = s.seq FOR UPDATE) AS l;
        DELETE FROM labels WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
        DELETE FROM label_history WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
    END IF;
    IF b.has_quarantine THEN
        DELETE FROM quarantine WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
    END IF;
    IF b.has_parts THEN
        DELETE FROM payload_parts WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
    END IF;
    IF b.has_changes THEN
        DELETE FROM payload_changes WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
        DELETE FROM replaced_steps WHERE buffer_id = p_buffer_id AND seq = ANY (p_seqs);
    END IF;
END
$$
