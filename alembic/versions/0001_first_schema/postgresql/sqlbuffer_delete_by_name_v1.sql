-- Deletes a step by its columns in the view, a row or a step of a chunk. The triggers of the
-- statement count. Steps that another transaction has deleted since are skipped.
CREATE FUNCTION sqlbuffer_delete_by_name_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    b buffers%ROWTYPE;
    n bigint;
BEGIN
    SELECT * INTO b FROM buffers WHERE name = OLD.buffer;
    IF b.has_chunks THEN
        IF NOT b.has_deleted THEN
            UPDATE buffers SET has_deleted = true WHERE id = b.id;
        END IF;
        INSERT INTO deleted_steps (buffer_id, seq)
        SELECT b.id, OLD.seq WHERE EXISTS (SELECT 1 FROM chunks c WHERE c.buffer_id = b.id AND c.first_seq = OLD.first_seq)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS n = ROW_COUNT;
    ELSE
        PERFORM set_config('sqlbuffer.internal', 'on', true);
        DELETE FROM experiences WHERE buffer_id = b.id AND seq = OLD.seq;
        GET DIAGNOSTICS n = ROW_COUNT;
        PERFORM set_config('sqlbuffer.internal', '', true);
    END IF;
    RETURN CASE WHEN n = 1 THEN OLD END;
END
$$
