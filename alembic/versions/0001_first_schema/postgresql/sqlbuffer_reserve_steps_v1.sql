-- Reserves consecutive numbers for the steps of chunks. Stores the largest given priority, returns
-- the priority of steps without a given one, and stores the id of the write if one is given.
CREATE FUNCTION sqlbuffer_reserve_steps_v1(
    p_buffer_id integer, p_n bigint, p_largest double precision DEFAULT NULL,
    p_write_id uuid DEFAULT NULL, p_keep_s double precision DEFAULT NULL,
    OUT first_seq bigint, OUT priority double precision
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    first_seq := sqlbuffer_reserve_v1(p_buffer_id, p_n);
    IF p_write_id IS NOT NULL THEN
        INSERT INTO applied_writes (buffer_id, write_id, kept_until, first_seq)
        VALUES (p_buffer_id, p_write_id, clock_timestamp() + make_interval(secs => p_keep_s), sqlbuffer_reserve_steps_v1.first_seq);
    END IF;
    IF p_largest IS NOT NULL THEN
        UPDATE buffers b SET max_priority = p_largest
        WHERE b.id = p_buffer_id AND (b.max_priority < p_largest OR b.max_priority IS NULL);
    END IF;
    SELECT CASE WHEN b.has_priorities THEN coalesce(b.max_priority, 1.0) END INTO priority FROM buffers b WHERE b.id = p_buffer_id;
END
$$
