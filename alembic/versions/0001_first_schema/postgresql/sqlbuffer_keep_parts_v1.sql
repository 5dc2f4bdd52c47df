-- Notes that the buffer has rows with parts; returns the rows that it still holds, whose parts must
-- be written.
CREATE FUNCTION sqlbuffer_keep_parts_v1(p_buffer_id integer, p_seqs bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE buffers SET has_parts = true WHERE id = p_buffer_id AND NOT has_parts;
    -- Clean-up depends on the count of dead rows, which would otherwise be a second late.
    PERFORM pg_stat_force_next_flush();
    RETURN ARRAY(SELECT e.seq FROM experiences e WHERE e.buffer_id = p_buffer_id AND e.seq = ANY (p_seqs));
END
$$
