"""Cells of tables."""

from decimal import Decimal

import pytest

from sqlbuffer.cli.output import shown


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "-"),
        (True, "true"),
        (12345, "12,345"),
        (0.12345, "0.1235"),
        (12345.6, "12,346"),
        (Decimal("2.5"), "2.5"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ("Task-A", "Task-A"),
        ("", ""),
    ],
)
def test_shows_a_value_as_a_person_reads_it(value: object, cell: str) -> None:
    assert shown(value) == cell
