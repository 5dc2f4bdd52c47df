CREATE VIEW v_leases AS
SELECT b.name AS buffer, l.id AS lease_id, l.n_rows AS rows, l.claimed_at,
    CASE WHEN NOT l.acknowledged THEN l.leased_until END AS leased_until,
    l.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AS alive, l.consumer, l.batch_id, l.acknowledged AS kept, c.name AS checkpoint
FROM leases l
JOIN buffers b ON b.id = l.buffer_id
LEFT JOIN checkpoints c ON c.buffer_id = l.buffer_id AND c.consumer = l.consumer AND c.number = l.checkpoint
WHERE NOT l.acknowledged OR l.leased_until = '9999-01-01T00:00:00.000Z'
