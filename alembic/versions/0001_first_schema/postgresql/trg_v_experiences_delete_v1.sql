CREATE TRIGGER trg_v_experiences_delete_v1 INSTEAD OF DELETE ON v_experiences
FOR EACH ROW EXECUTE FUNCTION sqlbuffer_delete_by_name_v1()
