-- Each column is a separate lookup: a query pays only for the columns that it selects. `rows` adds
-- up counted blocks, and counts the block that the lower end cuts and the rows that are newer than
-- all of them; of chunks it adds up the lengths. It uses two bounds: with one the planner, which does
-- not know the number, would rather read the whole table.
CREATE VIEW v_buffers AS
SELECT buffer, buffer_id, rows, capacity, rows::double precision / capacity AS fill, evict_by, max_age_s, max_bytes, oldest_at, newest_at, last_insert_at, created_at,
    expired, used_up, other_session, partial, flat, leased, quarantined, clock, max_staleness, max_use, min_size, alpha
FROM (
    SELECT w.buffer, w.buffer_id,
        CASE WHEN w.evict_unit <> 'row' THEN w.live_rows ELSE
            (SELECT coalesce(sum(k.n_rows), 0) FROM row_blocks k
             WHERE k.buffer_id = w.buffer_id AND k.block > w.low_seq / 4096)
            + CASE WHEN b.has_chunks THEN
                (SELECT coalesce(sum(least(c.first_seq + c.n_steps, u.whole) - greatest(c.first_seq, w.low_seq + 1)), 0)::bigint FROM chunks c
                 WHERE c.buffer_id = w.buffer_id AND c.first_seq > w.low_seq + 1 - 256 AND c.first_seq < u.whole AND c.first_seq + c.n_steps > w.low_seq + 1)
                - (SELECT count(*) FROM deleted_steps d WHERE d.buffer_id = w.buffer_id AND d.seq >= w.low_seq + 1 AND d.seq < u.whole)
                + (SELECT coalesce(sum(least(c.first_seq + c.n_steps, w.high_seq + 1) - greatest(c.first_seq, u.newest)), 0)::bigint FROM chunks c
                 WHERE c.buffer_id = w.buffer_id AND c.first_seq > u.newest - 256 AND c.first_seq < w.high_seq + 1 AND c.first_seq + c.n_steps > u.newest)
                - (SELECT count(*) FROM deleted_steps d WHERE d.buffer_id = w.buffer_id AND d.seq >= u.newest AND d.seq < w.high_seq + 1)
            ELSE
                (SELECT count(*) FROM experiences e WHERE e.buffer_id = w.buffer_id
                 AND e.seq > w.low_seq AND e.seq < u.whole)
                + (SELECT count(*) FROM experiences e WHERE e.buffer_id = w.buffer_id
                   AND e.seq >= u.newest AND e.seq <= w.high_seq)
            END
        END AS rows,
        w.max_capacity AS capacity, w.evict_unit AS evict_by, b.max_age_s, b.max_bytes,
        CASE WHEN b.has_chunks THEN
        (SELECT CASE WHEN min(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(min(e.execute_time)) END
         FROM chunk_steps e WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq AND e.first_seq > w.low_seq - 256)
        ELSE (SELECT CASE WHEN min(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(min(e.execute_time)) END
         FROM experiences e WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq) END AS oldest_at,
        CASE WHEN b.has_chunks THEN
        (SELECT CASE WHEN max(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(max(e.execute_time)) END
         FROM chunk_steps e WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq AND e.first_seq > w.low_seq - 256)
        ELSE (SELECT CASE WHEN max(e.execute_time) BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(max(e.execute_time)) END
         FROM experiences e WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq) END AS newest_at,
        CASE WHEN w.high_seq > w.low_seq THEN CASE WHEN b.has_chunks THEN
            (SELECT c.inserted_at FROM chunks c WHERE c.buffer_id = w.buffer_id AND c.first_seq <= w.high_seq
             ORDER BY c.first_seq DESC LIMIT 1)
            ELSE (SELECT e.inserted_at FROM experiences e WHERE e.buffer_id = w.buffer_id AND e.seq = w.high_seq) END END AS last_insert_at,
        b.created_at, b.n_expired AS expired, b.n_used_up AS used_up, b.n_other_session AS other_session, b.n_partial AS partial, b.n_flat AS flat,
        (SELECT coalesce(sum(l.n_rows), 0)::bigint FROM leases l
         WHERE l.buffer_id = b.id AND NOT l.acknowledged AND l.leased_until > clock_timestamp()) AS leased,
        CASE WHEN b.has_quarantine THEN
            (SELECT count(*) FROM quarantine q WHERE q.buffer_id = b.id AND q.seq > w.low_seq) ELSE 0 END AS quarantined,
        b.clock, (b.config #>> '{sampling,max_staleness}')::bigint AS max_staleness, (b.config #>> '{sampling,max_use}')::integer AS max_use,
        coalesce((b.config #>> '{sampling,min_size}')::bigint, 0) AS min_size, b.alpha
    FROM v_windows w
    JOIN buffers b ON b.id = w.buffer_id
    CROSS JOIN LATERAL (
        SELECT 4096 * (w.low_seq / 4096 + 1) AS whole, 4096 * greatest(w.low_seq / 4096 + 1, coalesce((
            SELECT k.block + 1 FROM row_blocks k WHERE k.buffer_id = w.buffer_id ORDER BY k.block DESC LIMIT 1), 0)) AS newest
    ) u
) v
