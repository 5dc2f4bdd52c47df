import gc
import multiprocessing.util
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from sqlbuffer import ReplayBuffer
from tests.support.postgres import (
    SERVER_VARIABLE,
    PostgresServer,
    installed_programs,
    installed_server,
    memory_with_room,
)
from tests.support.shared import Shared
from tests.support.storage_hooks import (
    close_pool,
    housekeeping_on_request,
    make_groups,
    migrate,
    sharing_compiled_statements,
)

pytest_plugins = ["tests.support.parts", "tests.support.no_skip"]

_SHARED = pytest.StashKey[Shared]()
KINDS = ["sqlite", "postgresql"]
MakeDatabaseUrl = Callable[..., str]
FilledOnce = Callable[[str, Callable[[str], None]], str]

# No test asserts on wall-clock time. (Under CI hypothesis repeats the same examples by itself.)
settings.register_profile("sqlbuffer", deadline=None)
settings.load_profile("sqlbuffer")


# SQLite's files too are in memory where there is plenty: a tenth of the time of the tests on them.
if (memory := memory_with_room()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow ones, so that no worker is left alone with one."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Keep the collector from going through thousands of tests again and again: a tenth of the
    time of all of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of what all workers of the run share, or take the one that was made."""
    # Where its sockets are, for as long as this process lives: a test that is the first to start a
    # process may have folders of its own, which are removed after it.
    multiprocessing.util.get_temp_dir()
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is not None:
        folder = worker["shared_folder"]
    else:
        # Not in pytest's own temporary folder: the user that a server runs as when we are root
        # cannot enter it, and the path of a socket has to be short.
        folder = tempfile.mkdtemp(prefix="sqlbuffer-", dir=memory_with_room())
    config.stash[_SHARED] = Shared(Path(folder))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    # The server would outlive a process that is ended by SIGTERM. Workers keep the default.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    node.workerinput["shared_folder"] = str(node.config.stash[_SHARED].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what the run shared, in the process that outlives its workers."""
    if _SHARED in config.stash and not hasattr(config, "workerinput"):
        config.stash[_SHARED].close()


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Shared:
    """Return what all workers of the run share."""
    return pytestconfig.stash[_SHARED]


@pytest.fixture(scope="session", autouse=True)
def _housekeeping_on_request() -> Iterator[None]:
    with housekeeping_on_request():
        yield


@pytest.fixture(scope="session", autouse=True)
def _shared_statements() -> Iterator[None]:
    with sharing_compiled_statements():
        yield


@pytest.fixture(scope="session")
def postgres_server(shared: Shared) -> Iterator[PostgresServer]:
    """Yield the server that all workers of the run share."""
    try:
        server = shared.postgres_server()
    except Exception as error:
        pytest.fail(
            f"No PostgreSQL to test with: {type(error).__name__}: {error}\n"
            f"Name one that may create databases in {SERVER_VARIABLE}.",
            pytrace=False,
        )
    with closing(server):
        yield server


@pytest.fixture(scope="session")
def installed_postgres_server() -> Iterator[PostgresServer]:
    """Yield a server of the PostgreSQL that is installed on the machine."""
    programs = installed_programs()
    if programs is None:
        pytest.skip("allowed: no PostgreSQL is installed on this machine")
    with installed_server(programs) as server:
        yield server


@pytest.fixture(scope="session")
def icu_server(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> Iterator[PostgresServer]:
    """Yield a server that knows ICU locales, which the bundled one is built without."""
    if postgres_server.has_icu():
        yield postgres_server
    else:
        yield request.getfixturevalue("installed_postgres_server")


@pytest.fixture
def jit_database_url(installed_postgres_server: PostgresServer) -> Iterator[str]:
    """Yield an empty database whose server compiles every statement that it may (JIT), which the
    bundled server is built without.
    """
    url = installed_postgres_server.create_database()
    installed_postgres_server.compile_everything(url)
    yield url
    close_pool(url)
    installed_postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def postgres_template(shared: Shared, postgres_server: PostgresServer) -> str:
    def make() -> str:
        url = postgres_server.create_database()
        migrate(url)
        return url

    return shared.once("postgres_template", make)


@pytest.fixture(scope="session")
def postgres_groups(
    shared: Shared, postgres_server: PostgresServer, postgres_template: str
) -> None:
    """Make the groups of `sqlbuffer db roles`, which stay until the run ends.

    They belong to the server, so tests that run at the same time share them.
    """

    def make() -> list[str]:
        url = postgres_server.create_database(template=postgres_template)
        groups = make_groups(url)
        postgres_server.drop_database(url)
        return groups

    shared.once("groups", make)


@pytest.fixture(scope="session")
def sqlite_template(shared: Shared) -> Path:
    path = shared.folder / "template.db"

    def make() -> None:
        migrate(f"sqlite:///{path}")
        # The last connection to close has moved the log into the file, so a copy of it is whole.
        assert not path.with_name("template.db-wal").exists()

    shared.once("sqlite_template", make)
    return path


@pytest.fixture
def make_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabaseUrl]:
    """Make `(kind, schema=False)` into the URL of a new database, as often as wanted.

    What it needs is started on first use: a test on SQLite alone starts no server.
    """
    paths = (tmp_path / f"buffer_{number}.db" for number in count(1))

    def make_sqlite(schema: bool) -> str:
        path = next(paths)
        if schema:
            shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        url = f"sqlite:///{path}"
        stack.callback(close_pool, url)
        return url

    def make_postgresql(schema: bool) -> str:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template") if schema else None
        url = server.create_database(template=template)
        stack.callback(server.drop_database, url)
        stack.callback(close_pool, url)
        return url

    makers = {"sqlite": make_sqlite, "postgresql": make_postgresql}
    with ExitStack() as stack:
        yield lambda kind, *, schema=False: makers[kind](schema)


@pytest.fixture
def sqlite_url(make_database_url: MakeDatabaseUrl) -> str:
    return make_database_url("sqlite")


@pytest.fixture
def postgres_url(make_database_url: MakeDatabaseUrl) -> str:
    return make_database_url("postgresql")


@pytest.fixture
def icu_database_url(icu_server: PostgresServer) -> Iterator[str]:
    """Yield an empty PostgreSQL database that sorts text by an ICU locale."""
    url = icu_server.create_database(icu=True)
    yield url
    close_pool(url)
    icu_server.drop_database(url)


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, make_database_url: MakeDatabaseUrl) -> str:
    """Return an empty database; the test runs once for each kind."""
    return make_database_url(request.param)


@pytest.fixture(params=KINDS)
def schema_url(request: pytest.FixtureRequest, make_database_url: MakeDatabaseUrl) -> str:
    """Return a database with the schema at head and no rows; the test runs once for each kind."""
    return make_database_url(request.param, schema=True)


@pytest.fixture
def filled_once(request: pytest.FixtureRequest, shared: Shared) -> Iterator[FilledOnce]:
    """Make `(kind, fill)` into the URL of a database that `fill(url)` has filled.

    It is made once for all workers, so tests may only read it.
    """

    def make(kind: str, fill: Callable[[str], None], name: str) -> str:
        if kind == "sqlite":
            path = shared.folder / f"{name}.db"
            shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
            url = f"sqlite:///{path}"
        else:
            template = request.getfixturevalue("postgres_template")
            url = request.getfixturevalue("postgres_server").create_database(template=template)
        fill(url)
        close_pool(url)
        return url

    def filled(kind: str, fill: Callable[[str], None]) -> str:
        name = f"{fill.__module__}-{fill.__name__}-{kind}"
        url: str = shared.once(name, lambda: make(kind, fill, name))
        stack.callback(close_pool, url)
        return url

    with ExitStack() as stack:
        yield filled


@pytest.fixture
def buffer_url(schema_url: str) -> str:
    return schema_url


@pytest.fixture
def make_buffer() -> type[ReplayBuffer]:
    """Return what opens a buffer; tests with `both_layouts` have one that stores chunks as well."""
    return ReplayBuffer


@pytest.fixture
def both_urls(make_database_url: MakeDatabaseUrl) -> dict[str, str]:
    """Return one database of each kind, with the schema, for tests that compare the two."""
    return {kind: make_database_url(kind, schema=True) for kind in KINDS}
