CREATE TRIGGER trg_experiences_number_v1 BEFORE INSERT ON experiences
FOR EACH ROW WHEN (NEW.seq IS NULL) EXECUTE FUNCTION sqlbuffer_number_row_v1()
