CREATE TRIGGER trg_chunks_after_delete_v1 AFTER DELETE OR TRUNCATE ON chunks FOR EACH STATEMENT
WHEN (current_setting('sqlbuffer.internal', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION sqlbuffer_after_delete_v1()
