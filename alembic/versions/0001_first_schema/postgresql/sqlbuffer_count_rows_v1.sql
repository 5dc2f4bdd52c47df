-- Counts the rows of the next blocks of a buffer that can get no more rows; returns the number of
-- blocks. Only a few at a time: transactions that delete rows of the buffer wait until this one
-- ends.
CREATE FUNCTION sqlbuffer_count_rows_v1(p_buffer_id integer, p_settled bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    low bigint;
    next_block bigint;
    n_counted bigint;
BEGIN
    -- Another process is counting or deleting: the next call counts.
    PERFORM 1 FROM buffers WHERE id = p_buffer_id AND evict_unit = 'row' FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- Separate statements: they see the changes of earlier holders of the lock.
    SELECT w.low_seq INTO low FROM v_windows w WHERE w.buffer_id = p_buffer_id;
    SELECT greatest(low / 4096 + 1, coalesce(max(k.block) + 1, 0)) INTO next_block FROM row_blocks k WHERE k.buffer_id = p_buffer_id;
    INSERT INTO row_blocks (buffer_id, block, n_rows)
    SELECT p_buffer_id, g.block, (
        SELECT count(*) FROM experiences e
        WHERE e.buffer_id = p_buffer_id AND e.seq >= g.block * 4096 AND e.seq < (g.block + 1) * 4096
    ) + (
        -- A chunk has up to 256 steps, and may begin in the block before.
        SELECT coalesce(sum(least(c.first_seq + c.n_steps, (g.block + 1) * 4096) - greatest(c.first_seq, g.block * 4096)), 0)
        FROM chunks c
        WHERE c.buffer_id = p_buffer_id AND c.first_seq > g.block * 4096 - 256 AND c.first_seq < (g.block + 1) * 4096
          AND c.first_seq + c.n_steps > g.block * 4096
    ) - (
        SELECT count(*) FROM deleted_steps d
        WHERE d.buffer_id = p_buffer_id AND d.seq >= g.block * 4096 AND d.seq < (g.block + 1) * 4096
    )
    FROM generate_series(next_block, least(next_block + 16, (p_settled + 1) / 4096) - 1) AS g(block);
    GET DIAGNOSTICS n_counted = ROW_COUNT;
    IF n_counted > 0 THEN
        DELETE FROM row_blocks WHERE buffer_id = p_buffer_id AND block <= low / 4096;
    END IF;
    RETURN n_counted;
END
$$
