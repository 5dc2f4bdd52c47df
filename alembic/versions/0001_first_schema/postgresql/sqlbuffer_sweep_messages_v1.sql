-- Removes messages that no stored step uses any more, a limited number at a time; returns how many.
CREATE FUNCTION sqlbuffer_sweep_messages_v1(p_buffer_id integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    n_removed bigint;
    bound bigint := (
        SELECT least(w.low_seq, (SELECT e.seq - 1 FROM experiences e WHERE e.buffer_id = p_buffer_id ORDER BY e.seq LIMIT 1),
            (SELECT c.first_seq - 1 FROM chunks c WHERE c.buffer_id = p_buffer_id ORDER BY c.first_seq LIMIT 1))
        FROM v_windows w JOIN buffers b ON b.id = w.buffer_id WHERE w.buffer_id = p_buffer_id AND b.has_messages);
BEGIN
    DELETE FROM messages m WHERE m.buffer_id = p_buffer_id AND m.id = ANY (ARRAY(
        SELECT k.id FROM messages k WHERE k.buffer_id = p_buffer_id AND k.last_seq <= bound
        ORDER BY k.last_seq LIMIT 10000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n_removed = ROW_COUNT;
    RETURN n_removed;
END
$$
