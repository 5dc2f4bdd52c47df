CREATE VIEW v_samples AS
SELECT b.name AS buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, r.key + 1 AS position, r.value AS seq,
    json_extract(s.probabilities, '$[' || r.key || ']') AS probability, e.id, e.task_id, p.key AS episode_id, e.step
FROM samples s
JOIN buffers b ON b.id = s.buffer_id
CROSS JOIN json_each(s.seqs) r
LEFT JOIN experiences e ON e."key" = s.buffer_id << 40 | r.value
    AND e.seq > (SELECT low_seq FROM v_windows WHERE buffer_id = s.buffer_id)
LEFT JOIN episodes p ON p.id = e.episode_id
