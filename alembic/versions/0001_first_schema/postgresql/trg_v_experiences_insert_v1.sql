CREATE TRIGGER trg_v_experiences_insert_v1 INSTEAD OF INSERT ON v_experiences
FOR EACH ROW EXECUTE FUNCTION sqlbuffer_insert_by_name_v1()
