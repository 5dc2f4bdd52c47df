"""The settings of deploy/ are those of the servers of the tests."""

import re
from itertools import pairwise

import psycopg
import pytest

from tests.support.deployment import DEPLOY, SIZES, server_settings

OF_TESTS = {"listen_addresses", "max_connections", *SIZES}


@pytest.mark.parametrize(("name", "mark"), [("postgresql.conf", "#"), ("pgbouncer.ini", ";")])
def test_every_setting_is_explained(name, mark):
    lines = (DEPLOY / name).read_text(encoding="utf-8").splitlines()
    for before, line in pairwise(lines):
        follows = re.match(r"(listen_|log_dis|auth_query)", line)
        if " = " in line and not line.startswith(mark) and not follows:
            assert before.startswith(mark), line


def test_the_server_of_the_tests_runs_with_the_settings(postgres_server, postgres_url):
    """It also has a size of its own, and room for the connections of all tests."""
    if not postgres_server.may_make_roles():
        pytest.skip("allowed: the server of the tests was named by its user")
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT name, applied, error, setting FROM pg_file_settings ORDER BY seqno"
        ).fetchall()
    applied = {name: setting for name, is_applied, error, setting in rows if is_applied}
    expected = {
        name: value.strip("'") for name, value in server_settings().items() if name not in OF_TESTS
    }
    assert {name: applied.get(name) for name in expected} == expected
    assert len(expected) >= 12
