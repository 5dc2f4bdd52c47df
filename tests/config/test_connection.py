"""What an opener chooses for itself, and how settings are given to it. No database."""

import pickle
from typing import get_type_hints

import pytest

from sqlbuffer import BufferConfig, Connection, ReplayBuffer
from sqlbuffer.config import ConnectionSettings, OpenerSettings, with_settings
from sqlbuffer.errors import BufferConfigError, FieldError


def test_the_keyword_arguments_have_the_settings_and_types_of_the_model():
    types = get_type_hints(Connection)
    own = {name: types[name] for name in Connection.model_fields}
    del own["alpha"]  # it is stored as well
    assert get_type_hints(ConnectionSettings) == own
    assert set(own) < set(get_type_hints(OpenerSettings))


def test_json_and_pickle_bring_it_back():
    connection = Connection(durability="full", retry_s=0, wait_s=1, flush_s=2.5, alpha=0.4)
    assert Connection.model_validate_json(connection.model_dump_json()) == connection
    assert pickle.loads(pickle.dumps(connection)) == connection
    assert repr(Connection()) == "Connection()"
    assert repr(Connection(wait_s=1)) == "Connection(wait_s=1.0)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"durability": "some"}, "durability is one of relaxed, full, or omitted, got 'some'"),
        ({"retry_s": -1}, "retry_s is a number of seconds from 0 to 1e\\+08, got -1"),
        ({"retry_s": None}, "retry_s is a number of seconds"),
        ({"wait_s": float("inf")}, "wait_s is a number of seconds"),
        ({"flush_s": 0}, "flush_s is a number of seconds above 0 .*, got 0"),
        ({"max_pending": 0}, "max_pending is an integer from 1 on, got 0"),
        ({"alpha": -1}, "alpha is a number from 0 to 1, got -1"),
        ({"timeout": 1}, "Connection has no 'timeout'; it has durability, retry_s"),
    ],
)
def test_a_wrong_value_is_refused_by_name(settings, message):
    with pytest.raises(BufferConfigError, match=message):
        Connection(**settings)


def test_settings_override_those_of_the_models():
    config, connection = BufferConfig.of(max_capacity=5, max_use=2), Connection(wait_s=1, retry_s=2)
    given = {"max_capacity": 7, "max_use": None, "wait_s": 3, "durability": None}
    stored, own = with_settings(config, connection, given)
    assert stored == BufferConfig.of(max_capacity=7, max_use=2)
    assert own == Connection(wait_s=3, retry_s=2)
    assert with_settings(None, None, {}) == (BufferConfig(), Connection())


def test_alpha_is_stored_and_the_openers_own():
    stored, own = with_settings(None, None, {"priorities": True, "alpha": 0.4})
    assert stored.priorities.alpha == own.alpha == 0.4
    stored, own = with_settings(BufferConfig.of(priorities=True, alpha=0.4), None, {})
    assert (stored.priorities.alpha, own.alpha) == (0.4, None)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(TypeError, match="no setting 'retrys'; did you mean retry_s"):
        with_settings(None, None, {"retrys": 3})
    with pytest.raises(TypeError, match=r"no setting 'x'; there are max_capacity, .*, flush_s"):
        with_settings(None, None, {"x": 3})
    with pytest.raises(TypeError, match=r"config is a BufferConfig, .* got .'max_capacity': 5."):
        with_settings({"max_capacity": 5}, None, {})
    with pytest.raises(TypeError, match=r"connection is a Connection, .* got 5"):
        with_settings(None, 5, {})
    with pytest.raises(FieldError, match="observation_fields go with fields"):
        with_settings(None, None, {"observation_fields": ["obs"]})
    with pytest.raises(BufferConfigError, match="wait_s is a number of seconds"):
        with_settings(None, None, {"wait_s": None})


# Settings of reads from a standby; the reads are in tests/integrations/test_read_url.py.


SECRET = "postgresql://me:hunter2@standby.internal/replay"


def test_a_password_is_in_no_repr_and_in_the_json():
    connection = Connection(read_url=SECRET, max_lag_s=5)
    assert repr(connection) == "Connection(read_url=..., max_lag_s=5.0)"
    assert Connection.model_validate_json(connection.model_dump_json()) == connection


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"read_url": ""}, "read_url is the URL of a standby as text"),
        ({"read_url": 3}, "read_url is the URL of a standby as text, got int"),
        ({"max_lag_s": -1}, "max_lag_s is a number of seconds"),
        ({"max_lag_s": "soon"}, "max_lag_s is a number of seconds"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(BufferConfigError, match=message):
        Connection(**settings)


def test_sqlite_has_no_standby(sqlite_url, tmp_path):
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(BufferConfigError, match="SQLite has none: leave out read_url"):
        ReplayBuffer(sqlite_url, read_url=other)
    with pytest.raises(BufferConfigError, match="SQLite has none") as caught:
        ReplayBuffer(sqlite_url, read_url=SECRET)
    assert "hunter2" not in str(caught.value)
