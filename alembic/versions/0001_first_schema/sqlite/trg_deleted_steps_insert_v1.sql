-- Counts the deletion of a step inside a chunk, as trg_experiences_delete_v1 does for a row. Cleans
-- the narrow tables, and logs the deletion unless the library does. A chunk without steps left is
-- deleted as a whole.
CREATE TRIGGER trg_deleted_steps_insert_v1 AFTER INSERT ON deleted_steps
BEGIN
    UPDATE buffers
    SET deletions = deletions + 1, has_deleted = 1,
        low_seq = CASE WHEN evict_unit = 'row' AND max_capacity IS NOT NULL THEN max(
            low_seq, (SELECT high_seq FROM v_windows WHERE buffer_id = NEW.buffer_id) - max_capacity
        ) ELSE low_seq END,
        live_rows = live_rows - (evict_unit <> 'row'),
        live_episodes = live_episodes - (SELECT count(*) FROM episodes WHERE n_rows = 1 AND id = (
            SELECT c.episode_id FROM chunks c WHERE c.buffer_id = NEW.buffer_id AND c.first_seq BETWEEN NEW.seq - 255 AND NEW.seq
            ORDER BY c.first_seq DESC LIMIT 1))
    WHERE id = NEW.buffer_id;
    UPDATE episodes SET n_rows = n_rows - 1 WHERE n_rows > 0 AND id = (
        SELECT c.episode_id FROM chunks c WHERE c.buffer_id = NEW.buffer_id AND c.first_seq BETWEEN NEW.seq - 255 AND NEW.seq
        ORDER BY c.first_seq DESC LIMIT 1);
    UPDATE tasks SET n_rows = n_rows - 1 WHERE buffer_id = NEW.buffer_id AND task_id = (
        SELECT c.task_id FROM chunks c WHERE c.buffer_id = NEW.buffer_id AND c.first_seq BETWEEN NEW.seq - 255 AND NEW.seq
        ORDER BY c.first_seq DESC LIMIT 1);
    DELETE FROM tasks WHERE buffer_id = NEW.buffer_id AND n_rows <= 0 AND task_id = (
        SELECT c.task_id FROM chunks c WHERE c.buffer_id = NEW.buffer_id AND c.first_seq BETWEEN NEW.seq - 255 AND NEW.seq
        ORDER BY c.first_seq DESC LIMIT 1);
    DELETE FROM priorities WHERE buffer_id = NEW.buffer_id AND seq = NEW.seq;
    DELETE FROM priority_blocks
    WHERE buffer_id = NEW.buffer_id AND block = NEW.seq / (SELECT block_size FROM buffers WHERE id = NEW.buffer_id);
    UPDATE row_blocks SET n_rows = n_rows - 1 WHERE buffer_id = NEW.buffer_id AND block = NEW.seq / 4096;
    DELETE FROM uses WHERE buffer_id = NEW.buffer_id AND seq = NEW.seq;
    DELETE FROM queue_items WHERE buffer_id = NEW.buffer_id AND seq = NEW.seq;
    DELETE FROM labels WHERE "key" = (NEW.buffer_id << 40 | NEW.seq);
    DELETE FROM label_history WHERE buffer_id = NEW.buffer_id AND seq = NEW.seq;
    DELETE FROM quarantine WHERE buffer_id = NEW.buffer_id AND seq = NEW.seq;
    DELETE FROM payload_changes WHERE buffer_id = NEW.buffer_id AND seq = NEW.seq;
    DELETE FROM replaced_steps WHERE buffer_id = NEW.buffer_id AND seq = NEW.seq;
    INSERT INTO change_log (buffer_id, kind, seqs)
    SELECT NEW.buffer_id, 'deleted', json_array(NEW.seq) FROM buffers
    WHERE id = NEW.buffer_id AND NOT is_deleting AND (evict_unit = 'row' OR has_followers);
    DELETE FROM chunks
    WHERE "key" = (SELECT max(k."key") FROM chunks k WHERE k."key" > NEW.buffer_id << 40 AND k."key" <= (NEW.buffer_id << 40) + NEW.seq)
      AND n_steps = (
          SELECT count(*) FROM deleted_steps x
          WHERE x.buffer_id = NEW.buffer_id AND x.seq >= chunks.first_seq AND x.seq < chunks.first_seq + chunks.n_steps
      );
END
