-- Returns the number above which no step of a buffer may be evicted now; null if any may be.
CREATE FUNCTION sqlbuffer_held_v1(p_buffer_id integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (SELECT min(h.low_seq) FROM holds h WHERE h.buffer_id = p_buffer_id AND h.live_until > clock_timestamp());
END
$$
