-- Deletes rows far below the window, which the insert trigger does not look for; returns how many.
CREATE FUNCTION sqlbuffer_sweep_v1() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    w record;
    n_removed bigint := 0;
BEGIN
    FOR w IN SELECT buffer_id, low_seq, has_labels FROM v_windows WHERE evict_unit = 'row' AND low_seq > 0 ORDER BY buffer_id LOOP
        n_removed := n_removed + sqlbuffer_remove_v1(w.buffer_id, ARRAY(
            SELECT e.seq FROM experiences e WHERE e.buffer_id = w.buffer_id AND e.seq <= w.low_seq
            ORDER BY e.seq LIMIT 10000 FOR UPDATE SKIP LOCKED));
        IF w.has_labels THEN
            -- Of rows that left while they were annotated.
            DELETE FROM labels WHERE buffer_id = w.buffer_id AND seq <= w.low_seq;
            DELETE FROM label_history WHERE buffer_id = w.buffer_id AND seq <= w.low_seq;
        END IF;
    END LOOP;
    RETURN n_removed;
END
$$
