-- Removes all messages that no step uses any more; returns how many. Those that a writer is about to
-- use are locked, and stay.
CREATE FUNCTION sqlbuffer_erase_messages_v1(p_buffer_id integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    unused_ids integer[];
    n_removed bigint;
BEGIN
    -- Otherwise the transaction does not see what others have committed since.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    unused_ids := ARRAY(
        SELECT k.id FROM messages k WHERE k.buffer_id = p_buffer_id EXCEPT SELECT u FROM sqlbuffer_used_messages_v1(p_buffer_id) AS u);
    unused_ids := ARRAY(SELECT k.id FROM messages k WHERE k.buffer_id = p_buffer_id AND k.id = ANY (unused_ids) FOR UPDATE SKIP LOCKED);
    IF unused_ids = '{}' THEN
        RETURN 0;
    END IF;
    -- A writer may have committed a step between the snapshot and the lock.
    unused_ids := ARRAY(SELECT u FROM unnest(unused_ids) AS u EXCEPT SELECT u FROM sqlbuffer_used_messages_v1(p_buffer_id) AS u);
    DELETE FROM messages m WHERE m.buffer_id = p_buffer_id AND m.id = ANY (unused_ids);
    GET DIAGNOSTICS n_removed = ROW_COUNT;
    RETURN n_removed;
END
$$
