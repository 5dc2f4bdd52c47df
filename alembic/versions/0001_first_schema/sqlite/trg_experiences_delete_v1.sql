-- Counts deletions that are not evictions (len() relies on the count), and logs those of plain SQL
-- row by row. The library logs its own deletions. Evicted tasks and episodes are logged for
-- followers alone. Rows of priorities and uses that eviction by row leaves are below the window,
-- and are deleted later.
CREATE TRIGGER trg_experiences_delete_v1 AFTER DELETE ON experiences
WHEN (
    SELECT evict_unit <> 'row'
        OR OLD.seq > max(low_seq, coalesce((SELECT max(seq) FROM experiences WHERE buffer_id = OLD.buffer_id) - max_capacity, 0))
    FROM buffers WHERE id = OLD.buffer_id
)
BEGIN
    UPDATE buffers
    SET deletions = deletions + 1,
        low_seq = CASE WHEN evict_unit = 'row' AND max_capacity IS NOT NULL THEN max(
            low_seq,
            OLD.seq - max_capacity,
            coalesce((SELECT max(seq) FROM experiences WHERE buffer_id = OLD.buffer_id), 0) - max_capacity
        ) ELSE low_seq END,
        live_rows = live_rows - (evict_unit <> 'row'),
        live_episodes = live_episodes - (SELECT count(*) FROM episodes WHERE id = OLD.episode_id AND n_rows = 1)
    WHERE id = OLD.buffer_id;
    UPDATE episodes SET n_rows = n_rows - 1 WHERE id = OLD.episode_id AND n_rows > 0;
    UPDATE tasks SET n_rows = n_rows - 1 WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id;
    DELETE FROM tasks WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id AND n_rows <= 0;
    DELETE FROM priorities WHERE buffer_id = OLD.buffer_id AND seq = OLD.seq;
    DELETE FROM priority_blocks
    WHERE buffer_id = OLD.buffer_id AND block = OLD.seq / (SELECT block_size FROM buffers WHERE id = OLD.buffer_id);
    UPDATE row_blocks SET n_rows = n_rows - 1 WHERE buffer_id = OLD.buffer_id AND block = OLD.seq / 4096;
    DELETE FROM uses WHERE buffer_id = OLD.buffer_id AND seq = OLD.seq;
    INSERT INTO change_log (buffer_id, kind, seqs)
    SELECT OLD.buffer_id, 'deleted', json_array(OLD.seq) FROM buffers
    WHERE id = OLD.buffer_id AND NOT is_deleting AND (evict_unit = 'row' OR has_followers);
END
