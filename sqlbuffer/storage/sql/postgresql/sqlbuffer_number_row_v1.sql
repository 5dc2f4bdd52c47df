-- Numbers rows of plain SQL. The transaction gets its id before the number is drawn: followers rely on that order.
CREATE FUNCTION sqlbuffer_number_row_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_current_xact_id();
    IF to_regclass('sqlbuffer_seq_' || NEW.buffer_id) IS NULL THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer with buffer_id %', NEW.buffer_id USING ERRCODE = 'foreign_key_violation';
    END IF;
    NEW.seq := nextval('sqlbuffer_seq_' || NEW.buffer_id);
    RETURN NEW;
END
$$
