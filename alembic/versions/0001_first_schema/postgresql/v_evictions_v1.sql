CREATE VIEW v_evictions AS
SELECT b.name AS buffer, to_timestamp(e.hour * 3600) AS hour, e.reason, sum(e.n_steps)::bigint AS steps
FROM eviction_counts e JOIN buffers b ON b.id = e.buffer_id
GROUP BY b.name, e.hour, e.reason
