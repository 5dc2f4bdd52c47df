CREATE VIEW v_sessions AS
SELECT b.name AS buffer, s.key AS session_id, s.current_version AS model_version, coalesce(s.id = b.session_id, false) AS current
FROM sessions s
JOIN buffers b ON b.id = s.buffer_id
