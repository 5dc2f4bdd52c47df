-- Deletes chunks that have left the window as a whole; returns how many steps they had.
CREATE FUNCTION sqlbuffer_evict_chunks_v1(p_buffer_id integer, p_low bigint, p_high bigint, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_bitmapscan = off AS $$
DECLARE
    b buffers%ROWTYPE;
    firsts bigint[];
    n_gone bigint;
BEGIN
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id;
    IF b.has_queue THEN
        -- One with a step that somebody holds stays. In the order that claims lock in: the rows of the queue first.
        PERFORM 1 FROM queue_items q
        WHERE q.buffer_id = p_buffer_id AND q.seq > p_low AND q.seq <= p_high
        ORDER BY q.seq FOR UPDATE SKIP LOCKED;
    END IF;
    firsts := ARRAY(
        SELECT c.first_seq FROM chunks c
        WHERE c.buffer_id = p_buffer_id AND c.first_seq <= p_high AND c.first_seq > p_low AND c.first_seq + c.n_steps - 1 <= p_high
          AND NOT (b.has_queue AND EXISTS (
              SELECT 1 FROM queue_items q
              WHERE q.buffer_id = p_buffer_id AND q.seq >= c.first_seq AND q.seq < c.first_seq + c.n_steps
                AND q.leased_until > clock_timestamp() OFFSET 0))
        ORDER BY c.first_seq LIMIT p_limit FOR UPDATE SKIP LOCKED);
    IF firsts = '{}' THEN
        RETURN 0;
    END IF;
    IF b.has_queue OR b.has_labels OR b.has_quarantine OR b.has_changes THEN
        PERFORM sqlbuffer_forget_v1(p_buffer_id, ARRAY(
            SELECT c.first_seq + g FROM chunks c CROSS JOIN LATERAL generate_series(0, c.n_steps - 1) AS g
            WHERE c.buffer_id = p_buffer_id AND c.first_seq = ANY (firsts)), false);
    END IF;
    SELECT coalesce(sum(c.n_steps), 0) INTO n_gone FROM chunks c WHERE c.buffer_id = p_buffer_id AND c.first_seq = ANY (firsts);
    PERFORM sqlbuffer_drop_chunks_v1(p_buffer_id, firsts);
    RETURN n_gone;
END
$$
