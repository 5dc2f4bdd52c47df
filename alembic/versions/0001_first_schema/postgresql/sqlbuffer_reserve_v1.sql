-- Reserves consecutive numbers of a buffer, and returns the first one. All numbers come from here.
-- Locks the buffer as a writer until the transaction ends, before the number is taken. A reader
-- that reads the sequence first, and then the holders of this lock, knows which numbers are
-- settled.
CREATE FUNCTION sqlbuffer_reserve_v1(p_buffer_id integer, p_n bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    numbers regclass;
    first_seq bigint;
BEGIN
    IF p_n < 1 THEN
        RAISE EXCEPTION 'sqlbuffer: cannot reserve % numbers', p_n USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock_shared(1397836866, p_buffer_id);
    numbers := to_regclass('sqlbuffer_seq_' || p_buffer_id);
    IF numbers IS NULL THEN
        RAISE EXCEPTION 'sqlbuffer: no buffer with buffer_id %', p_buffer_id USING ERRCODE = 'foreign_key_violation';
    END IF;
    -- One transaction at a time, from the first number to the last. The exception at the end undoes
    -- only the lock of this block, never a sequence. A lock of the session would outlive a
    -- statement that is cancelled at the wrong moment.
    BEGIN
        PERFORM pg_advisory_xact_lock(1397836867, p_buffer_id);
        first_seq := nextval(numbers);
        IF p_n > 1 THEN
            PERFORM setval(numbers, first_seq + p_n - 1);
        END IF;
        RAISE SQLSTATE 'SBOUT';
    EXCEPTION WHEN SQLSTATE 'SBOUT' THEN
        NULL;
    END;
    RETURN first_seq;
END
$$
