-- Numbers rows of plain SQL, and gives them the largest priority ever set.
CREATE FUNCTION sqlbuffer_number_row_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    NEW.seq := sqlbuffer_reserve_v1(NEW.buffer_id, 1);
    IF NEW.initial_priority IS NULL THEN
        SELECT coalesce(max_priority, 1.0) INTO NEW.initial_priority FROM buffers WHERE id = NEW.buffer_id AND has_priorities;
    END IF;
    RETURN NEW;
END
$$
