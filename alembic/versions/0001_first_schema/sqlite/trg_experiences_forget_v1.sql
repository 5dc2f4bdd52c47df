-- Deletes the rows of a deleted row in the narrow tables that eviction cleans immediately.
CREATE TRIGGER trg_experiences_forget_v1 AFTER DELETE ON experiences
WHEN (SELECT has_queue OR has_labels OR has_quarantine OR has_parts OR has_changes FROM buffers WHERE id = OLD.buffer_id)
BEGIN
    DELETE FROM queue_items WHERE buffer_id = OLD.buffer_id AND seq = OLD.seq;
    DELETE FROM labels WHERE "key" = OLD."key";
    DELETE FROM label_history WHERE buffer_id = OLD.buffer_id AND seq = OLD.seq;
    DELETE FROM quarantine WHERE buffer_id = OLD.buffer_id AND seq = OLD.seq;
    DELETE FROM payload_parts WHERE buffer_id = OLD.buffer_id AND seq = OLD.seq;
    DELETE FROM payload_changes WHERE buffer_id = OLD.buffer_id AND seq = OLD.seq;
END
