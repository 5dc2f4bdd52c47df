CREATE VIEW v_windows AS
SELECT b.id AS buffer_id, b.name AS buffer, b.max_capacity, b.max_episodes, b.evict_unit, b.deletions, b.live_rows, coalesce(m.seq, 0) AS high_seq,
    CASE WHEN b.evict_unit = 'row' THEN greatest(b.low_seq, m.seq - b.max_capacity) ELSE b.low_seq END AS low_seq
FROM buffers b
CROSS JOIN LATERAL (SELECT max(e.seq) AS seq FROM experiences e WHERE e.buffer_id = b.id) m
