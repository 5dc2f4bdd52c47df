"""docs/reference/cli.md is written from the commands, and each option is explained."""

import pytest

from sqlbuffer.cli.errors import EXIT_CODES
from tests.docs import cli_page
from tests.docs.pages import text_of


def test_the_page_is_what_the_commands_are():
    assert text_of(cli_page.PAGE) == cli_page.page(), "run `python -m tests.docs.cli_page`"


@pytest.mark.parametrize(("name", "command"), cli_page.commands())
def test_each_argument_and_option_has_help(name, command):
    assert command.help, name
    assert [own.name for own in command.params if not own.help] == []


def test_each_exit_code_has_a_meaning():
    assert {code for _, code in EXIT_CODES} <= set(cli_page.MEANINGS)
