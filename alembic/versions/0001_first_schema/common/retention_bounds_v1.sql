-- Numbers up to which steps leave: those older than max_age at the last sweep, and those before the
-- newest max_bytes. No clock is read, so what a sweep has found holds until the next one. Addition
-- keeps the planner from reading all marks by their number.
CREATE VIEW retention_bounds AS
SELECT b.id AS buffer_id,
    CASE WHEN b.max_age_s IS NOT NULL THEN (
        SELECT max(m.seq + 0) FROM time_marks m WHERE m.buffer_id = b.id AND m.at <= (SELECT r.counted_at FROM retention_states r WHERE r.buffer_id = b.id) - b.max_age_s) END AS age_seq,
    CASE WHEN b.max_bytes IS NULL THEN NULL WHEN b.evict_unit <> 'row' THEN (SELECT r.bytes_seq FROM retention_states r WHERE r.buffer_id = b.id)
    WHEN (SELECT sum(m.n_bytes) FROM time_marks m WHERE m.buffer_id = b.id) > b.max_bytes THEN (
        SELECT max(t.seq) FROM (
            SELECT m.seq, sum(m.n_bytes) OVER (ORDER BY m.seq DESC) AS n_bytes FROM time_marks m WHERE m.buffer_id = b.id
        ) t
        WHERE t.n_bytes > b.max_bytes AND t.seq < (SELECT max(m.seq) FROM time_marks m WHERE m.buffer_id = b.id)) END AS bytes_seq
FROM buffers b
