CREATE VIEW v_checkpoints AS
SELECT b.name AS buffer, c.consumer, c.name AS checkpoint, c.created_at, coalesce(k.leases, 0) AS leases, coalesce(k.rows, 0) AS rows
FROM checkpoints c
JOIN buffers b ON b.id = c.buffer_id
LEFT JOIN (
    SELECT buffer_id, consumer, checkpoint, count(*) AS leases, sum(n_rows) AS rows
    FROM leases WHERE acknowledged AND leased_until = '9999-01-01T00:00:00.000Z' GROUP BY buffer_id, consumer, checkpoint
) k ON k.buffer_id = c.buffer_id AND k.consumer = c.consumer AND k.checkpoint = c.number
