CREATE VIEW v_chunks AS
SELECT b.name AS buffer, c.chunk, c.worker_uuid, c.first_fid, cardinality(c.seqs) AS fragments, c.session AS session_id,
    c.model_version, p.version - c.oldest_version AS staleness, c.use_count, c.place IS NOT NULL AS ready, c.n_pins > 0 AS prepared,
    c.n_bytes AS size_bytes, c.inserted_at
FROM chunks c
JOIN buffers b ON b.id = c.buffer_id
JOIN fragment_pools p ON p.buffer_id = c.buffer_id
