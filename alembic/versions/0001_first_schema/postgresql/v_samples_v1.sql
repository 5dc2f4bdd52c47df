-- Each step is found by its key: OFFSET keeps the server from reading all rows for one batch. It
-- expects 1,000 steps in a batch because of generate_subscripts. If it expected ten, it would compare
-- each of them with all steps where a query joins v_experiences.
CREATE VIEW v_samples AS
(
WITH w AS MATERIALIZED (SELECT buffer_id, buffer, low_seq FROM v_windows)
SELECT w.buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, r.position, r.seq,
    s.probabilities[r.position] AS probability, e.id, e.task_id, p.key AS episode_id, e.step, e.model_version,
    s.consumer, s.undone
FROM samples s
JOIN buffers b ON b.id = s.buffer_id AND NOT b.has_chunks
JOIN w ON w.buffer_id = s.buffer_id
CROSS JOIN LATERAL ROWS FROM (unnest(s.seqs), generate_subscripts(s.seqs, 1)) AS r(seq, position)
LEFT JOIN LATERAL (
    SELECT x.id, x.task_id, x.episode_id, x.step, x.model_version FROM experiences x
    WHERE x.buffer_id = s.buffer_id AND x.seq = r.seq AND x.seq > w.low_seq OFFSET 0
) e ON true
LEFT JOIN episodes p ON p.id = e.episode_id
)
UNION ALL
(
WITH w AS MATERIALIZED (SELECT buffer_id, buffer, low_seq FROM v_windows)
SELECT w.buffer, s.id, s.clock, s.sampler, s.seed, s.sampled_at, r.position, r.seq, s.probabilities[r.position],
    coalesce(
        (SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = r.seq),
        p.key || '/' || (c.t + r.seq - c.first_seq),
        c.id || '/' || (r.seq - c.first_seq)
    ) COLLATE "C",
    c.task_id, p.key, CASE WHEN c.steps IS NULL THEN c.step + (r.seq - c.first_seq) ELSE c.steps[r.seq - c.first_seq + 1] END, c.model_version,
    s.consumer, s.undone
FROM samples s
JOIN buffers b ON b.id = s.buffer_id AND b.has_chunks
JOIN w ON w.buffer_id = s.buffer_id
CROSS JOIN LATERAL ROWS FROM (unnest(s.seqs), generate_subscripts(s.seqs, 1)) AS r(seq, position)
LEFT JOIN LATERAL (
    SELECT k.* FROM chunks k WHERE k.buffer_id = s.buffer_id AND k.first_seq <= r.seq ORDER BY k.first_seq DESC LIMIT 1
) c ON r.seq < c.first_seq + c.n_steps AND r.seq > w.low_seq
    AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.seq)
LEFT JOIN episodes p ON p.id = c.episode_id
)
