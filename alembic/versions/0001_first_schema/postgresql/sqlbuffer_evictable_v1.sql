-- Locks and returns rows between two numbers, in a buffer with leases. Rows are left out if they
-- are leased, or claimed by a transaction that is not committed yet. In the order in which claims
-- lock: the row of the queue first.
CREATE FUNCTION sqlbuffer_evictable_v1(p_buffer_id integer, p_low bigint, p_high bigint, p_limit bigint) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    unheld bigint[];
BEGIN
    unheld := ARRAY(
        SELECT q.seq FROM queue_items q
        WHERE q.buffer_id = p_buffer_id AND q.seq > p_low AND q.seq <= p_high
          AND (q.leased_until IS NULL OR q.leased_until <= clock_timestamp())
        ORDER BY q.seq LIMIT p_limit FOR UPDATE SKIP LOCKED);
    RETURN ARRAY(
        SELECT e.seq FROM experiences e
        WHERE e.buffer_id = p_buffer_id AND e.seq > p_low AND e.seq <= p_high
          AND (e.seq = ANY (unheld) OR NOT EXISTS (
              SELECT 1 FROM queue_items q WHERE q.buffer_id = e.buffer_id AND q.seq = e.seq OFFSET 0))
        ORDER BY e.seq LIMIT p_limit FOR UPDATE SKIP LOCKED);
END
$$
