-- `seq` is cast so that a join with the steps may use an index of it: values of json_each have no
-- affinity.
CREATE VIEW v_samples AS
SELECT b.name AS buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, CAST(r.key + 1 AS INTEGER) AS position,
    CAST(r.value AS INTEGER) AS seq, json_extract(s.probabilities, '$[' || r.key || ']') AS probability,
    e.id, e.task_id, p.key AS episode_id, e.step, e.model_version,
    s.consumer, s.undone
FROM samples s
JOIN buffers b ON b.id = s.buffer_id AND NOT b.has_chunks
CROSS JOIN json_each(s.seqs) r
LEFT JOIN experiences e ON e."key" = s.buffer_id << 40 | r.value
    AND e.seq > (SELECT low_seq FROM v_windows WHERE buffer_id = s.buffer_id)
LEFT JOIN episodes p ON p.id = e.episode_id
UNION ALL
SELECT b.name, s.id, s.clock, s.sampler, s.seed, s.sampled_at, CAST(r.key + 1 AS INTEGER), CAST(r.value AS INTEGER),
    json_extract(s.probabilities, '$[' || r.key || ']'),
    coalesce(
        (SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = r.value),
        c.id || '/' || (r.value - c.first_seq)
    ),
    c.task_id, p.key,
    CASE WHEN c.steps IS NULL THEN c.step + r.value - c.first_seq ELSE json_extract(c.steps, '$[' || (r.value - c.first_seq) || ']') END,
    c.model_version,
    s.consumer, s.undone
FROM samples s
JOIN buffers b ON b.id = s.buffer_id AND b.has_chunks
CROSS JOIN json_each(s.seqs) r
LEFT JOIN chunks c ON c."key" = (
        SELECT max(k."key") FROM chunks k WHERE k."key" > s.buffer_id << 40 AND k."key" <= (s.buffer_id << 40 | r.value))
    AND r.value < c.first_seq + c.n_steps
    AND r.value > (SELECT low_seq FROM v_windows WHERE buffer_id = s.buffer_id)
    AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.value)
LEFT JOIN episodes p ON p.id = c.episode_id
