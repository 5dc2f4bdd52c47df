-- First in, first out: what has left the window of its buffer is deleted.
CREATE TRIGGER trg_experiences_insert_v1 AFTER INSERT ON experiences
BEGIN
    SELECT RAISE(ABORT, 'sqlbuffer: no buffer with this buffer_id')
    WHERE NOT EXISTS (SELECT 1 FROM buffers WHERE id = NEW.buffer_id);
    UPDATE buffers SET next_seq = NEW.seq + 1 WHERE id = NEW.buffer_id AND next_seq <= NEW.seq;
    DELETE FROM experiences
    WHERE buffer_id = NEW.buffer_id
      AND seq <= NEW.seq - (SELECT max_capacity FROM buffers WHERE id = NEW.buffer_id AND evict_unit = 'row' AND NOT has_queue);
END
