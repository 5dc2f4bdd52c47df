CREATE TRIGGER trg_samples_insert_v1 BEFORE INSERT ON samples
FOR EACH ROW WHEN (NEW.model_versions IS NULL) EXECUTE FUNCTION sqlbuffer_note_versions_v1()
