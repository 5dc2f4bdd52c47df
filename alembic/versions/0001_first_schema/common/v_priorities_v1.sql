CREATE VIEW v_priorities AS
SELECT w.buffer, e.seq, e.id, e.task_id, e.step, coalesce(p.priority, e.initial_priority, 1.0) AS priority,
    e.initial_priority, p.seq IS NOT NULL AS updated
FROM v_windows w
JOIN buffers b ON b.id = w.buffer_id AND b.has_priorities
JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
LEFT JOIN priorities p ON p.buffer_id = e.buffer_id AND p.seq = e.seq
