CREATE VIEW v_item_groups AS
SELECT b.name AS buffer, g.number, g.task_id, g.first_step, json_array_length(g.seqs) AS items, g.session AS session_id, g.model_version,
    json_extract(l.state, '$.version') - g.oldest_version AS staleness, g.use_count, g.place IS NOT NULL AS ready, g.n_pins > 0 AS prepared,
    g.n_bytes AS size_bytes, g.inserted_at
FROM item_groups g
JOIN buffers b ON b.id = g.buffer_id
JOIN buffer_layouts l ON l.buffer_id = g.buffer_id
