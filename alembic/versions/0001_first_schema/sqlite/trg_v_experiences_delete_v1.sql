-- Deletes a step by its columns in the view, a row or a step of a chunk. The triggers of the tables
-- count.
CREATE TRIGGER trg_v_experiences_delete_v1 INSTEAD OF DELETE ON v_experiences
BEGIN
    DELETE FROM experiences
    WHERE "key" = (SELECT id << 40 | OLD.seq FROM buffers WHERE name = OLD.buffer AND NOT has_chunks);
    INSERT INTO deleted_steps (buffer_id, seq)
    SELECT id, OLD.seq FROM buffers WHERE name = OLD.buffer AND has_chunks;
END
