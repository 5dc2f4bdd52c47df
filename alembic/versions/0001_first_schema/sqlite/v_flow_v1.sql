CREATE VIEW v_flow AS
SELECT buffer, policy, inserted, sampled, CASE WHEN inserted > 0 THEN CAST(sampled AS REAL) / inserted END AS ratio,
    CASE policy WHEN 'RateLimiter' THEN inserted < min_size OR (inserted + 1) * spi - sampled <= max_diff WHEN 'RatioWindow' THEN NULL ELSE 1 END AS may_insert,
    CASE policy WHEN 'RateLimiter' THEN inserted >= min_size AND inserted * spi - sampled - 1 >= min_diff WHEN 'RatioWindow' THEN NULL ELSE 1 END AS may_sample,
    (SELECT count(*) FROM flow_waits w WHERE w.buffer_id = f.buffer_id AND w.role = 'insert' AND (julianday('now') - julianday(w.heartbeat_at)) * 86400.0 < 5) AS inserts_waiting,
    (SELECT count(*) FROM flow_waits w WHERE w.buffer_id = f.buffer_id AND w.role = 'sample' AND (julianday('now') - julianday(w.heartbeat_at)) * 86400.0 < 5) AS samples_waiting
FROM (
    SELECT b.id AS buffer_id, b.name AS buffer, b.flow ->> '$.limiter.type' AS policy,
        b.next_seq - 1 - coalesce(b.flow ->> '$.inserted_before', 0) AS inserted,
        CASE WHEN b.flow IS NULL THEN (SELECT coalesce(sum(n_sampled), 0) FROM flow WHERE buffer_id = b.id)
            ELSE (SELECT coalesce(sum(n_limited), 0) FROM flow WHERE buffer_id = b.id) - (b.flow ->> '$.sampled_before') END AS sampled,
        b.flow ->> '$.limiter.samples_per_insert' AS spi, b.flow ->> '$.limiter.min_size' AS min_size,
        b.flow ->> '$.min_diff' AS min_diff, b.flow ->> '$.max_diff' AS max_diff
    FROM buffers b
) f
