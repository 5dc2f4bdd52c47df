CREATE TRIGGER trg_experiences_insert_v1 AFTER INSERT ON experiences
REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sqlbuffer_after_insert_v1()
