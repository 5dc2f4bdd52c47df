CREATE VIEW v_waiting AS
SELECT b.name AS buffer, w.role, w.n_rows AS rows, w.host, w.pid, w.waiting_since, (julianday('now') - julianday(w.heartbeat_at)) * 86400.0 < 5 AS alive
FROM flow_waits w
JOIN buffers b ON b.id = w.buffer_id
