CREATE VIEW v_waiting AS
SELECT b.name AS buffer, w.role, w.n_rows AS rows, w.host, w.pid, w.waiting_since, w.heartbeat_at > clock_timestamp() - interval '5 seconds' AS alive
FROM flow_waits w
JOIN buffers b ON b.id = w.buffer_id
