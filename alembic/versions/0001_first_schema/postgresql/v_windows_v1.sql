CREATE VIEW v_windows AS
SELECT b.id AS buffer_id, b.name AS buffer, b.max_capacity, b.max_episodes, b.evict_unit, b.deletions, b.live_rows,
    b.clock, b.session_id, b.has_labels, b.has_quarantine, b.has_deleted, coalesce(m.seq, 0) AS high_seq,
    CASE WHEN b.evict_unit = 'row' THEN greatest(b.low_seq, m.seq - b.max_capacity) ELSE b.low_seq END AS low_seq, b.n_added
FROM buffers b
-- Not max(seq), which takes twice the time to plan.
LEFT JOIN LATERAL (SELECT CASE WHEN b.has_chunks
    THEN (SELECT c.first_seq + c.n_steps - 1 FROM chunks c WHERE c.buffer_id = b.id ORDER BY c.first_seq DESC LIMIT 1)
    ELSE (SELECT e.seq FROM experiences e WHERE e.buffer_id = b.id ORDER BY e.seq DESC LIMIT 1) END AS seq) m ON true
