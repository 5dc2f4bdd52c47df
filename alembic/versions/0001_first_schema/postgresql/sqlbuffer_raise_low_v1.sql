-- Raises the lower end of a window that moves by row, by max_age and max_bytes; returns it. Writers
-- cannot raise it otherwise. One process at a time: the caller holds a lock.
CREATE FUNCTION sqlbuffer_raise_low_v1(p_buffer_id integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bound bigint;
BEGIN
    SELECT greatest(r.age_seq, r.bytes_seq) INTO bound FROM retention_bounds r WHERE r.buffer_id = p_buffer_id;
    -- A mark may have a number that no step has.
    bound := least(bound, (SELECT w.high_seq FROM v_windows w WHERE w.buffer_id = p_buffer_id));
    UPDATE buffers SET low_seq = bound
    WHERE id = p_buffer_id AND evict_unit = 'row' AND NOT is_copying AND low_seq < bound;
    RETURN bound;
END
$$
