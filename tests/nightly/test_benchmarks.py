"""The benchmarks run end to end on both databases."""

import pytest

from tests.benchmarks import __main__ as command
from tests.integrations.test_benchmarks import assert_complete


@pytest.mark.timeout(900)
def test_a_tiny_run_prints_every_line_for_both_databases(postgres_server, capsys):
    command.main(["--rows", "1000"], postgres_server)
    assert_complete(capsys.readouterr().out, "1,000 rows", {""})
