"""The migrations make what the models say, and can go there and back."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Index, Integer, MetaData, Table, Text, inspect, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import NamesTakenError
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.migrations import migrate, status
from sqlbuffer.storage.schema.metadata import ddl_metadata, whole_metadata
from sqlbuffer.storage.schema.number_keys import is_of_the_model
from tests.support.schema import objects_of, schema_of
from tests.support.sql import connected, is_sqlite, run, scalar
from tests.support.stepped_rows import make_row, make_rows, steps_of

TABLES = sorted(whole_metadata().tables)


def scripts():
    config = Config()
    config.set_main_option("script_location", str(migrate.script_location()))
    return list(ScriptDirectory.from_config(config).walk_revisions())[::-1]


def names_of(connection):
    return {name.partition("(")[0].strip('"') for _, name, _ in objects_of(connection)}


@pytest.fixture
def model_url(database_url, make_database_url):
    """Return a database whose tables the models made, of the kind of `database_url`."""
    url = make_database_url("sqlite" if is_sqlite(database_url) else "postgresql")
    with connected(url) as connection:
        ddl_metadata().create_all(connection)
    return url


def test_alembic_finds_no_difference_between_migrations_and_models(buffer_url):
    with connected(buffer_url) as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": migrate.VERSION_TABLE,
                "include_object": is_of_the_model,
                **options,
            },
        )
        assert compare_metadata(context, ddl_metadata()) == []


def test_a_process_that_imports_the_metadata_alone_knows_every_table(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    code = (
        "from sqlbuffer.storage.schema.metadata import whole_metadata; "
        "print(*whole_metadata().tables)"
    )
    known = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    with connected(sqlite_url) as connection:
        tables = set(inspect(connection).get_table_names()) - {migrate.VERSION_TABLE}
    assert set(known.stdout.split()) == tables


@pytest.mark.thorough
def test_a_migrated_database_is_what_the_models_make(database_url, model_url):
    migrate.upgrade(database_url)
    with connected(database_url) as migrated, connected(model_url) as made:
        assert schema_of(migrated) == schema_of(made)


def test_postgresql_keeps_no_statistics_of_which_buffer_a_row_belongs_to(make_database_url):
    url = make_database_url("postgresql", schema=True)
    columns = """SELECT c.relname, a.attstattarget FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid
        WHERE a.attname = 'buffer_id' AND c.relkind = 'r'"""
    targets = dict(run(url, columns))
    with_buffers = {name for name in TABLES if "buffer_id" in whole_metadata().tables[name].c}
    assert targets == dict.fromkeys(with_buffers, 0)


def test_text_keys_sort_by_byte_everywhere(buffer_url):
    with connected(buffer_url) as connection:
        inspector = inspect(connection)
        collations = {
            (table, column["name"]): column["type"].collation
            for table in TABLES
            for column in inspector.get_columns(table)
            if column["name"] in ("id", "name", "key", "task_id", "agent_id", "task_name")
            and isinstance(column["type"], Text)
        }
    assert len(collations) >= 9
    expected = None if is_sqlite(buffer_url) else "C"
    assert set(collations.values()) == {expected}


def test_no_foreign_key_touches_experiences(buffer_url):
    with connected(buffer_url) as connection:
        inspector = inspect(connection)
        keys = [key for table in TABLES for key in inspector.get_foreign_keys(table)]
    assert [key for key in keys if key["referred_table"] == "experiences"] == []


def test_arrays_are_stored_outside_and_uncompressed(make_database_url):
    url = make_database_url("postgresql", schema=True)
    found = run(
        url,
        "SELECT attrelid::regclass::text, attname, attstorage::text FROM pg_attribute "
        "WHERE attname IN ('arrays', 'bytes') AND attrelid IN "
        "('experiences'::regclass, 'payload_parts'::regclass) ORDER BY 1",
    )
    assert found == [("experiences", "arrays", "e"), ("payload_parts", "bytes", "e")]


def test_the_list_of_revisions_is_that_of_the_scripts():
    assert tuple(script.revision for script in scripts()) == migrate.REVISIONS
    assert scripts()[-1].revision == migrate.HEAD


@pytest.fixture
def stepwise_url(database_url):
    yield database_url
    engine_for(resolve_url(database_url)).dispose()


def test_after_every_revision_all_its_objects_are_there(stepwise_url):
    """Batch operations on SQLite drop the triggers of a table: each revision must bring them."""
    dialect = "sqlite" if is_sqlite(stepwise_url) else "postgresql"
    for script in scripts():
        migrate.upgrade(stepwise_url, script.revision)
        wanted = {
            re.sub(
                r"^(v_\w+|new_\w+|episode_states|chunk_steps|row_messages|step_numbers|step_sums|retention_bounds)_v1$",
                r"\1",
                n.removeprefix("type_"),
            )
            for n in script.module.OBJECTS[dialect]
        }
        with connected(stepwise_url) as connection:
            assert wanted <= names_of(connection)
            assert set(TABLES) <= names_of(connection)


def test_each_sql_file_belongs_to_its_revision():
    for script in scripts():
        folder = Path(script.path).with_suffix("")
        for dialect in ("sqlite", "postgresql"):
            files = [path for part in ("common", dialect) for path in (folder / part).iterdir()]
            named = [*script.module.OBJECTS[dialect], "tables"]
            named += ["view_comments"] if dialect == "postgresql" else []
            assert sorted(path.stem for path in files) == sorted(named)
            assert all(path.read_text().startswith(("--", "CREATE")) for path in files)


def test_migrations_import_nothing_from_the_package():
    for script in scripts():
        imported = re.findall(r"^ *(?:from|import) (\w+)", Path(script.path).read_text(), re.M)
        assert "sqlbuffer" not in imported


def test_up_down_and_up_again_gives_the_same_schema_and_leaves_nothing_between(stepwise_url):
    with connected(stepwise_url) as connection:
        before = names_of(connection)
    migrate.upgrade(stepwise_url)
    with connected(stepwise_url) as connection:
        first = objects_of(connection)
    buffer = ReplayBuffer(stepwise_url, max_capacity=3)
    ReplayBuffer(stepwise_url, name="second", evict_by="task").store(make_row(1))
    buffer.store_batch(make_rows(range(5)))
    migrate.downgrade(stepwise_url, "base")
    with connected(stepwise_url) as connection:
        own = {migrate.VERSION_TABLE, f"{migrate.VERSION_TABLE}_pkc", "sqlite_sequence"}
        auto = {name for name in names_of(connection) if name.startswith("sqlite_autoindex")}
        assert names_of(connection) - own - auto == before
        assert migrate.current(connection) is None
    migrate.upgrade(stepwise_url)
    with connected(stepwise_url) as connection:
        assert objects_of(connection) == first
    anew = ReplayBuffer(stepwise_url, max_capacity=3)
    anew.store_batch(make_rows(range(5)))
    assert steps_of(anew) == [2, 3, 4]


def test_each_revision_can_be_undone_alone(stepwise_url):
    for script in scripts():
        migrate.upgrade(stepwise_url, script.revision)
        with connected(stepwise_url) as connection:
            after = objects_of(connection)
        migrate.downgrade(stepwise_url, script.down_revision or "base")
        migrate.upgrade(stepwise_url, script.revision)
        with connected(stepwise_url) as connection:
            assert objects_of(connection) == after


def test_upgrading_twice_changes_nothing(stepwise_url):
    migrate.upgrade(stepwise_url)
    ReplayBuffer(stepwise_url).store(make_row(1))
    with connected(stepwise_url) as connection:
        before = objects_of(connection)
    migrate.upgrade(stepwise_url)
    with connected(stepwise_url) as connection:
        assert objects_of(connection) == before
    assert len(ReplayBuffer(stepwise_url)) == 1


def test_tables_of_others_and_their_alembic_are_left_alone(stepwise_url):
    run(stepwise_url, "CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)")
    run(stepwise_url, "INSERT INTO alembic_version VALUES ('theirs')")
    run(stepwise_url, "CREATE TABLE orders (id integer PRIMARY KEY)")
    run(stepwise_url, "INSERT INTO orders VALUES (1)")
    migrate.upgrade(stepwise_url)
    run(stepwise_url, "INSERT INTO orders VALUES (2)")
    assert scalar(stepwise_url, f"SELECT version_num FROM {migrate.VERSION_TABLE}") == migrate.HEAD
    migrate.downgrade(stepwise_url, "base")
    assert scalar(stepwise_url, "SELECT version_num FROM alembic_version") == "theirs"
    assert run(stepwise_url, "SELECT id FROM orders ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize(
    "theirs", ["CREATE TABLE tasks (n integer)", "CREATE VIEW v_tasks AS SELECT 1 AS n"]
)
def test_tables_of_others_by_names_of_the_schema_are_recognised(database_url, theirs):
    run(database_url, theirs)
    name = theirs.split()[2]
    is_file = database_url.startswith("sqlite")
    path = Path(make_url(database_url).database)
    before = path.read_bytes() if is_file else b""
    for make in (
        lambda: migrate.upgrade(database_url),
        lambda: status.create(database_url),
        lambda: ReplayBuffer(database_url, create=True),
    ):
        with pytest.raises(NamesTakenError, match=f"needs: {name}; nothing was changed"):
            make()
    with connected(database_url) as connection:
        found = inspect(connection)
        assert [*found.get_table_names(), *found.get_view_names()] == [name]
    if is_file:
        assert path.read_bytes() == before
        assert scalar(database_url, "PRAGMA journal_mode") == "delete"


@pytest.mark.thorough
def test_a_schema_other_than_public_is_used_throughout(postgres_url):
    run(postgres_url, 'CREATE SCHEMA "Replay Data"')
    inside = make_url(postgres_url).update_query_dict({"options": '-csearch_path="Replay\\ Data"'})
    public = make_url(postgres_url)
    buffers = [ReplayBuffer(url, create=True, max_capacity=3) for url in (inside, public)]
    buffers[0].store_batch(make_rows(range(5), prefix="r"))
    assert [len(buffer) for buffer in buffers] == [3, 0]
    buffers[1].store_batch(make_rows(range(2), prefix="r"))
    assert [steps_of(buffer) for buffer in buffers] == [[2, 3, 4], [0, 1]]
    tables = run(
        postgres_url,
        "SELECT schemaname, count(*) FROM pg_tables WHERE tablename IN "
        "('experiences', 'buffers', 'sqlbuffer_alembic_version') GROUP BY 1 ORDER BY 1",
    )
    assert tables == [("Replay Data", 3), ("public", 3)]
    # Functions are bound to their own schema, whatever the caller's search path is.
    run(
        postgres_url,
        'INSERT INTO "Replay Data".experiences (buffer_id, task_id, agent_id, step) '
        "VALUES (1, 't1', 'a1', 77)",
    )
    assert [steps_of(buffer) for buffer in buffers] == [[3, 4, 77], [0, 1]]
    migrate.downgrade(inside, "base")
    assert len(ReplayBuffer(public)) == 2
    engine_for(resolve_url(inside)).dispose()


def test_functions_of_the_library_cannot_be_hijacked_by_a_search_path(buffer_url):
    if is_sqlite(buffer_url):
        return
    found = run(
        buffer_url,
        "SELECT proname, prosecdef, proconfig FROM pg_proc "
        "WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'sqlbuffer%'",
    )
    assert len(found) >= 8
    for _name, definer, configuration in found:
        if definer:
            (path,) = [item for item in configuration if item.startswith("search_path=")]
            assert path.endswith("pg_temp")


def test_an_icu_database_works_and_sorts_keys_by_byte(icu_database_url):
    buffer = ReplayBuffer(icu_database_url, create=True, max_capacity=10)
    tasks = ["b", "a", "B", "A", "ä", "_", "Z"]
    buffer.store_batch([make_row(1, task=task) for task in tasks])
    by_view = run(icu_database_url, "SELECT task_id FROM v_experiences ORDER BY task_id")
    assert [task for (task,) in by_view] == sorted(tasks)
    condition = {"field": "exp_meta.task_id", "op": "gt", "value": "Z"}
    assert buffer.size(condition) == len([task for task in tasks if task > "Z"])
    buffer.store_batch([make_row(1, task=task, episode=task) for task in tasks])
    assert len(buffer) == 10


def test_alembics_own_command_line_finds_the_database_in_the_environment(stepwise_url, monkeypatch):
    from alembic import command

    monkeypatch.setenv("SQLBUFFER_URL", stepwise_url)
    config = Config()
    config.set_main_option("script_location", str(migrate.script_location()))
    command.upgrade(config, "head")
    assert scalar(stepwise_url, f"SELECT version_num FROM {migrate.VERSION_TABLE}") == migrate.HEAD
    command.downgrade(config, "base")
    assert run(stepwise_url, f"SELECT * FROM {migrate.VERSION_TABLE}") == []


def test_a_new_database_is_what_alembic_makes(database_url, make_database_url, monkeypatch):
    from alembic import command

    migrate.upgrade(database_url)
    other_url = make_database_url("sqlite" if is_sqlite(database_url) else "postgresql")
    monkeypatch.setenv("SQLBUFFER_URL", other_url)
    config = Config()
    config.set_main_option("script_location", str(migrate.script_location()))
    command.upgrade(config, "head")
    found = []
    for url in (database_url, other_url):
        with connected(url) as connection:
            inspector = inspect(connection)
            own = (
                [str(c["type"]) for c in inspector.get_columns(migrate.VERSION_TABLE)],
                inspector.get_pk_constraint(migrate.VERSION_TABLE),
                migrate.current(connection),
            )
            others = [o for o in objects_of(connection) if o[1] != migrate.VERSION_TABLE]
            found.append((own, others, schema_of(connection)))
    assert found[0] == found[1]


def test_every_revision_says_which_packages_may_use_it(database_url):
    migrate.upgrade(database_url)
    assert scalar(database_url, "SELECT min_client FROM schema_info") in migrate.REVISIONS


# The command line on a schema of an earlier release.


@pytest.mark.parametrize("command", [("db", "check"), ("db", "init"), ("info",)])
def test_an_older_schema_asks_for_an_upgrade(run, schema_url, command, monkeypatch):
    monkeypatch.setattr(migrate, "REVISIONS", ("0001", "0002"))
    monkeypatch.setattr(migrate, "HEAD", "0002")
    result = run(*command, schema_url)
    assert result.exit_code == 4
    assert "sqlbuffer db upgrade" in result.stderr
    assert run("db", "current", schema_url).output == "0001 (head is 0002)\n"


def test_upgrade_brings_an_older_schema_to_head(run, schema_url, monkeypatch):
    done = []
    monkeypatch.setattr(migrate, "REVISIONS", ("0001", "0002"))
    monkeypatch.setattr(migrate, "HEAD", "0002")
    monkeypatch.setattr(migrate, "_run_alembic", lambda *arguments: done.append(arguments[1:]))
    assert run("db", "upgrade", schema_url).exit_code == 0
    assert done == [("upgrade", "head")]


def test_indexes_of_other_tables_are_made_as_their_owner_says() -> None:
    mine = Table("mine", MetaData(), Column("a", Integer))
    index = Index("ix_mine", mine.c.a, info={"where": "docs/indexes.md"})
    ddl_metadata()
    for dialect in (sqlite.dialect(), postgresql.dialect()):
        assert (
            str(CreateIndex(index).compile(dialect=dialect)) == "CREATE INDEX ix_mine ON mine (a)"
        )
