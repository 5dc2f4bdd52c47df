"""What a server says that lets a user not in: each cause has its own error and remedy."""

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    DatabaseMissingError,
    RoleMissingError,
    StorageUnreachableError,
    WrongPasswordError,
)
from tests.support.malformed_urls import PASSWORDS, SECRET
from tests.support.postgres import SERVER_VARIABLE, running_server

RULES = """local all known scram-sha-256
local all elsewhere reject
local all all trust
"""


@pytest.fixture(scope="module")
def url():
    """Yield a database of a server of our own, which asks the role `known` for its password."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SERVER_VARIABLE, raising=False)
        with running_server() as server:
            url = server.create_database()
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("CREATE ROLE known LOGIN PASSWORD 'right'")
                admin.execute("CREATE ROLE elsewhere LOGIN")
                admin.execute("CREATE ROLE nologin")
                (path,) = admin.execute("SHOW hba_file").fetchone()
                Path(path).write_text(RULES)
                admin.execute("SELECT pg_reload_conf()")
            yield make_url(url)


def error_of(url):
    """Return the error of each way in, which is raised at the first attempt."""
    for call in (ReplayBuffer, ReplayBuffer.list):
        with pytest.raises(StorageUnreachableError) as caught:
            call(url)
        assert "tried again" not in str(caught.value)
        assert "check that the server runs" not in str(caught.value)
    return caught.value


@pytest.mark.thorough
@pytest.mark.parametrize("password", [*PASSWORDS, None])
def test_a_wrong_password(url, password, caplog):
    caplog.set_level("DEBUG")
    error = error_of(url.set(username="known", password=password))
    assert type(error) is WrongPasswordError
    assert "check the user and the password" in str(error)
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
    assert SECRET not in caplog.text


@pytest.mark.thorough
def test_a_missing_role(url):
    error = error_of(url.set(username="absent"))
    assert type(error) is RoleMissingError
    assert 'role "absent" does not exist; check the name of the user' in str(error)


def test_a_missing_database(url):
    error = error_of(url.set(database="absent"))
    assert type(error) is DatabaseMissingError
    assert 'database "absent" does not exist; check the name of the database' in str(error)


@pytest.mark.parametrize("role", ["elsewhere", "nologin"])
def test_a_role_that_may_not_log_in(url, role):
    error = error_of(url.set(username=role))
    assert type(error) is StorageUnreachableError
    assert "ask the owner of the server to let this user in" in str(error)
