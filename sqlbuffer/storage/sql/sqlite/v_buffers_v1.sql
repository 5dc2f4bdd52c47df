CREATE VIEW v_buffers AS
SELECT w.buffer, w.buffer_id, count(e.seq) AS rows, w.max_capacity AS capacity,
    CAST(count(e.seq) AS REAL) / w.max_capacity AS fill, w.evict_unit AS evict_by,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(e.execute_time), 'unixepoch') AS oldest_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', max(e.execute_time), 'unixepoch') AS newest_at,
    max(e.inserted_at) AS last_insert_at, b.created_at,
    b.n_expired AS expired, b.n_used_up AS used_up, b.n_other_session AS other_session, b.n_partial AS partial,
    (SELECT coalesce(sum(l.n_rows), 0) FROM leases l
     WHERE l.buffer_id = b.id AND NOT l.acknowledged AND l.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) AS leased,
    CASE WHEN b.has_quarantine THEN
        (SELECT count(*) FROM quarantine q WHERE q.buffer_id = b.id AND q.seq > w.low_seq) ELSE 0 END AS quarantined,
    b.clock, b.max_staleness, b.max_use, b.min_size, b.alpha
FROM v_windows w
JOIN buffers b ON b.id = w.buffer_id
LEFT JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
GROUP BY w.buffer, w.buffer_id, w.max_capacity, w.evict_unit, w.low_seq, b.id
