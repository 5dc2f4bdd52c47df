"""`resize` and `delete` ask on a terminal."""

import pytest

from tests.cli.test_destroying import held
from tests.integrations.cli.terminal import run_on_terminal


@pytest.mark.parametrize(
    ("answer", "exit_code", "rows"), [("y\n", 0, 8), ("YES\n", 0, 8), ("n\n", 1, 20), ("\n", 1, 20)]
)
def test_on_a_terminal_the_answer_decides(filled, answer, exit_code, rows):
    words = ("resize", filled, "8", "--buffer", "arrays")
    shown = run_on_terminal(*words, answer=answer)
    assert shown.exit_code == exit_code
    assert "12 of 20 rows leave buffer 'arrays' for good. Go on? [y/N]" in shown.text
    assert ("nothing was changed" in shown.text) == (rows == 20)
    assert len(held(filled)) == rows


def test_the_end_of_input_is_no_answer(filled):
    shown = run_on_terminal("delete", filled, "--buffer", "arrays", "--all-rows", answer="\x04")
    assert shown.exit_code == 1
    assert len(held(filled)) == 20
