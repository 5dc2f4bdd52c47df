CREATE TRIGGER trg_v_experiences_before_delete_v1 BEFORE DELETE ON v_experiences
FOR EACH STATEMENT EXECUTE FUNCTION sqlbuffer_before_delete_v1()
