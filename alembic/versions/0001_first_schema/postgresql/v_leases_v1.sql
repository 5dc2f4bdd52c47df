CREATE VIEW v_leases AS
SELECT b.name AS buffer, l.id AS lease_id, l.n_rows AS rows, l.claimed_at, l.leased_until,
    l.leased_until > clock_timestamp() AS alive
FROM leases l
JOIN buffers b ON b.id = l.buffer_id
WHERE NOT l.acknowledged
