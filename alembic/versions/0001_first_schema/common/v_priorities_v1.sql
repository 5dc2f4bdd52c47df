CREATE VIEW v_priorities AS
WITH w AS MATERIALIZED (
    SELECT v.buffer_id, v.buffer, v.low_seq FROM v_windows v JOIN buffers b ON b.id = v.buffer_id AND b.has_priorities
)
SELECT w.buffer, e.seq, e.id, e.task_id, e.step, coalesce(p.priority, e.initial_priority, 1.0) AS priority,
    e.initial_priority, p.seq IS NOT NULL AS updated
FROM w
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
LEFT JOIN priorities p ON p.buffer_id = e.buffer_id AND p.seq = e.seq
UNION ALL
SELECT w.buffer, e.seq, e.id, e.task_id, e.step, coalesce(p.priority, e.initial_priority, 1.0) AS priority,
    e.initial_priority, p.seq IS NOT NULL AS updated
FROM w
JOIN chunk_steps e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq AND e.first_seq > w.low_seq - 256
LEFT JOIN priorities p ON p.buffer_id = e.buffer_id AND p.seq = e.seq
