"""Settings of reads from a standby; the reads are in tests/integrations/test_read_url.py."""

import pytest

from sqlbuffer import Connection, ReplayBuffer
from sqlbuffer.errors import BufferConfigError

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
