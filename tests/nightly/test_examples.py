"""The programs in one file learn, which takes some of them half a minute."""

import pytest

from tests.integrations.docs.test_examples import SHORTER, check_that_it_learns


@pytest.mark.parametrize("program", SHORTER)
def test_a_program_in_one_file_learns(program, make_database_url, tmp_path):
    check_that_it_learns(program, make_database_url, tmp_path)
