-- Entries are counted, and the bytes of one are the mean of up to 150: the oldest, the newest, and those
-- in the middle. The free space of pages is left out.
CREATE VIEW v_storage AS
WITH w AS MATERIALIZED (
    SELECT v.buffer_id, v.buffer, v.low_seq, (v.low_seq + v.high_seq) / 2 AS middle, b.has_chunks
    FROM v_windows v
    JOIN buffers b ON b.id = v.buffer_id
), t AS MATERIALIZED (
    SELECT w.buffer, 'experiences' AS relation, 'rows' AS kind, (SELECT v.rows FROM v_buffers v WHERE v.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (
            SELECT * FROM (SELECT 120 + coalesce(length(CAST(x.id AS BLOB)), 0) + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.task_name AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.pre_agent AS BLOB)), 0) + coalesce(length(CAST(x.state AS BLOB)), 0) + coalesce(length(CAST(x.actions AS BLOB)), 0) + coalesce(length(CAST(x.messages AS BLOB)), 0) + coalesce(length(CAST(x.extra AS BLOB)), 0) + coalesce(length(CAST(x.fields AS BLOB)), 0) + coalesce(length(CAST(x.arrays AS BLOB)), 0) AS size FROM experiences x WHERE x."key" > (w.buffer_id << 40 | w.low_seq) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 120 + coalesce(length(CAST(x.id AS BLOB)), 0) + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.task_name AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.pre_agent AS BLOB)), 0) + coalesce(length(CAST(x.state AS BLOB)), 0) + coalesce(length(CAST(x.actions AS BLOB)), 0) + coalesce(length(CAST(x.messages AS BLOB)), 0) + coalesce(length(CAST(x.extra AS BLOB)), 0) + coalesce(length(CAST(x.fields AS BLOB)), 0) + coalesce(length(CAST(x.arrays AS BLOB)), 0) AS size FROM experiences x WHERE x."key" >= (w.buffer_id << 40 | w.middle) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 120 + coalesce(length(CAST(x.id AS BLOB)), 0) + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.task_name AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.pre_agent AS BLOB)), 0) + coalesce(length(CAST(x.state AS BLOB)), 0) + coalesce(length(CAST(x.actions AS BLOB)), 0) + coalesce(length(CAST(x.messages AS BLOB)), 0) + coalesce(length(CAST(x.extra AS BLOB)), 0) + coalesce(length(CAST(x.fields AS BLOB)), 0) + coalesce(length(CAST(x.arrays AS BLOB)), 0) AS size FROM experiences x WHERE x."key" > w.buffer_id << 40 AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" DESC LIMIT 50)
        ) u) AS mean_bytes,
        (SELECT avg(u.size) FROM (
            SELECT * FROM (SELECT 2 * coalesce(length(x.id), 0) + length(x.task_id) + length(x.agent_id) + 60 AS size FROM experiences x WHERE x."key" > (w.buffer_id << 40 | w.low_seq) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 2 * coalesce(length(x.id), 0) + length(x.task_id) + length(x.agent_id) + 60 AS size FROM experiences x WHERE x."key" >= (w.buffer_id << 40 | w.middle) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 2 * coalesce(length(x.id), 0) + length(x.task_id) + length(x.agent_id) + 60 AS size FROM experiences x WHERE x."key" > w.buffer_id << 40 AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" DESC LIMIT 50)
        ) u) AS index_bytes
    FROM w WHERE NOT w.has_chunks
    UNION ALL
    SELECT w.buffer, 'chunks' AS relation, 'chunks' AS kind, (SELECT count(*) FROM chunks x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (
            SELECT * FROM (SELECT 120 + coalesce(length(CAST(x.id AS BLOB)), 0) + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.task_name AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.pre_agent AS BLOB)), 0) + coalesce(length(CAST(x.reward_t AS BLOB)), 0) + coalesce(length(CAST(x.adv_t AS BLOB)), 0) + coalesce(length(CAST(x.v_t AS BLOB)), 0) + coalesce(length(CAST(x.terminated AS BLOB)), 0) + coalesce(length(CAST(x.truncated AS BLOB)), 0) + coalesce(length(CAST(x.times AS BLOB)), 0) + coalesce(length(CAST(x.steps AS BLOB)), 0) + coalesce(length(CAST(x.initial_priority AS BLOB)), 0) + coalesce(length(CAST(x.fields AS BLOB)), 0) AS size FROM chunks x WHERE x."key" > (w.buffer_id << 40 | w.low_seq) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 120 + coalesce(length(CAST(x.id AS BLOB)), 0) + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.task_name AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.pre_agent AS BLOB)), 0) + coalesce(length(CAST(x.reward_t AS BLOB)), 0) + coalesce(length(CAST(x.adv_t AS BLOB)), 0) + coalesce(length(CAST(x.v_t AS BLOB)), 0) + coalesce(length(CAST(x.terminated AS BLOB)), 0) + coalesce(length(CAST(x.truncated AS BLOB)), 0) + coalesce(length(CAST(x.times AS BLOB)), 0) + coalesce(length(CAST(x.steps AS BLOB)), 0) + coalesce(length(CAST(x.initial_priority AS BLOB)), 0) + coalesce(length(CAST(x.fields AS BLOB)), 0) AS size FROM chunks x WHERE x."key" >= (w.buffer_id << 40 | w.middle) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 120 + coalesce(length(CAST(x.id AS BLOB)), 0) + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.task_name AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.pre_agent AS BLOB)), 0) + coalesce(length(CAST(x.reward_t AS BLOB)), 0) + coalesce(length(CAST(x.adv_t AS BLOB)), 0) + coalesce(length(CAST(x.v_t AS BLOB)), 0) + coalesce(length(CAST(x.terminated AS BLOB)), 0) + coalesce(length(CAST(x.truncated AS BLOB)), 0) + coalesce(length(CAST(x.times AS BLOB)), 0) + coalesce(length(CAST(x.steps AS BLOB)), 0) + coalesce(length(CAST(x.initial_priority AS BLOB)), 0) + coalesce(length(CAST(x.fields AS BLOB)), 0) AS size FROM chunks x WHERE x."key" > w.buffer_id << 40 AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" DESC LIMIT 50)
        ) u) AS mean_bytes,
        (SELECT avg(u.size) FROM (
            SELECT * FROM (SELECT length(x.id) + length(x.task_id) + length(x.agent_id) + 80 AS size FROM chunks x WHERE x."key" > (w.buffer_id << 40 | w.low_seq) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT length(x.id) + length(x.task_id) + length(x.agent_id) + 80 AS size FROM chunks x WHERE x."key" >= (w.buffer_id << 40 | w.middle) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT length(x.id) + length(x.task_id) + length(x.agent_id) + 80 AS size FROM chunks x WHERE x."key" > w.buffer_id << 40 AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" DESC LIMIT 50)
        ) u) AS index_bytes
    FROM w WHERE w.has_chunks
    UNION ALL
    SELECT w.buffer, 'chunk_data' AS relation, 'payloads' AS kind, (SELECT count(*) FROM chunks x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (
            SELECT * FROM (SELECT 60 + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.records AS BLOB)), 0) + coalesce(length(CAST(x.payloads AS BLOB)), 0) + coalesce(length(CAST(x.payload_arrays AS BLOB)), 0) + coalesce(length(CAST(x.offsets AS BLOB)), 0) + coalesce(length(CAST(x.rewards AS BLOB)), 0) + coalesce(length(CAST(x.ends AS BLOB)), 0) AS size FROM chunk_data x WHERE x."key" > (w.buffer_id << 40 | w.low_seq) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 60 + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.records AS BLOB)), 0) + coalesce(length(CAST(x.payloads AS BLOB)), 0) + coalesce(length(CAST(x.payload_arrays AS BLOB)), 0) + coalesce(length(CAST(x.offsets AS BLOB)), 0) + coalesce(length(CAST(x.rewards AS BLOB)), 0) + coalesce(length(CAST(x.ends AS BLOB)), 0) AS size FROM chunk_data x WHERE x."key" >= (w.buffer_id << 40 | w.middle) AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" LIMIT 50)
            UNION ALL SELECT * FROM (SELECT 60 + coalesce(length(CAST(x.task_id AS BLOB)), 0) + coalesce(length(CAST(x.agent_id AS BLOB)), 0) + coalesce(length(CAST(x.records AS BLOB)), 0) + coalesce(length(CAST(x.payloads AS BLOB)), 0) + coalesce(length(CAST(x.payload_arrays AS BLOB)), 0) + coalesce(length(CAST(x.offsets AS BLOB)), 0) + coalesce(length(CAST(x.rewards AS BLOB)), 0) + coalesce(length(CAST(x.ends AS BLOB)), 0) AS size FROM chunk_data x WHERE x."key" > w.buffer_id << 40 AND x."key" < (w.buffer_id + 1) << 40 ORDER BY x."key" DESC LIMIT 50)
        ) u) AS mean_bytes,
        16.0 AS index_bytes
    FROM w WHERE w.has_chunks
    UNION ALL
    SELECT w.buffer, 'payload_parts' AS relation, 'payloads' AS kind, (SELECT count(*) FROM payload_parts x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (SELECT coalesce(length(CAST(x.bytes AS BLOB)), 0) + 40 AS size FROM payload_parts x WHERE x.buffer_id = w.buffer_id ORDER BY x.seq DESC LIMIT 50) u) AS mean_bytes, 40.0 AS index_bytes
    FROM w
    UNION ALL
    SELECT w.buffer, 'messages' AS relation, 'payloads' AS kind, (SELECT count(*) FROM messages x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (SELECT coalesce(length(CAST(x.content AS BLOB)), 0) + 40 AS size FROM messages x WHERE x.buffer_id = w.buffer_id ORDER BY x.id DESC LIMIT 50) u) AS mean_bytes, 40.0 AS index_bytes
    FROM w
)
SELECT k.buffer, k.kind, CAST(sum(k.entries) AS integer) AS entries, CAST(sum(k.bytes) AS integer) AS bytes, CAST(1 AS boolean) AS approximate
FROM (
    SELECT t.buffer, t.kind, t.entries, t.entries * coalesce(t.mean_bytes, 0) AS bytes FROM t
    UNION ALL
    SELECT t.buffer, 'indexes', t.entries, t.entries * coalesce(t.index_bytes, 0) FROM t
) k
GROUP BY k.buffer, k.kind
