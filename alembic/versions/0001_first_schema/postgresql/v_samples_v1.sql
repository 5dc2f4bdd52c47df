-- Each column of a step is a separate lookup: a query pays only for the columns that it selects. The
-- server expects 1,000 steps in a batch because of generate_subscripts. If it expected ten, it would
-- compare each of them with all steps where a query joins v_experiences.
CREATE VIEW v_samples AS
WITH w AS MATERIALIZED (SELECT v.buffer_id, v.buffer, v.low_seq, b.has_chunks FROM v_windows v JOIN buffers b ON b.id = v.buffer_id)
SELECT w.buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, r.position, r.seq, r.probability,
    CASE WHEN w.has_chunks THEN (SELECT coalesce((SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = r.seq), c.id || '/' || (r.seq - c.first_seq)) COLLATE "C" FROM chunks c
        WHERE c.buffer_id = s.buffer_id AND c.first_seq = (SELECT k.first_seq FROM chunks k WHERE k.buffer_id = s.buffer_id AND k.first_seq <= r.seq ORDER BY k.first_seq DESC LIMIT 1)
          AND r.seq < c.first_seq + c.n_steps AND r.seq > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.seq))
        ELSE (SELECT e.id FROM experiences e WHERE e.buffer_id = s.buffer_id AND e.seq = r.seq AND e.seq > w.low_seq) END AS id,
    CASE WHEN w.has_chunks THEN (SELECT c.task_id FROM chunks c
        WHERE c.buffer_id = s.buffer_id AND c.first_seq = (SELECT k.first_seq FROM chunks k WHERE k.buffer_id = s.buffer_id AND k.first_seq <= r.seq ORDER BY k.first_seq DESC LIMIT 1)
          AND r.seq < c.first_seq + c.n_steps AND r.seq > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.seq))
        ELSE (SELECT e.task_id FROM experiences e WHERE e.buffer_id = s.buffer_id AND e.seq = r.seq AND e.seq > w.low_seq) END AS task_id,
    CASE WHEN w.has_chunks THEN (SELECT (SELECT p.key FROM episodes p WHERE p.id = c.episode_id) FROM chunks c
        WHERE c.buffer_id = s.buffer_id AND c.first_seq = (SELECT k.first_seq FROM chunks k WHERE k.buffer_id = s.buffer_id AND k.first_seq <= r.seq ORDER BY k.first_seq DESC LIMIT 1)
          AND r.seq < c.first_seq + c.n_steps AND r.seq > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.seq))
        ELSE (SELECT (SELECT p.key FROM episodes p WHERE p.id = e.episode_id) FROM experiences e WHERE e.buffer_id = s.buffer_id AND e.seq = r.seq AND e.seq > w.low_seq) END AS episode_id,
    CASE WHEN w.has_chunks THEN (SELECT CASE WHEN c.steps IS NULL THEN c.step + (r.seq - c.first_seq) ELSE c.steps[r.seq - c.first_seq + 1] END FROM chunks c
        WHERE c.buffer_id = s.buffer_id AND c.first_seq = (SELECT k.first_seq FROM chunks k WHERE k.buffer_id = s.buffer_id AND k.first_seq <= r.seq ORDER BY k.first_seq DESC LIMIT 1)
          AND r.seq < c.first_seq + c.n_steps AND r.seq > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.seq))
        ELSE (SELECT e.step FROM experiences e WHERE e.buffer_id = s.buffer_id AND e.seq = r.seq AND e.seq > w.low_seq) END AS step,
    r.model_version, s.consumer, s.undone, s.clock - r.model_version AS staleness
FROM samples s
JOIN w ON w.buffer_id = s.buffer_id
CROSS JOIN LATERAL ROWS FROM (unnest(s.seqs), generate_subscripts(s.seqs, 1), unnest(s.probabilities), unnest(s.model_versions)) AS r(seq, position, probability, model_version)
