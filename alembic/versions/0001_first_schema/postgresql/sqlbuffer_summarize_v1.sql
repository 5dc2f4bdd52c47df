-- Adds up the given blocks of priorities that can get no more rows and are in the window; deletes
-- rows that have left it. Returns how many blocks were added up.
CREATE FUNCTION sqlbuffer_summarize_v1(p_buffer_id integer, p_blocks bigint[], p_settled bigint, p_n_cleaned bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    low bigint;
    cleaned bigint;
    n_summarized bigint;
BEGIN
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id AND has_priorities FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- A separate statement: it sees the changes of earlier holders of the lock.
    SELECT w.low_seq INTO low FROM v_windows w WHERE w.buffer_id = p_buffer_id;
    -- Up to the end of a block, and between two bounds: from the oldest row on it would read many
    -- dead index entries.
    cleaned := least(low + 1, b.clean_seq + p_n_cleaned, CASE WHEN b.has_holds THEN sqlbuffer_held_v1(p_buffer_id) + 1 END) / b.block_size * b.block_size - 1;
    IF cleaned > b.clean_seq THEN
        DELETE FROM priorities WHERE buffer_id = p_buffer_id AND seq >= b.clean_seq AND seq <= cleaned;
        DELETE FROM priority_blocks
        WHERE buffer_id = p_buffer_id AND block >= b.clean_seq / b.block_size AND block <= cleaned / b.block_size;
        UPDATE buffers SET clean_seq = cleaned WHERE id = p_buffer_id;
    END IF;
    INSERT INTO priority_blocks (buffer_id, block, n_rows, weight_sum, max_priority, min_priority)
    SELECT p_buffer_id, k.block, s.n_rows, s.weight_sum, s.max_priority, s.min_priority
    FROM unnest(p_blocks) AS k(block)
    CROSS JOIN LATERAL (
        SELECT count(*) AS n_rows, coalesce(sum(power(nullif(r.p, 0), b.alpha)), 0) AS weight_sum,
            coalesce(max(r.p), 0) AS max_priority, min(nullif(r.p, 0)) AS min_priority
        FROM (
            -- Two ranges joined by union: a join could be planned without statistics as a scan of
            -- all rows.
            SELECT coalesce(max(u.priority), max(u.initial_priority)) AS p
            FROM (
                SELECT e.seq, coalesce(e.initial_priority, 1.0) AS initial_priority, NULL::double precision AS priority
                FROM experiences e
                WHERE e.buffer_id = p_buffer_id AND e.seq >= k.block * b.block_size AND e.seq < (k.block + 1) * b.block_size
                UNION ALL
                SELECT e.seq, coalesce(e.initial_priority, 1.0), NULL FROM chunk_steps e
                WHERE b.has_chunks AND e.buffer_id = p_buffer_id
                  AND e.seq >= k.block * b.block_size AND e.seq < (k.block + 1) * b.block_size
                  AND e.first_seq > k.block * b.block_size - 256 AND e.first_seq < (k.block + 1) * b.block_size
                UNION ALL
                SELECT p.seq, NULL, p.priority FROM priorities p
                WHERE p.buffer_id = p_buffer_id AND p.seq >= k.block * b.block_size AND p.seq < (k.block + 1) * b.block_size
            ) u
            GROUP BY u.seq HAVING count(u.initial_priority) = 1
        ) r
    ) s
    WHERE greatest(k.block * b.block_size, 1) > low AND (k.block + 1) * b.block_size <= p_settled + 1
    ORDER BY k.block
    ON CONFLICT (buffer_id, block) DO UPDATE
    SET n_rows = excluded.n_rows, weight_sum = excluded.weight_sum, max_priority = excluded.max_priority,
        min_priority = excluded.min_priority, max_is_upper_bound = false, min_is_lower_bound = false;
    GET DIAGNOSTICS n_summarized = ROW_COUNT;
    RETURN n_summarized;
END
$$
