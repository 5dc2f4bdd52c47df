"""Models of settings are frozen, and their errors are the library's."""

import pytest

from sqlbuffer import BufferConfig, Connection
from sqlbuffer.errors import BufferConfigError


@pytest.mark.parametrize(("model", "name"), [(BufferConfig(), "fields"), (Connection(), "wait_s")])
def test_a_frozen_model_refuses_changes_by_an_error_of_the_library(model, name):
    with pytest.raises(BufferConfigError, match=f"{name}: Instance is frozen"):
        setattr(model, name, 3)
    with pytest.raises(BufferConfigError, match=f"{name}: Instance is frozen"):
        delattr(model, name)
