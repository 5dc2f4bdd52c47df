"""A server that lacks a feature is refused by its name, and nothing is created there."""

from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, event, make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageError, UnsupportedDatabaseError
from sqlbuffer.storage.migrations.required_features import FEATURES
from tests.conftest import close_pool
from tests.docs.pages import text_of

# Each takes a feature away. A function of the schema `shadow` comes before the server's own.
TAKEN_AWAY = {
    "transactions of several statements": """CREATE FUNCTION shadow.pg_backend_pid()
        RETURNS integer LANGUAGE sql AS 'SELECT (random() * 1e9)::integer'""",
    "advisory locks": """CREATE FUNCTION shadow.pg_try_advisory_xact_lock(integer, integer)
        RETURNS boolean LANGUAGE sql AS 'SELECT true'""",
    "transaction ids of 64 bits and snapshots": """CREATE FUNCTION shadow.pg_snapshot_xmin(
        pg_snapshot) RETURNS xid8 LANGUAGE sql AS $$ SELECT '999999999'::xid8 $$""",
    "sequences that a rollback does not set back": """CREATE FUNCTION shadow.nextval(regclass)
        RETURNS bigint LANGUAGE sql AS 'SELECT pg_catalog.nextval($1) + 1'""",
    "triggers for statements, with their new rows": """CREATE FUNCTION shadow.no()
        RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF current_query() ~ 'REFERENCING' THEN
        RAISE 'REFERENCING: unimplemented' USING ERRCODE = '0A000'; END IF; END $$;
        CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('CREATE TRIGGER')
        EXECUTE FUNCTION shadow.no()""",
    "triggers in place of an insert into a view": """CREATE FUNCTION shadow.no()
        RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF current_query() ~ 'INSTEAD OF' THEN
        RAISE 'INSTEAD OF: unimplemented' USING ERRCODE = '0A000'; END IF; END $$;
        CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('CREATE TRIGGER')
        EXECUTE FUNCTION shadow.no()""",
    "statistics that a session reports at once": """CREATE FUNCTION
        shadow.pg_stat_force_next_flush() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'unimplemented' USING ERRCODE = '0A000'; END $$""",
    "DDL that a rollback undoes": """CREATE FUNCTION shadow.to_regclass(text) RETURNS regclass
        LANGUAGE sql AS $$ SELECT 'pg_class'::regclass $$""",
}


ADVICE = "; use PostgreSQL 15 or later itself, not a system that only speaks its protocol"
POOLER_ADVICE = "; set the pooler to transaction mode, in pgbouncer: pool_mode = transaction"


def run(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def objects(url):
    """Return the names of what is in the schema that the library would use."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        ).fetchall()
    return [name for (name,) in found]


def test_locks_that_cannot_be_seen_are_no_locks(postgres_url):
    database = postgres_url.partition("?")[0].rpartition("/")[2]
    run(
        postgres_url,
        "CREATE SCHEMA shadow",
        f'ALTER DATABASE "{database}" SET search_path = shadow, pg_catalog, public',
        "CREATE VIEW shadow.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE false",
    )
    with pytest.raises(UnsupportedDatabaseError, match="pg_locks lists 0 of the 2 connections"):
        ReplayBuffer(postgres_url, create=True)


def take_away(url, feature):
    database = url.partition("?")[0].rpartition("/")[2]
    run(
        url,
        "CREATE SCHEMA shadow",
        f'ALTER DATABASE "{database}" SET search_path = shadow, pg_catalog, public',
        TAKEN_AWAY[feature],
    )


def unseen(url):
    """Return the URL in a form that this process has not opened."""
    return f"{url}{'&' if '?' in url else '?'}application_name={uuid4().hex}"


@pytest.mark.parametrize("feature", TAKEN_AWAY)
def test_a_server_without_a_feature_is_refused_by_name(postgres_url, feature):
    take_away(postgres_url, feature)
    with pytest.raises(UnsupportedDatabaseError, match=feature) as caught:
        ReplayBuffer(postgres_url, create=True)
    assert str(caught.value).endswith(POOLER_ADVICE if "transactions of" in feature else ADVICE)
    assert objects(postgres_url) == []


def test_a_server_without_skip_locked_is_refused_by_name(postgres_url):
    class Refusing(psycopg.Cursor):
        def execute(self, query, *args, **kwargs):
            if "SKIP LOCKED" in str(query):
                raise psycopg.errors.FeatureNotSupported("unimplemented")
            return super().execute(query, *args, **kwargs)

    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, connect_args={"cursor_factory": Refusing})
    with pytest.raises(UnsupportedDatabaseError, match=r"SKIP LOCKED.*unimplemented") as caught:
        ReplayBuffer(engine, create=True)
    assert str(caught.value).endswith(ADVICE)
    engine.dispose()
    assert objects(postgres_url) == []


def test_each_feature_is_taken_away_by_a_test():
    assert {*TAKEN_AWAY, "SKIP LOCKED"} == set(FEATURES)


@pytest.mark.parametrize("feature", ["transactions of several statements", "advisory locks"])
def test_a_schema_that_is_there_already_is_not_opened_without_them(make_database_url, feature):
    url = make_database_url("postgresql", schema=True)
    take_away(url, feature)
    with pytest.raises(UnsupportedDatabaseError, match=feature):
        ReplayBuffer(unseen(url))


def test_locks_that_do_nothing_are_seen_behind_a_pooler_without_a_second_connection(
    make_database_url,
):
    """A session whose number is not that of the connection is a pooler's."""
    url = make_database_url("postgresql", schema=True)
    take_away(url, "advisory locks")
    run(
        url,
        "CREATE FUNCTION shadow.pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION shadow.pg_advisory_xact_lock_shared(integer, integer) RETURNS void "
        "LANGUAGE sql AS 'SELECT'",
    )
    with pytest.raises(UnsupportedDatabaseError, match="lists 0 of the 1 connections"):
        ReplayBuffer(unseen(url))


def test_a_role_that_only_reads_and_has_one_connection_can_open(make_database_url):
    url = make_database_url("postgresql", schema=True)
    ReplayBuffer(url).close()
    run(
        url,
        "CREATE ROLE lone LOGIN CONNECTION LIMIT 1",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO lone",
    )
    try:
        lone = make_url(url).set(username="lone").render_as_string(hide_password=False)
        with ReplayBuffer(lone, create=False) as buffer:
            assert len(buffer) == 0
        close_pool(lone)
    finally:
        run(url, "DROP OWNED BY lone", "DROP ROLE lone")


def test_the_page_on_databases_names_each_feature():
    text = " ".join(text_of("docs/how-to/engines.md").replace("`", "").lower().split())
    assert [name for name in FEATURES if name.lower() not in text] == []


def test_a_server_is_accepted_once_it_has_the_feature(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP EXTENSION plpgsql")
        with pytest.raises(UnsupportedDatabaseError, match="plpgsql"):
            ReplayBuffer(postgres_url, create=True)
        connection.execute("CREATE EXTENSION plpgsql")
    with ReplayBuffer(postgres_url, create=True) as buffer:
        buffer.add(state=1)
        assert len(buffer) == 1
    assert [name for name in objects(postgres_url) if "probe" in name] == []


def test_a_role_without_the_right_to_create_is_told_so(postgres_url):
    """The server has all features; the role may not use them."""
    run(postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC", "CREATE ROLE guest LOGIN")
    try:
        separator = "&" if "?" in postgres_url else "?"
        guest = f"{postgres_url}{separator}options=-crole%3Dguest"
        with pytest.raises(StorageError, match="permission denied for schema public") as caught:
            ReplayBuffer(guest, create=True)
        assert not isinstance(caught.value, UnsupportedDatabaseError)
    finally:
        run(postgres_url, "DROP ROLE guest")


def test_a_pool_of_one_connection_is_enough(postgres_url):
    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=5)
    with ReplayBuffer(engine, create=True) as buffer:
        buffer.add(state=1)
        assert len(buffer) == 1
    engine.dispose()


def test_a_sqlite_that_is_too_old_is_refused_by_the_feature(sqlite_url):
    engine = create_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def take_away(connection, _record):
        def unixepoch():
            raise ValueError

        connection.create_function("unixepoch", 0, unixepoch)

    with pytest.raises(UnsupportedDatabaseError, match=r"unixepoch.*; use a Python with SQLite"):
        ReplayBuffer(engine)
    engine.dispose()
