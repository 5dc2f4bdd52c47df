CREATE TRIGGER trg_chunks_before_delete_v1 BEFORE DELETE OR TRUNCATE ON chunks FOR EACH STATEMENT
WHEN (current_setting('sqlbuffer.internal', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION sqlbuffer_before_delete_v1()
