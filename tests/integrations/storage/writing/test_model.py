"""More random operations against the model."""

import pytest

from tests.storage.writing.test_model import check_model


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_the_buffer_is_what_the_model_says(buffer_url, evict_by):
    check_model(buffer_url, evict_by, 15)
