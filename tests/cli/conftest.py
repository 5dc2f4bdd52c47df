import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url
from typer.testing import CliRunner

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.cli import app
from tests.conftest import close_pool
from tests.support import sql as plain_sql
from tests.support.array_rows import make_array_row

ODD_TASK = "[red]task 'q' \"数\n学\""
COMMAND = [sys.executable, "-m", "sqlbuffer"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SQLBUFFER_URL", raising=False)
    runner = CliRunner()

    def invoke(*arguments: str, input: str | None = None):
        result = runner.invoke(app, list(arguments), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def start(*arguments, **options):
    """Start the command line as a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "SQLBUFFER_URL"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [*COMMAND, *arguments], text=True, **{"env": environment, **pipes, **options}
    )


@pytest.fixture
def filled(schema_url):
    """Return a database with the buffers `arrays` (4 tasks of 5 steps), `talks` and `empty`."""
    return fill_buffers(schema_url)


def fill_buffers(url):
    with ReplayBuffer(url, name="arrays", max_capacity=100) as buffer:
        buffer.store_batch([make_array_row(task=n // 5, step=n % 5) for n in range(20)])
    with ReplayBuffer(url, name="talks") as buffer:
        buffer.store_batch(talk())
    ReplayBuffer(url, name="empty", max_capacity=7).close()
    return url


def make_newer(url, min_client):
    """Give a schema the revision of a later release, and the oldest that may use it."""
    plain_sql.run(url, "UPDATE sqlbuffer_alembic_version SET version_num = '9999'")
    plain_sql.run(url, "UPDATE schema_info SET min_client = :oldest", oldest=min_client)


def talk():
    """Return a task of two steps whose second repeats the conversation of the first."""
    said = [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": [{"type": "text", "text": "2+2? [bold]数学[/bold]"}]},
    ]
    call = {"function": {"name": "add", "arguments": '{"a": 2}'}}
    said_then = [*said, {"role": "assistant", "content": None, "tool_calls": [call]}]
    said_last = [*said_then, {"role": "tool", "content": "4"}, {"role": "assistant", "content": ""}]
    state = {"nan": float("nan"), "frame": np.zeros((8, 8), np.uint8), "raw": b"ab", "none": None}
    return [
        DataRow(
            ExpMeta(ODD_TASK, "数学", "solver", step, 1_700_000_000.5 + step),
            Experience(state, ["add"], reward, messages=messages, terminated=step == 1),
        )
        for step, reward, messages in [(0, 0.0, said_then), (1, None, said_last)]
    ]


def execute(connection, statement, *names):
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def create_login(connection, *groups):
    """Create a role that may log in, and return its name and password."""
    name, password = f"sqlbuffer_test_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    execute(connection, f"CREATE ROLE {{}} LOGIN NOSUPERUSER PASSWORD '{password}'", name)
    for group in groups:
        execute(connection, "GRANT {} TO {}", group, name)
    return name, password


def logged_in(url, name, password):
    return make_url(url).set(username=name, password=password).render_as_string(False)


@contextmanager
def existing_logins(url):
    """Yield a function that makes logins, which leave with the test."""
    names = []

    def create(*groups):
        with psycopg.connect(url, autocommit=True) as connection:
            name, password = create_login(connection, *groups)
        names.append(name)
        return logged_in(url, name, password)

    try:
        yield create
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            for name in names:
                execute(connection, "REASSIGN OWNED BY {} TO CURRENT_USER", name)
                execute(connection, "DROP OWNED BY {}", name)
                execute(connection, "DROP ROLE {}", name)


@pytest.fixture(scope="session")
def roles_template(shared, postgres_server, postgres_groups):
    """Make a database with roles, whose owner, no superuser, made the schema and a buffer."""
    if not postgres_server.may_make_roles():
        pytest.skip("allowed: the role that the tests connect as may not make others")

    def make():
        url = postgres_server.create_database()
        with psycopg.connect(url, autocommit=True) as connection:
            owner, password = create_login(connection)
            execute(connection, "ALTER DATABASE {} OWNER TO {}", make_url(url).database, owner)
        url_of_owner = logged_in(url, owner, password)
        with ReplayBuffer(url_of_owner, name="older", max_capacity=10, create=True) as buffer:
            buffer.store_batch([make_array_row(step=step) for step in range(4)])
        close_pool(url_of_owner)
        for _ in range(2):
            execute_script(url)
        return {"url": url, "owner": owner, "password": password}

    return shared.once("roles_template", make)


@pytest.fixture
def url_with_roles(postgres_server, roles_template):
    """Yield a copy of the database with roles, as a superuser."""
    owner = roles_template["owner"]
    url = postgres_server.create_database(template=roles_template["url"], owner=owner)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def login(url_with_roles):
    """Make logins in the database with roles."""
    urls = []
    with existing_logins(url_with_roles) as create:

        def create_and_note(*groups):
            urls.append(create(*groups))
            return urls[-1]

        yield create_and_note
        for url in urls:
            close_pool(url)


@pytest.fixture
def with_roles(url_with_roles, roles_template):
    """Yield the URL of the owner of the database with roles."""
    url = logged_in(url_with_roles, roles_template["owner"], roles_template["password"])
    yield url
    close_pool(url)


def execute_script(url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CliRunner().invoke(app, ["db", "roles"]).stdout)
