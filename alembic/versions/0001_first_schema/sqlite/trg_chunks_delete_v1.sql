-- Deletes the narrow rows of a deleted chunk, and counts and logs it as trg_experiences_delete_v1
-- does for a row. Steps in deleted_steps were counted before. Rows of priorities and uses that
-- eviction by row leaves are below the window, and are deleted later: if the other tables are
-- empty, there is nothing to delete.
CREATE TRIGGER trg_chunks_delete_v1 AFTER DELETE ON chunks
WHEN coalesce((
    SELECT evict_unit <> 'row'
        OR has_queue OR has_labels OR has_quarantine OR has_changes OR has_step_ids OR has_deleted
        OR OLD.first_seq + OLD.n_steps - 1 > max(low_seq, coalesce((
            SELECT first_seq + n_steps - 1 FROM chunks
            WHERE "key" > OLD.buffer_id << 40 AND "key" < (OLD.buffer_id + 1) << 40 ORDER BY "key" DESC LIMIT 1) - max_capacity, 0))
    FROM buffers WHERE id = OLD.buffer_id), true)
BEGIN
    -- First: the next statements raise the lower end of the window.
    INSERT INTO change_log (buffer_id, kind, seqs)
    SELECT OLD.buffer_id, 'deleted', (
        SELECT json_group_array(OLD.first_seq + n.place) FROM chunk_places n WHERE n.place < OLD.n_steps)
    FROM buffers WHERE id = OLD.buffer_id AND NOT is_deleting AND CASE WHEN evict_unit = 'row' THEN (
        SELECT OLD.first_seq + OLD.n_steps - 1 > w.low_seq FROM v_windows w WHERE w.buffer_id = OLD.buffer_id)
    ELSE has_followers END;
    DELETE FROM priority_blocks
    WHERE buffer_id = OLD.buffer_id
      AND block >= OLD.first_seq / (SELECT block_size FROM buffers WHERE id = OLD.buffer_id)
      AND block <= (OLD.first_seq + OLD.n_steps - 1) / (SELECT block_size FROM buffers WHERE id = OLD.buffer_id)
      AND (
    SELECT evict_unit <> 'row' OR OLD.first_seq + OLD.n_steps - 1 > low_seq FROM v_windows WHERE buffer_id = OLD.buffer_id);
    DELETE FROM priorities WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps AND (
    SELECT evict_unit <> 'row' OR OLD.first_seq + OLD.n_steps - 1 > low_seq FROM v_windows WHERE buffer_id = OLD.buffer_id);
    DELETE FROM uses WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps AND (
    SELECT evict_unit <> 'row' OR OLD.first_seq + OLD.n_steps - 1 > low_seq FROM v_windows WHERE buffer_id = OLD.buffer_id);
    -- The next count counts these blocks again.
    DELETE FROM row_blocks WHERE buffer_id = OLD.buffer_id AND block >= OLD.first_seq / 4096 AND (
    SELECT evict_unit <> 'row' OR OLD.first_seq + OLD.n_steps - 1 > low_seq FROM v_windows WHERE buffer_id = OLD.buffer_id);
    UPDATE buffers
    SET deletions = deletions + 1,
        low_seq = CASE WHEN evict_unit = 'row' AND max_capacity IS NOT NULL THEN max(
            low_seq, OLD.first_seq + OLD.n_steps - 1 - max_capacity,
            (SELECT low_seq FROM v_windows WHERE buffer_id = OLD.buffer_id)
        ) ELSE low_seq END,
        live_rows = live_rows - (evict_unit <> 'row') * (OLD.n_steps - (
        SELECT count(*) FROM deleted_steps x
        WHERE x.buffer_id = OLD.buffer_id AND x.seq >= OLD.first_seq AND x.seq < OLD.first_seq + OLD.n_steps)),
        live_episodes = live_episodes - (SELECT count(*) FROM episodes WHERE id = OLD.episode_id AND n_rows > 0 AND n_rows = OLD.n_steps - (
        SELECT count(*) FROM deleted_steps x
        WHERE x.buffer_id = OLD.buffer_id AND x.seq >= OLD.first_seq AND x.seq < OLD.first_seq + OLD.n_steps))
    WHERE id = OLD.buffer_id AND (
    SELECT evict_unit <> 'row' OR OLD.first_seq + OLD.n_steps - 1 > low_seq FROM v_windows WHERE buffer_id = OLD.buffer_id);
    UPDATE episodes SET n_rows = max(0, n_rows - (OLD.n_steps - (
        SELECT count(*) FROM deleted_steps x
        WHERE x.buffer_id = OLD.buffer_id AND x.seq >= OLD.first_seq AND x.seq < OLD.first_seq + OLD.n_steps))) WHERE id = OLD.episode_id AND n_rows > 0;
    UPDATE tasks SET n_rows = n_rows - (OLD.n_steps - (
        SELECT count(*) FROM deleted_steps x
        WHERE x.buffer_id = OLD.buffer_id AND x.seq >= OLD.first_seq AND x.seq < OLD.first_seq + OLD.n_steps)) WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id;
    DELETE FROM tasks WHERE buffer_id = OLD.buffer_id AND task_id = OLD.task_id AND n_rows <= 0;
    DELETE FROM step_ids WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps;
    DELETE FROM deleted_steps WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps;
    DELETE FROM queue_items WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps;
    DELETE FROM labels WHERE "key" >= OLD."key" AND "key" < OLD."key" + OLD.n_steps;
    DELETE FROM label_history WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps;
    DELETE FROM quarantine WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps;
    DELETE FROM payload_changes WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps;
    DELETE FROM replaced_steps WHERE buffer_id = OLD.buffer_id AND seq >= OLD.first_seq AND seq < OLD.first_seq + OLD.n_steps;
END
