"""Many random programs against the model, other ones at each run."""

import pytest

from tests.storage.writing.buffer_machine import check_buffer


@pytest.mark.timeout(900)  # to shrink a falsifying program takes up to five minutes
@pytest.mark.each_value
@pytest.mark.parametrize("is_typed", [False, True], ids=["json", "typed"])
def test_the_buffer_is_what_the_model_says(buffer_url, is_typed):
    check_buffer(buffer_url, is_typed=is_typed, examples=2, steps=25, explore=True)
