"""The tutorial that needs the programs of PostgreSQL."""

import re
import uuid

import psycopg
import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import execute, logged_in
from tests.conftest import close_pool
from tests.docs.pages import SERVER_URL

ADMIN_URL = "postgresql://postgres@db.internal/replay"
LOGINS = {"robots": "secret-1", "trainer": "secret-2", "alice": "secret-3"}


@pytest.fixture
def logins(postgres_server, postgres_url, request):
    """Yield a name for each login of the page; the logins that the page creates leave with it."""
    if not postgres_server.may_make_roles():
        pytest.skip("allowed: the role that the tests connect as may not make others")
    request.getfixturevalue("postgres_groups")
    names = {login: f"sqlbuffer_test_{uuid.uuid4().hex[:8]}" for login in LOGINS}
    yield names
    for login, name in names.items():
        close_pool(logged_in(postgres_url, name, LOGINS[login]))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        found = connection.execute("SELECT rolname FROM pg_roles").fetchall()
        for name in {name for (name,) in found} & set(names.values()):
            execute(connection, "REASSIGN OWNED BY {} TO CURRENT_USER", name)
            execute(connection, "DROP OWNED BY {}", name)
            execute(connection, "DROP ROLE {}", name)


def test_team_postgresql(read, postgres_url, logins, postgres_programs):
    urls = {
        f"postgresql://{login}:{password}@db.internal/replay": logged_in(
            postgres_url, logins[login], password
        )
        for login, password in LOGINS.items()
    }
    create = 'psql postgresql://postgres@db.internal/postgres -c "CREATE DATABASE replay OWNER me"'
    page = read(
        "docs/tutorials/team-postgresql.md",
        {**urls, SERVER_URL: postgres_url, ADMIN_URL: postgres_url, **logins},
        programs=postgres_programs,
        not_run=frozenset({create}),
    )
    (line,) = (line for line in page.printed if line.startswith("psql") and "SELECT" in line)
    assert re.findall(r"^ (\w+) +\| +50 \|", page.printed[line], re.MULTILINE) == [
        "a",
        "b",
        "laptop",
    ]
    assert "FAIL" not in page.printed["sqlbuffer doctor postgresql://me@db.internal/replay"]
    with ReplayBuffer("sqlite:///home.db", name="cartpole", create=False) as home:
        assert {row.exp_meta.agent_id for row in home} == {"a"}
