-- Returns those of rows that the buffer still holds, and has them stay until the transaction ends. Whoever evicts passes
-- them over, and whoever deletes them waits, so that nothing is written of rows that are gone.
CREATE FUNCTION sqlbuffer_hold_v1(p_buffer_id integer, p_seqs bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- One by one: without statistics it would rather read all rows of the buffer.
    RETURN ARRAY(
        SELECT e.seq FROM unnest(p_seqs) AS s CROSS JOIN LATERAL (
            SELECT x.seq FROM experiences x WHERE x.buffer_id = p_buffer_id AND x.seq = s FOR KEY SHARE) AS e);
END
$$
