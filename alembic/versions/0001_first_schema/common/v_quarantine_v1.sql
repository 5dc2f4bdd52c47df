CREATE VIEW v_quarantine AS
SELECT w.buffer, e.seq, e.id, e.task_id, e.step, q.reason, q.quarantined_at
FROM quarantine q
JOIN v_windows w ON w.buffer_id = q.buffer_id
JOIN experiences e ON e.buffer_id = q.buffer_id AND e.seq = q.seq AND e.seq > w.low_seq
UNION ALL
SELECT w.buffer, e.seq, e.id, e.task_id, e.step, q.reason, q.quarantined_at
FROM quarantine q
JOIN v_windows w ON w.buffer_id = q.buffer_id
JOIN chunk_steps e ON e.buffer_id = q.buffer_id AND e.seq = q.seq AND e.first_seq BETWEEN q.seq - 255 AND q.seq AND e.seq > w.low_seq
