-- Numbers rows of plain SQL, and gives them the largest priority ever set.
-- Locks the buffer before it draws the number, as sqlbuffer_reserve_seqs_v1 does.
CREATE FUNCTION sqlbuffer_number_row_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1397836866, NEW.buffer_id);
    IF to_regclass('sqlbuffer_seq_' || NEW.buffer_id) IS NULL THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer with buffer_id %', NEW.buffer_id USING ERRCODE = 'foreign_key_violation';
    END IF;
    NEW.seq := nextval('sqlbuffer_seq_' || NEW.buffer_id);
    IF NEW.initial_priority IS NULL THEN
        SELECT coalesce(max_priority, 1.0) INTO NEW.initial_priority FROM buffers WHERE id = NEW.buffer_id AND has_priorities;
    END IF;
    RETURN NEW;
END
$$
