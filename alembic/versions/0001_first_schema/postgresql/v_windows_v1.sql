CREATE VIEW v_windows AS
SELECT b.id AS buffer_id, b.name AS buffer, b.max_capacity, b.max_episodes, b.evict_unit, b.deletions, b.live_rows,
    b.clock, b.session_id, b.has_labels, b.has_quarantine, coalesce(m.seq, 0) AS high_seq,
    CASE WHEN b.evict_unit = 'row' THEN greatest(b.low_seq, m.seq - b.max_capacity) ELSE b.low_seq END AS low_seq
FROM buffers b
-- Not max(seq), which takes twice the time to plan.
LEFT JOIN LATERAL (SELECT e.seq FROM experiences e WHERE e.buffer_id = b.id ORDER BY e.seq DESC LIMIT 1) m ON true
