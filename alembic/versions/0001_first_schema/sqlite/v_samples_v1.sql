-- The inner part has only cheap columns, and the rest is looked up for the steps and columns of a
-- query. It ends with UNION ALL and no row of experiences, so that SQLite, where a query joins
-- v_experiences, neither takes it apart nor expects few draws: it would compare each draw with all
-- steps. `seq` is cast so that such a join may use an index of it: values of json_each have no affinity.
CREATE VIEW v_samples AS
SELECT r.buffer, r.batch_id, r.clock, r.sampler, r.seed, r.sampled_at, r.position, r.seq,
    (SELECT json_extract(s.probabilities, '$[' || (r.position - 1) || ']') FROM samples s WHERE s.id = r.batch_id) AS probability,
    CASE WHEN r.has_chunks THEN (
        SELECT coalesce((SELECT i.id FROM step_ids i WHERE i.buffer_id = c.buffer_id AND i.seq = r.seq), c.id || '/' || (r.seq - c.first_seq))
        FROM chunks c WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > r.buffer_id << 40 AND k."key" <= (r.buffer_id << 40 | r.seq))
          AND r.seq < c.first_seq + c.n_steps AND r.seq > r.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = r.buffer_id AND x.seq = r.seq))
    ELSE (SELECT e.id FROM experiences e WHERE e."key" = r.buffer_id << 40 | r.seq AND r.seq > r.low_seq) END AS id,
    CASE WHEN r.has_chunks THEN (
        SELECT c.task_id
        FROM chunks c WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > r.buffer_id << 40 AND k."key" <= (r.buffer_id << 40 | r.seq))
          AND r.seq < c.first_seq + c.n_steps AND r.seq > r.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = r.buffer_id AND x.seq = r.seq))
    ELSE (SELECT e.task_id FROM experiences e WHERE e."key" = r.buffer_id << 40 | r.seq AND r.seq > r.low_seq) END AS task_id,
    CASE WHEN r.has_chunks THEN (
        SELECT p."key"
        FROM chunks c JOIN episodes p ON p.id = c.episode_id
        WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > r.buffer_id << 40 AND k."key" <= (r.buffer_id << 40 | r.seq))
          AND r.seq < c.first_seq + c.n_steps AND r.seq > r.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = r.buffer_id AND x.seq = r.seq))
    ELSE (SELECT p."key" FROM experiences e JOIN episodes p ON p.id = e.episode_id WHERE e."key" = r.buffer_id << 40 | r.seq AND r.seq > r.low_seq) END AS episode_id,
    CASE WHEN r.has_chunks THEN (
        SELECT CASE WHEN c.steps IS NULL THEN c.step + r.seq - c.first_seq ELSE json_extract(c.steps, '$[' || (r.seq - c.first_seq) || ']') END
        FROM chunks c WHERE c."key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > r.buffer_id << 40 AND k."key" <= (r.buffer_id << 40 | r.seq))
          AND r.seq < c.first_seq + c.n_steps AND r.seq > r.low_seq
          AND NOT EXISTS (SELECT 1 FROM deleted_steps x WHERE x.buffer_id = r.buffer_id AND x.seq = r.seq))
    ELSE (SELECT e.step FROM experiences e WHERE e."key" = r.buffer_id << 40 | r.seq AND r.seq > r.low_seq) END AS step,
    (SELECT json_extract(s.model_versions, '$[' || (r.position - 1) || ']') FROM samples s WHERE s.id = r.batch_id) AS model_version,
    r.consumer, r.undone,
    (SELECT s.clock - json_extract(s.model_versions, '$[' || (r.position - 1) || ']') FROM samples s WHERE s.id = r.batch_id) AS staleness
FROM (
    SELECT w.buffer, w.buffer_id, w.low_seq, w.has_chunks, s.id AS batch_id, s.clock, s.sampler, s.seed, s.sampled_at,
        CAST(r.key + 1 AS INTEGER) AS position, CAST(r.value AS INTEGER) AS seq, s.consumer, s.undone
    FROM (SELECT v.buffer_id, v.buffer, v.low_seq, b.has_chunks FROM v_windows v JOIN buffers b ON b.id = v.buffer_id LIMIT -1) w
    JOIN samples s ON s.buffer_id = w.buffer_id
    CROSS JOIN json_each(s.seqs) r
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, CAST(NULL AS INTEGER), CAST(NULL AS INTEGER), NULL, NULL FROM experiences WHERE 0
) r
