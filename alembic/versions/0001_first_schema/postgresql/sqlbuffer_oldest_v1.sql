-- Returns the oldest numbers that a buffer holds.
CREATE FUNCTION sqlbuffer_oldest_v1(p_buffer_id integer, p_n bigint) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM buffers WHERE id = p_buffer_id AND has_chunks) THEN
        -- Chunk by chunk, in the order of the primary key: otherwise all numbers would be sorted
        -- first.
        RETURN QUERY SELECT c.first_seq + g.place FROM (
            SELECT x.first_seq, x.n_steps FROM chunks x WHERE x.buffer_id = p_buffer_id ORDER BY x.first_seq LIMIT p_n
        ) AS c CROSS JOIN LATERAL generate_series(0, c.n_steps - 1) AS g(place)
        WHERE NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = p_buffer_id AND x.seq = c.first_seq + g.place OFFSET 0)
        ORDER BY c.first_seq, g.place LIMIT p_n;
    ELSE
        RETURN QUERY SELECT e.seq FROM experiences e WHERE e.buffer_id = p_buffer_id ORDER BY e.seq LIMIT p_n;
    END IF;
END
$$
