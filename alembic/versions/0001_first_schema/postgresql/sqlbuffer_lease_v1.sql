-- Takes a maintenance task for some seconds by the server's clock, or sets how long its holder
-- keeps it.
CREATE FUNCTION sqlbuffer_lease_v1(p_task text, p_holder text, p_lease_s double precision, p_renew boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE maintenance
    SET holder = p_holder, leased_until = clock_timestamp() + make_interval(secs => p_lease_s)
    WHERE task = p_task
      AND CASE WHEN p_renew THEN holder = p_holder ELSE leased_until IS NULL OR leased_until <= clock_timestamp() END;
    RETURN FOUND;
END
$$
