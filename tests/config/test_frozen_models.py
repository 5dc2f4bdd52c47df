"""Models of settings are frozen, and their errors are the library's."""

import pickle

import pytest

from sqlbuffer import BufferConfig, Connection
from sqlbuffer.compat.minestudio import Config, DatabaseConfig
from sqlbuffer.compat.minestudio.errors import FragmentError
from sqlbuffer.errors import BufferConfigError


@pytest.mark.parametrize(("model", "name"), [(BufferConfig(), "fields"), (Connection(), "wait_s")])
def test_a_frozen_model_refuses_changes_by_an_error_of_the_library(model, name):
    with pytest.raises(BufferConfigError, match=f"{name}: Instance is frozen"):
        setattr(model, name, 3)
    with pytest.raises(BufferConfigError, match=f"{name}: Instance is frozen"):
        delattr(model, name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BufferConfig(retention=5), "retention: expected a dict, got 5"),
        (
            lambda: BufferConfig(retention={"capacity": 5}),
            "retention has no 'capacity'; it has max_capacity",
        ),
        (lambda: BufferConfig(max_capacity=5), "put it into the group 'retention'"),
        (lambda: BufferConfig.model_validate(5), "BufferConfig: expected a"),
        (lambda: BufferConfig.model_validate_json("{"), "BufferConfig: Invalid JSON"),
        (
            lambda: BufferConfig.model_validate_strings({"retention": {"max_capacity": "x"}}),
            "max_capacity is an integer from 1 on",
        ),
        (lambda: Connection(wait_s="x"), "wait_s is a number of seconds"),
        (lambda: Connection.model_validate({"waits": 1}), "Connection has no 'waits'; it has"),
    ],
)
def test_wrong_settings_are_errors_of_the_library(make, message):
    with pytest.raises(BufferConfigError) as caught:
        make()
    assert message in str(caught.value)
    assert "pydantic" not in str(caught.value)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (BufferConfigError, str(caught.value))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DatabaseConfig(path=5), "path: input should be a valid string, got 5; a folder"),
        (
            lambda: Config(max_chunks=0, max_staleness=1, max_reuse=1, fragments_per_chunk=1),
            "got 0",
        ),
        (lambda: Config.model_validate_json("{}"), "max_chunks: missing; how many chunks"),
    ],
)
def test_wrong_settings_of_minestudio_are_errors_of_its_adapter(make, message):
    with pytest.raises(FragmentError, match=message) as caught:
        make()
    assert "pydantic" not in str(caught.value)
