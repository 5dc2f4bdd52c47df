-- Deletes chunks that have left the window as a whole; returns the number of their steps.
CREATE FUNCTION sqlbuffer_evict_chunks_v1(p_buffer_id integer, p_low bigint, p_high bigint, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_bitmapscan = off AS $$
DECLARE
    b buffers%ROWTYPE;
    unheld bigint[] := '{}';
    firsts bigint[];
    n_gone bigint;
BEGIN
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id;
    IF b.has_holds THEN
        p_high := least(p_high, sqlbuffer_held_v1(p_buffer_id));
    END IF;
    IF b.has_queue THEN
        -- A chunk stays if one of its steps is leased, or claimed by a transaction that is not
        -- committed yet: its row of the queue is locked. In the order in which claims lock: the
        -- rows of the queue first.
        unheld := ARRAY(
            SELECT q.seq FROM queue_items q
            WHERE q.buffer_id = p_buffer_id AND q.seq > p_low AND q.seq <= p_high
              AND (q.leased_until IS NULL OR q.leased_until <= clock_timestamp())
            ORDER BY q.seq FOR UPDATE SKIP LOCKED);
    END IF;
    SELECT coalesce(array_agg(v.first_seq), '{}'), sum(v.n_steps) INTO firsts, n_gone FROM (
        SELECT c.first_seq, c.n_steps FROM chunks c
        WHERE c.buffer_id = p_buffer_id AND c.first_seq <= p_high AND c.first_seq > p_low AND c.first_seq + c.n_steps - 1 <= p_high
          AND (NOT b.has_queue OR (
              SELECT count(*) FROM queue_items q
              WHERE q.buffer_id = p_buffer_id AND q.seq >= c.first_seq AND q.seq < c.first_seq + c.n_steps
          ) = (SELECT count(*) FROM unnest(unheld) AS u(seq) WHERE u.seq >= c.first_seq AND u.seq < c.first_seq + c.n_steps))
        ORDER BY c.first_seq LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS v;
    IF firsts = '{}' THEN
        RETURN 0;
    END IF;
    IF b.has_queue OR b.has_labels OR b.has_quarantine OR b.has_changes THEN
        PERFORM sqlbuffer_forget_v1(p_buffer_id, ARRAY(
            SELECT c.first_seq + g FROM chunks c CROSS JOIN LATERAL generate_series(0, c.n_steps - 1) AS g
            WHERE c.buffer_id = p_buffer_id AND c.first_seq = ANY (firsts)), false);
    END IF;
    PERFORM sqlbuffer_drop_chunks_v1(p_buffer_id, firsts);
    RETURN n_gone;
END
$$
