CREATE VIEW v_samples AS
SELECT b.name AS buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, r.position, r.seq,
    s.probabilities[r.position] AS probability, e.id, e.task_id, p.key AS episode_id, e.step
FROM samples s
JOIN buffers b ON b.id = s.buffer_id
CROSS JOIN LATERAL unnest(s.seqs) WITH ORDINALITY AS r(seq, position)
LEFT JOIN v_windows w ON w.buffer_id = s.buffer_id
LEFT JOIN LATERAL (
    SELECT x.id, x.task_id, x.episode_id, x.step FROM experiences x
    WHERE NOT b.has_chunks AND x.buffer_id = s.buffer_id AND x.seq = r.seq
    UNION ALL
    SELECT x.id, x.task_id, x.episode_id, x.step FROM chunk_steps x
    WHERE b.has_chunks AND x.buffer_id = s.buffer_id AND x.seq = r.seq AND x.first_seq BETWEEN r.seq - 255 AND r.seq
) e ON r.seq > w.low_seq
LEFT JOIN episodes p ON p.id = e.episode_id
