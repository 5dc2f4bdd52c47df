-- Lets the role `pgbouncer` look up the secret of a login, never of a superuser. Run it as a superuser, again whenever you like.
CREATE SCHEMA IF NOT EXISTS pgbouncer;

CREATE OR REPLACE FUNCTION pgbouncer.login_of(wanted text)
RETURNS TABLE (name text, secret text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT rolname::text, rolpassword FROM pg_authid
    WHERE rolname = wanted AND rolcanlogin AND NOT rolsuper
$$;

REVOKE ALL ON FUNCTION pgbouncer.login_of(text) FROM PUBLIC;
GRANT USAGE ON SCHEMA pgbouncer TO pgbouncer;
GRANT EXECUTE ON FUNCTION pgbouncer.login_of(text) TO pgbouncer;
