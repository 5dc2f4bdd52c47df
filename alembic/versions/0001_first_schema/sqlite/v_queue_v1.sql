CREATE VIEW v_queue AS
SELECT w.buffer, q.task_id, count(*) AS rows,
    sum(CASE WHEN q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') THEN 0 ELSE 1 END) AS free,
    sum(CASE WHEN q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') THEN 1 ELSE 0 END) AS leased,
    sum(q.n_uses) AS uses, min(q.inserted_at) AS first_at, max(q.inserted_at) AS last_at
FROM v_windows w
JOIN queue_items q ON q.buffer_id = w.buffer_id AND q.seq > w.low_seq AND NOT q.used_up
GROUP BY w.buffer, q.task_id
