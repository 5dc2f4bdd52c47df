"""Random programs and conditions at length; the tests that they come from run a few each."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.query.conftest import buffer_of, buffers, url_of
from tests.query.strategies import rows_and_conditions
from tests.storage.retention.test_episode_eviction import PROGRAMS, check_program
from tests.storage.rows.test_equivalence import check_equivalence
from tests.storage.writing.buffer_machine import check_buffer

__all__ = ["buffer_of", "buffers", "url_of"]


@pytest.mark.timeout(900)  # to shrink a falsifying program takes up to five minutes
@pytest.mark.parametrize("is_typed", [False, True], ids=["json", "typed"])
def test_the_buffer_is_what_the_model_says(buffer_url, is_typed):
    check_buffer(buffer_url, is_typed=is_typed, examples=20, steps=25, explore=True)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(drawn=rows_and_conditions())
def test_random_conditions_select_the_same_rows_everywhere(buffers, drawn):
    check_equivalence(buffers, drawn)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@PROGRAMS
def test_it_holds_what_a_model_in_memory_holds(buffer_url, actions, max_episodes, max_capacity):
    check_program(buffer_url, actions, max_episodes, max_capacity)
