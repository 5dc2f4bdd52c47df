CREATE VIEW v_samples AS
SELECT b.name AS buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, r.position, r.seq,
    s.probabilities[r.position] AS probability, e.id, e.task_id, p.key AS episode_id, e.step
FROM samples s
JOIN buffers b ON b.id = s.buffer_id
CROSS JOIN LATERAL unnest(s.seqs) WITH ORDINALITY AS r(seq, position)
LEFT JOIN (
    v_windows w JOIN experiences e ON e.buffer_id = w.buffer_id AND e.seq > w.low_seq
) ON w.buffer_id = s.buffer_id AND e.seq = r.seq
LEFT JOIN episodes p ON p.id = e.episode_id
