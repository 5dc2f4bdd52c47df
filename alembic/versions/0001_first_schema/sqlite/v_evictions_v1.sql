CREATE VIEW v_evictions AS
SELECT b.name AS buffer, strftime('%Y-%m-%dT%H:%M:%fZ', e.hour * 3600, 'unixepoch') AS hour, e.reason, sum(e.n_steps) AS steps
FROM eviction_counts e JOIN buffers b ON b.id = e.buffer_id
GROUP BY b.name, e.hour, e.reason
