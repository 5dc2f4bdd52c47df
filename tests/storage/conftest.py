"""Commands of the command line, for tests of what they do to the storage, and a proxy."""

import pytest

from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.cli.conftest import filled, login, roles_template, run, url_with_roles, with_roles
from tests.support.proxy import proxied

__all__ = ["filled", "login", "roles_template", "run", "url_with_roles", "with_roles"]


@pytest.fixture
def url(make_database_url):
    return make_database_url("postgresql", schema=True)


@pytest.fixture
def proxy(url):
    with proxied(url) as proxy:
        yield proxy
        engine_for(resolve_url(proxy.url)).dispose()
