-- Follows a deleted chunk into its bytes.
CREATE TRIGGER trg_chunks_data_v1 AFTER DELETE ON chunks
BEGIN
    DELETE FROM chunk_data WHERE key = OLD.key;
END
