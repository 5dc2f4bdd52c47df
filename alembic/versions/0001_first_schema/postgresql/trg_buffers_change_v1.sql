CREATE TRIGGER trg_buffers_change_v1 AFTER INSERT OR DELETE ON buffers
FOR EACH ROW EXECUTE FUNCTION sqlbuffer_after_buffer_v1()
