-- Deletes the ids of writes that no call looks for any more; returns how many.
CREATE FUNCTION sqlbuffer_forget_writes_v1() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    n_deleted bigint;
BEGIN
    DELETE FROM applied_writes WHERE kept_until < clock_timestamp();
    GET DIAGNOSTICS n_deleted = ROW_COUNT;
    RETURN n_deleted;
END
$$
