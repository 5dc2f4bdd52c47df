-- Returns the rows that the buffer still holds, and keeps them until the transaction ends.
-- Evictions skip them, and deletions wait, so that nothing is written for rows that are gone.
-- The chunk of a step is looked up in a range of one buffer, in order: only the primary key gives
-- that.
CREATE FUNCTION sqlbuffer_hold_v1(p_buffer_id integer, p_seqs bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM buffers WHERE id = p_buffer_id AND has_chunks) THEN
        RETURN ARRAY(
            SELECT s FROM unnest(p_seqs) AS s CROSS JOIN LATERAL (
                SELECT x.first_seq, x.n_steps FROM chunks x WHERE x.buffer_id >= p_buffer_id AND x.buffer_id <= p_buffer_id AND x.first_seq <= s AND x.first_seq > s - 256
                ORDER BY x.buffer_id DESC, x.first_seq DESC LIMIT 1 FOR KEY SHARE) AS c
            WHERE s < c.first_seq + c.n_steps
              AND NOT EXISTS (SELECT 1 FROM deleted_steps d WHERE d.buffer_id = p_buffer_id AND d.seq = s OFFSET 0));
    END IF;
    -- One by one: without statistics the server would rather read all rows of the buffer.
    RETURN ARRAY(
        SELECT e.seq FROM unnest(p_seqs) AS s CROSS JOIN LATERAL (
            SELECT x.seq FROM experiences x WHERE x.buffer_id = p_buffer_id AND x.seq = s FOR KEY SHARE) AS e);
END
$$
