CREATE VIEW v_flow AS
SELECT buffer, policy, inserted, sampled, CASE WHEN inserted > 0 THEN sampled::double precision / inserted END AS ratio,
    CASE policy WHEN 'RateLimiter' THEN inserted < min_size OR (inserted + 1) * spi - sampled <= max_diff WHEN 'RatioWindow' THEN NULL ELSE true END AS may_insert,
    CASE policy WHEN 'RateLimiter' THEN inserted >= min_size AND inserted * spi - sampled - 1 >= min_diff WHEN 'RatioWindow' THEN NULL ELSE true END AS may_sample,
    (SELECT count(*) FROM flow_waits w WHERE w.buffer_id = f.buffer_id AND w.role = 'insert' AND w.heartbeat_at > clock_timestamp() - interval '5 seconds') AS inserts_waiting,
    (SELECT count(*) FROM flow_waits w WHERE w.buffer_id = f.buffer_id AND w.role = 'sample' AND w.heartbeat_at > clock_timestamp() - interval '5 seconds') AS samples_waiting
FROM (
    SELECT b.id AS buffer_id, b.name AS buffer, b.flow #>> '{limiter,type}' AS policy,
        -- A standby sees up to 32 numbers ahead.
        CASE WHEN pg_is_in_recovery()
            THEN coalesce(greatest(pg_sequence_last_value(s.oid) - 32, (SELECT e.seq FROM experiences e WHERE e.buffer_id = b.id ORDER BY e.seq DESC LIMIT 1)), 0)
            ELSE coalesce(pg_sequence_last_value(s.oid), 0) END - coalesce((b.flow ->> 'inserted_before')::bigint, 0) AS inserted,
        (CASE WHEN b.flow IS NULL THEN (SELECT coalesce(sum(n_sampled), 0) FROM flow WHERE buffer_id = b.id)
            ELSE (SELECT coalesce(sum(n_limited), 0) FROM flow WHERE buffer_id = b.id) - (b.flow ->> 'sampled_before')::bigint END)::bigint AS sampled,
        (b.flow #>> '{limiter,samples_per_insert}')::double precision AS spi, (b.flow #>> '{limiter,min_size}')::bigint AS min_size,
        (b.flow ->> 'min_diff')::double precision AS min_diff, (b.flow ->> 'max_diff')::double precision AS max_diff
    FROM buffers b
    JOIN pg_class home ON home.oid = 'buffers'::regclass
    LEFT JOIN pg_class s ON s.relnamespace = home.relnamespace AND s.relname = 'sqlbuffer_seq_' || b.id AND s.relkind = 'S'
) f
