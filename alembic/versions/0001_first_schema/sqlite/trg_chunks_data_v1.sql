-- Deletes the bytes of a deleted chunk.
CREATE TRIGGER trg_chunks_data_v1 AFTER DELETE ON chunks
BEGIN
    DELETE FROM chunk_data WHERE key = OLD.key;
END
