-- Locks the row of a buffer until the transaction ends: writers have no right to lock it directly.
CREATE FUNCTION sqlbuffer_lock_v1(p_buffer_id integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM 1 FROM buffers WHERE id = p_buffer_id FOR NO KEY UPDATE;
END
$$
