-- Deletes rows far below the window, where the insert trigger does not search; returns how many.
CREATE FUNCTION sqlbuffer_sweep_v1() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    w record;
    n_removed bigint := 0;
BEGIN
    FOR w IN
        SELECT v.buffer_id, CASE WHEN b.has_holds THEN least(v.low_seq, sqlbuffer_held_v1(v.buffer_id)) ELSE v.low_seq END AS low_seq,
            b.has_queue, b.has_labels, b.has_chunks FROM v_windows v JOIN buffers b ON b.id = v.buffer_id
        WHERE v.evict_unit = 'row' AND v.low_seq > 0 ORDER BY v.buffer_id
    LOOP
        IF w.has_chunks THEN
            n_removed := n_removed + sqlbuffer_evict_chunks_v1(w.buffer_id, -1, w.low_seq, 1000);
        ELSIF w.has_queue THEN
            n_removed := n_removed
                + sqlbuffer_remove_v1(w.buffer_id, sqlbuffer_evictable_v1(w.buffer_id, -1, w.low_seq, 10000), true);
        ELSE
            n_removed := n_removed + sqlbuffer_remove_v1(w.buffer_id, ARRAY(
                SELECT e.seq FROM experiences e WHERE e.buffer_id = w.buffer_id AND e.seq <= w.low_seq
                ORDER BY e.seq LIMIT 10000 FOR UPDATE SKIP LOCKED), true);
        END IF;
        IF w.has_labels THEN
            -- Labels of rows that left while they were annotated.
            DELETE FROM labels n WHERE n.buffer_id = w.buffer_id AND n.seq <= w.low_seq
              AND NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq
                  AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
            DELETE FROM label_history n WHERE n.buffer_id = w.buffer_id AND n.seq <= w.low_seq
              AND NOT EXISTS (SELECT 1 FROM step_numbers e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq
                  AND e.first_seq BETWEEN n.seq - 255 AND n.seq);
        END IF;
    END LOOP;
    RETURN n_removed;
END
$$
