-- The status of each episode, including abandoned ones: open, and without a write for the time that
-- the buffer allows. It is computed when it is read and not stored, so a writer that was only slow
-- can continue. Nothing is looked up for an episode that began within that time.
CREATE VIEW episode_states AS
SELECT p.id, p.buffer_id, p.n_rows,
    CASE WHEN p.status = 'open' AND p.started_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || b.open_timeout_s || ' seconds') AND coalesce(
        (SELECT c.inserted_at FROM chunks c WHERE c.buffer_id = p.buffer_id AND c.episode_id = p.id
         ORDER BY c.t DESC LIMIT 1),
        (SELECT e.inserted_at FROM experiences e WHERE e.buffer_id = p.buffer_id AND e.episode_id = p.id
         ORDER BY e.t DESC LIMIT 1),
        p.started_at
    ) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || b.open_timeout_s || ' seconds') THEN 'abandoned' ELSE p.status END AS status
FROM episodes p
JOIN buffers b ON b.id = p.buffer_id
