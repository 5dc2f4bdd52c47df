CREATE TRIGGER trg_v_experiences_after_delete_v1 AFTER DELETE ON v_experiences
FOR EACH STATEMENT EXECUTE FUNCTION sqlbuffer_after_delete_v1()
