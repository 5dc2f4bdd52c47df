"""Random calls against a model in memory: the buffer is what the model says, always.

`MODEL_EXAMPLES=500` runs that many other programs of each kind, and shrinks a falsifying one.
"""

import os

import pytest

from tests.storage.writing.buffer_machine import check_buffer

pytestmark = pytest.mark.combinations

EXAMPLES = os.environ.get("MODEL_EXAMPLES")


@pytest.mark.slow
@pytest.mark.parametrize("is_typed", [False, True], ids=["json", "typed"])
def test_the_buffer_is_what_the_model_says(buffer_url, is_typed):
    check_buffer(
        buffer_url,
        is_typed=is_typed,
        examples=int(EXAMPLES or 4),
        steps=12 if EXAMPLES is None else 30,
        explore=EXAMPLES is not None,
    )
