-- Removes messages that only steps used which have left, a limited number at a time; returns how many.
-- A writer that is about to use one has locked it: see sqlbuffer_find_messages_v1.
CREATE FUNCTION sqlbuffer_sweep_messages_v1(p_buffer_id integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    old_ids integer[];
    n_removed bigint;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM buffers b WHERE b.id = p_buffer_id AND b.has_messages)
        OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    old_ids := ARRAY(
        SELECT k.id FROM messages k WHERE k.buffer_id = p_buffer_id AND k.last_seq < sqlbuffer_first_seq_v1(p_buffer_id)
        ORDER BY k.last_seq LIMIT 10000 FOR UPDATE SKIP LOCKED);
    -- A writer may have committed an older step between the snapshot and the lock.
    DELETE FROM messages m WHERE m.buffer_id = p_buffer_id AND m.id = ANY (old_ids) AND m.last_seq < sqlbuffer_first_seq_v1(p_buffer_id);
    GET DIAGNOSTICS n_removed = ROW_COUNT;
    RETURN n_removed;
END
$$
