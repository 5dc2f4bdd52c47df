-- Each column of a step is a separate lookup: a query pays only for the columns that it selects.
-- `seq` is cast so that a join with the steps may use an index of it: values of json_each have no
-- affinity.
CREATE VIEW v_samples AS
WITH w AS MATERIALIZED (SELECT v.buffer_id, v.buffer, v.low_seq, b.has_chunks FROM v_windows v JOIN buffers b ON b.id = v.buffer_id)
SELECT w.buffer, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at, CAST(r.key + 1 AS INTEGER) AS position,
    CAST(r.value AS INTEGER) AS seq, json_extract(s.probabilities, '$[' || r.key || ']') AS probability,
    CASE WHEN w.has_chunks THEN (
        SELECT coalesce((SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = r.value), c.id || '/' || (r.value - c.first_seq))
        FROM chunks c WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > s.buffer_id << 40 AND k."key" <= (s.buffer_id << 40 | r.value))
          AND r.value < c.first_seq + c.n_steps AND r.value > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.value))
    ELSE (SELECT e.id FROM experiences e WHERE e."key" = s.buffer_id << 40 | r.value AND r.value > w.low_seq) END AS id,
    CASE WHEN w.has_chunks THEN (
        SELECT c.task_id
        FROM chunks c WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > s.buffer_id << 40 AND k."key" <= (s.buffer_id << 40 | r.value))
          AND r.value < c.first_seq + c.n_steps AND r.value > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.value))
    ELSE (SELECT e.task_id FROM experiences e WHERE e."key" = s.buffer_id << 40 | r.value AND r.value > w.low_seq) END AS task_id,
    CASE WHEN w.has_chunks THEN (
        SELECT p."key"
        FROM chunks c JOIN episodes p ON p.id = c.episode_id
        WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > s.buffer_id << 40 AND k."key" <= (s.buffer_id << 40 | r.value))
          AND r.value < c.first_seq + c.n_steps AND r.value > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.value))
    ELSE (SELECT p."key" FROM experiences e JOIN episodes p ON p.id = e.episode_id WHERE e."key" = s.buffer_id << 40 | r.value AND r.value > w.low_seq) END AS episode_id,
    CASE WHEN w.has_chunks THEN (
        SELECT CASE WHEN c.steps IS NULL THEN c.step + r.value - c.first_seq ELSE json_extract(c.steps, '$[' || (r.value - c.first_seq) || ']') END
        FROM chunks c WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > s.buffer_id << 40 AND k."key" <= (s.buffer_id << 40 | r.value))
          AND r.value < c.first_seq + c.n_steps AND r.value > w.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = s.buffer_id AND x.seq = r.value))
    ELSE (SELECT e.step FROM experiences e WHERE e."key" = s.buffer_id << 40 | r.value AND r.value > w.low_seq) END AS step,
    json_extract(s.model_versions, '$[' || r.key || ']') AS model_version, s.consumer, s.undone,
    s.clock - json_extract(s.model_versions, '$[' || r.key || ']') AS staleness
FROM samples s
JOIN w ON w.buffer_id = s.buffer_id
CROSS JOIN json_each(s.seqs) r
