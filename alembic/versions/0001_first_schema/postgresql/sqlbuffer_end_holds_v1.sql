-- Deletes holds that have ended, after their steps are evicted. Transactions that take a hold lock
-- the row of the buffer as well.
CREATE FUNCTION sqlbuffer_end_holds_v1(p_buffer_id integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM 1 FROM buffers WHERE id = p_buffer_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM holds WHERE buffer_id = p_buffer_id AND live_until <= clock_timestamp();
    UPDATE buffers SET has_holds = false
    WHERE id = p_buffer_id AND has_holds AND NOT EXISTS (SELECT 1 FROM holds h WHERE h.buffer_id = p_buffer_id);
END
$$
