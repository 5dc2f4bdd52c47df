-- Sets the priorities of the given rows that the buffer holds, each given once; returns how many.
-- Logs them if the buffer has followers.
-- The chunk of a step is looked up in a range of one buffer, in order: only the primary key gives
-- that.
CREATE FUNCTION sqlbuffer_update_priorities_v1(
    p_buffer_id integer, p_seqs bigint[], p_priorities double precision[], p_origin uuid DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    low bigint;
    n_updated bigint;
    largest double precision;
    lost bigint[];
BEGIN
    SELECT * INTO b FROM buffers WHERE id = p_buffer_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer with buffer_id %', p_buffer_id USING ERRCODE = 'foreign_key_violation';
    END IF;
    -- A separate statement: it sees the changes of earlier holders of the lock.
    SELECT w.low_seq INTO low FROM v_windows w WHERE w.buffer_id = p_buffer_id;
    WITH given AS MATERIALIZED (
        -- Each row is looked up alone: a join would be planned without statistics as a scan of all.
        -- Updated priorities are searched first: a row with one is held.
        SELECT g.seq, g.priority AS new, p.place, coalesce(p.priority, e.priority) AS old
        FROM unnest(p_seqs, p_priorities) AS g(seq, priority)
        LEFT JOIN LATERAL (
            SELECT x.ctid AS place, x.priority FROM priorities x WHERE x.buffer_id = p_buffer_id AND x.seq = g.seq LIMIT 1
        ) p ON true
        LEFT JOIN LATERAL (
            SELECT coalesce(x.initial_priority, 1.0) AS priority FROM experiences x
            WHERE NOT b.has_chunks AND p.place IS NULL AND x.buffer_id = p_buffer_id AND x.seq = g.seq
            UNION ALL
            SELECT coalesce(c.initial_priority[g.seq - c.first_seq + 1], 1.0) FROM (
                SELECT x.first_seq, x.n_steps, x.initial_priority FROM chunks x
                WHERE b.has_chunks AND p.place IS NULL AND x.buffer_id >= p_buffer_id AND x.buffer_id <= p_buffer_id AND x.first_seq <= g.seq AND x.first_seq > g.seq - 256
                ORDER BY x.buffer_id DESC, x.first_seq DESC LIMIT 1
            ) AS c
            WHERE g.seq < c.first_seq + c.n_steps
              AND NOT EXISTS (SELECT 1 FROM deleted_steps d WHERE d.buffer_id = p_buffer_id AND d.seq = g.seq OFFSET 0)
            LIMIT 1
        ) e ON true
        WHERE g.seq > low AND coalesce(p.priority, e.priority) IS NOT NULL
    ), written AS (
        -- By its location, which changes only under this lock.
        UPDATE priorities p SET priority = g.new FROM given g WHERE p.ctid = g.place
    ), added AS (
        INSERT INTO priorities (buffer_id, seq, priority)
        SELECT p_buffer_id, g.seq, g.new FROM given g WHERE g.place IS NULL ORDER BY g.seq
    ), changes AS (
        SELECT seq / b.block_size AS block,
            sum(coalesce(power(nullif(new, 0), b.alpha), 0) - coalesce(power(nullif(old, 0), b.alpha), 0)) AS difference,
            max(new) AS max_new, max(old) AS max_old, min(nullif(new, 0)) AS min_new, min(nullif(old, 0)) AS min_old
        FROM given GROUP BY 1
    ), blocks AS (
        UPDATE priority_blocks k
        SET weight_sum = greatest(k.weight_sum + c.difference, 0),
            max_priority = greatest(k.max_priority, c.max_new),
            max_is_upper_bound = c.max_new < k.max_priority AND (k.max_is_upper_bound OR c.max_old >= k.max_priority),
            min_priority = least(k.min_priority, c.min_new),
            min_is_lower_bound = CASE
                WHEN k.min_priority IS NULL OR c.min_new <= k.min_priority THEN false
                ELSE k.min_is_lower_bound OR coalesce(c.min_old <= k.min_priority, false)
            END
        FROM changes c
        WHERE k.buffer_id = p_buffer_id AND k.block = c.block
        RETURNING k.block, k.max_is_upper_bound, k.weight_sum, k.max_priority
    )
    SELECT (SELECT count(*) FROM given), (SELECT max(new) FROM given), ARRAY(
        SELECT k.block FROM blocks k WHERE k.max_is_upper_bound AND 4 * k.weight_sum < power(nullif(k.max_priority, 0), b.alpha))
    INTO n_updated, largest, lost;
    IF lost <> '{}' THEN
        -- A sum that has become this small is only a rounding error.
        DELETE FROM priority_blocks WHERE buffer_id = p_buffer_id AND block = ANY (lost);
    END IF;
    IF largest > coalesce(b.max_priority, -1) THEN
        UPDATE buffers SET max_priority = largest WHERE id = p_buffer_id;
    END IF;
    IF b.has_followers THEN
        INSERT INTO change_log (buffer_id, kind, seqs, origin) VALUES (p_buffer_id, 'priorities', p_seqs, p_origin);
    END IF;
    RETURN n_updated;
END
$$
