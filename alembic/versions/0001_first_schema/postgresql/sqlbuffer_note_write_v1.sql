-- Stores the id of a write in its transaction; returns false if an earlier attempt was committed
-- under that id. Waits for an earlier attempt that has not ended.
CREATE FUNCTION sqlbuffer_note_write_v1(p_buffer_id integer, p_write_id uuid, p_keep_s double precision) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO applied_writes (buffer_id, write_id, kept_until)
    VALUES (p_buffer_id, p_write_id, clock_timestamp() + make_interval(secs => p_keep_s))
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$
