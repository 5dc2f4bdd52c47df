CREATE VIEW v_windows AS
SELECT buffer_id, buffer, max_capacity, max_episodes, evict_unit, deletions, live_rows, clock, session_id, has_labels, has_quarantine, has_deleted,
    high_seq,
    CASE WHEN evict_unit = 'row' AND max_capacity IS NOT NULL THEN max(low_seq, high_seq - max_capacity) ELSE low_seq END AS low_seq, n_added
FROM (
    SELECT id AS buffer_id, name AS buffer, max_capacity, max_episodes, evict_unit, deletions, live_rows, low_seq, clock, session_id,
        has_labels, has_quarantine, has_deleted, n_added,
        coalesce(CASE WHEN has_chunks
            THEN (SELECT first_seq + n_steps - 1 FROM chunks
                  WHERE key = (SELECT max(key) FROM chunks WHERE key > buffers.id << 40 AND key < (buffers.id + 1) << 40))
            ELSE (SELECT max(seq) FROM experiences WHERE buffer_id = buffers.id) END, 0) AS high_seq
    FROM buffers
)
