CREATE VIEW v_documents AS
SELECT b.name AS buffer, d.key, d.value, d.version, d.changed_at
FROM documents d
JOIN buffers b ON b.id = d.buffer_id
