CREATE VIEW v_batches AS
SELECT b.name AS buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, s.n_rows AS rows,
    (SELECT s.clock - avg(r.value) FROM json_each(s.model_versions) r) AS mean_staleness,
    (SELECT s.clock - min(r.value) FROM json_each(s.model_versions) r) AS max_staleness, s.consumer, s.undone
FROM samples s
JOIN buffers b ON b.id = s.buffer_id
