-- Every buffer has its own sequence, instead of a counter row that writers queue on.
CREATE FUNCTION sqlbuffer_after_buffer_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        EXECUTE format('CREATE SEQUENCE %I', 'sqlbuffer_seq_' || NEW.id);
        -- len() reads last_value with the rights of any role that may read the rows.
        EXECUTE format('GRANT SELECT ON SEQUENCE %I TO PUBLIC', 'sqlbuffer_seq_' || NEW.id);
    ELSE
        EXECUTE format('DROP SEQUENCE IF EXISTS %I', 'sqlbuffer_seq_' || OLD.id);
    END IF;
    RETURN NULL;
END
$$
