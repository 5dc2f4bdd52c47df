CREATE VIEW v_slots AS
SELECT b.name AS buffer, s.slot, p.key AS episode_id, s.length, s.length IS NULL AS open, p.meta
FROM slots s
JOIN buffers b ON b.id = s.buffer_id
LEFT JOIN episodes p ON p.id = s.episode_id
WHERE s.length IS NULL OR s.length > 0
