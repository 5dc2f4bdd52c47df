-- The size of each table and of its indexes on the disk, divided among the buffers: indexes by their
-- entries, tables also by the bytes of an entry. These are the mean of up to 150: the oldest, the
-- newest, and those in the middle.
CREATE VIEW v_storage AS
WITH w AS MATERIALIZED (
    SELECT v.buffer_id, v.buffer, v.low_seq, (v.low_seq + v.high_seq) / 2 AS middle, b.has_chunks
    FROM v_windows v
    JOIN buffers b ON b.id = v.buffer_id
), t AS MATERIALIZED (
    SELECT w.buffer, 'experiences' AS relation, 'rows' AS kind, (SELECT v.rows FROM v_buffers v WHERE v.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (
            (SELECT 120 + coalesce(pg_column_size(x.id), 0) + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.task_name), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.pre_agent), 0) + coalesce(pg_column_size(x.state), 0) + coalesce(pg_column_size(x.actions), 0) + coalesce(pg_column_size(x.messages), 0) + coalesce(pg_column_size(x.extra), 0) + coalesce(pg_column_size(x.fields), 0) + coalesce(pg_column_size(x.arrays), 0) AS size FROM experiences x WHERE x.buffer_id = w.buffer_id AND x.seq > w.low_seq ORDER BY x.seq LIMIT 50)
            UNION ALL (SELECT 120 + coalesce(pg_column_size(x.id), 0) + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.task_name), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.pre_agent), 0) + coalesce(pg_column_size(x.state), 0) + coalesce(pg_column_size(x.actions), 0) + coalesce(pg_column_size(x.messages), 0) + coalesce(pg_column_size(x.extra), 0) + coalesce(pg_column_size(x.fields), 0) + coalesce(pg_column_size(x.arrays), 0) AS size FROM experiences x WHERE x.buffer_id = w.buffer_id AND x.seq >= w.middle ORDER BY x.seq LIMIT 50)
            UNION ALL (SELECT 120 + coalesce(pg_column_size(x.id), 0) + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.task_name), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.pre_agent), 0) + coalesce(pg_column_size(x.state), 0) + coalesce(pg_column_size(x.actions), 0) + coalesce(pg_column_size(x.messages), 0) + coalesce(pg_column_size(x.extra), 0) + coalesce(pg_column_size(x.fields), 0) + coalesce(pg_column_size(x.arrays), 0) AS size FROM experiences x WHERE x.buffer_id = w.buffer_id ORDER BY x.seq DESC LIMIT 50)
        ) u) AS mean_bytes
    FROM w WHERE NOT w.has_chunks
    UNION ALL
    SELECT w.buffer, 'chunks' AS relation, 'chunks' AS kind, (SELECT count(*) FROM chunks x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (
            (SELECT 120 + coalesce(pg_column_size(x.id), 0) + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.task_name), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.pre_agent), 0) + coalesce(pg_column_size(x.reward_t), 0) + coalesce(pg_column_size(x.adv_t), 0) + coalesce(pg_column_size(x.v_t), 0) + coalesce(pg_column_size(x.terminated), 0) + coalesce(pg_column_size(x.truncated), 0) + coalesce(pg_column_size(x.times), 0) + coalesce(pg_column_size(x.steps), 0) + coalesce(pg_column_size(x.initial_priority), 0) + coalesce(pg_column_size(x.fields), 0) AS size FROM chunks x WHERE x.buffer_id = w.buffer_id AND x.first_seq > w.low_seq ORDER BY x.first_seq LIMIT 50)
            UNION ALL (SELECT 120 + coalesce(pg_column_size(x.id), 0) + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.task_name), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.pre_agent), 0) + coalesce(pg_column_size(x.reward_t), 0) + coalesce(pg_column_size(x.adv_t), 0) + coalesce(pg_column_size(x.v_t), 0) + coalesce(pg_column_size(x.terminated), 0) + coalesce(pg_column_size(x.truncated), 0) + coalesce(pg_column_size(x.times), 0) + coalesce(pg_column_size(x.steps), 0) + coalesce(pg_column_size(x.initial_priority), 0) + coalesce(pg_column_size(x.fields), 0) AS size FROM chunks x WHERE x.buffer_id = w.buffer_id AND x.first_seq >= w.middle ORDER BY x.first_seq LIMIT 50)
            UNION ALL (SELECT 120 + coalesce(pg_column_size(x.id), 0) + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.task_name), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.pre_agent), 0) + coalesce(pg_column_size(x.reward_t), 0) + coalesce(pg_column_size(x.adv_t), 0) + coalesce(pg_column_size(x.v_t), 0) + coalesce(pg_column_size(x.terminated), 0) + coalesce(pg_column_size(x.truncated), 0) + coalesce(pg_column_size(x.times), 0) + coalesce(pg_column_size(x.steps), 0) + coalesce(pg_column_size(x.initial_priority), 0) + coalesce(pg_column_size(x.fields), 0) AS size FROM chunks x WHERE x.buffer_id = w.buffer_id ORDER BY x.first_seq DESC LIMIT 50)
        ) u) AS mean_bytes
    FROM w WHERE w.has_chunks
    UNION ALL
    SELECT w.buffer, 'chunk_data' AS relation, 'payloads' AS kind, (SELECT count(*) FROM chunks x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (
            (SELECT 60 + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.records), 0) + coalesce(pg_column_size(x.payloads), 0) + coalesce(pg_column_size(x.payload_arrays), 0) + coalesce(pg_column_size(x.offsets), 0) + coalesce(pg_column_size(x.rewards), 0) + coalesce(pg_column_size(x.ends), 0) AS size FROM chunk_data x WHERE x.buffer_id = w.buffer_id AND x.first_seq > w.low_seq ORDER BY x.first_seq LIMIT 50)
            UNION ALL (SELECT 60 + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.records), 0) + coalesce(pg_column_size(x.payloads), 0) + coalesce(pg_column_size(x.payload_arrays), 0) + coalesce(pg_column_size(x.offsets), 0) + coalesce(pg_column_size(x.rewards), 0) + coalesce(pg_column_size(x.ends), 0) AS size FROM chunk_data x WHERE x.buffer_id = w.buffer_id AND x.first_seq >= w.middle ORDER BY x.first_seq LIMIT 50)
            UNION ALL (SELECT 60 + coalesce(pg_column_size(x.task_id), 0) + coalesce(pg_column_size(x.agent_id), 0) + coalesce(pg_column_size(x.records), 0) + coalesce(pg_column_size(x.payloads), 0) + coalesce(pg_column_size(x.payload_arrays), 0) + coalesce(pg_column_size(x.offsets), 0) + coalesce(pg_column_size(x.rewards), 0) + coalesce(pg_column_size(x.ends), 0) AS size FROM chunk_data x WHERE x.buffer_id = w.buffer_id ORDER BY x.first_seq DESC LIMIT 50)
        ) u) AS mean_bytes
    FROM w WHERE w.has_chunks
    UNION ALL
    SELECT w.buffer, 'payload_parts' AS relation, 'payloads' AS kind, (SELECT count(*) FROM payload_parts x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (SELECT coalesce(pg_column_size(x.bytes), 0) + 40 AS size FROM payload_parts x WHERE x.buffer_id = w.buffer_id ORDER BY x.seq DESC LIMIT 50) u) AS mean_bytes
    FROM w
    UNION ALL
    SELECT w.buffer, 'messages' AS relation, 'payloads' AS kind, (SELECT count(*) FROM messages x WHERE x.buffer_id = w.buffer_id) AS entries,
        (SELECT avg(u.size) FROM (SELECT coalesce(pg_column_size(x.content), 0) + 40 AS size FROM messages x WHERE x.buffer_id = w.buffer_id ORDER BY x.id DESC LIMIT 50) u) AS mean_bytes
    FROM w
), s AS MATERIALIZED (
    SELECT t.buffer, t.kind, t.entries, z.table_bytes * (t.entries * t.mean_bytes / nullif(sum(t.entries * t.mean_bytes) OVER r, 0)) AS table_bytes,
        z.index_bytes * (t.entries / nullif(sum(t.entries) OVER r, 0)) AS index_bytes, count(*) FILTER (WHERE t.entries > 0) OVER r > 1 AS is_shared
    FROM t
    JOIN (
        SELECT c.name, pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes
        FROM (VALUES ('experiences', 'experiences'::regclass), ('chunks', 'chunks'::regclass), ('chunk_data', 'chunk_data'::regclass),
            ('payload_parts', 'payload_parts'::regclass), ('messages', 'messages'::regclass)) AS c(name, oid)
    ) z ON z.name = t.relation
    WINDOW r AS (PARTITION BY t.relation)
)
SELECT k.buffer, k.kind, sum(k.entries)::bigint AS entries, coalesce(sum(k.bytes), 0)::bigint AS bytes, bool_or(k.is_shared AND k.entries > 0) AS approximate
FROM (
    SELECT s.buffer, s.kind, s.entries, s.table_bytes AS bytes, s.is_shared FROM s
    UNION ALL
    SELECT s.buffer, 'indexes', s.entries, s.index_bytes, s.is_shared FROM s
) k
GROUP BY k.buffer, k.kind
