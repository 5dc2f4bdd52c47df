-- Returns the number of the oldest step that is stored, also below the window; a large one if there is none.
CREATE FUNCTION sqlbuffer_first_seq_v1(p_buffer_id integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN coalesce(least(
        (SELECT e.seq FROM experiences e WHERE e.buffer_id = p_buffer_id ORDER BY e.seq LIMIT 1),
        (SELECT c.first_seq FROM chunks c WHERE c.buffer_id = p_buffer_id ORDER BY c.first_seq LIMIT 1)), 9223372036854775807);
END
$$
