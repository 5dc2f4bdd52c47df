"""Names of AWorld that this package does not have."""

from sqlbuffer.compat.alternatives import Alternatives

_SQL_STORAGE = (
    'ReplayBuffer(url="postgresql://user@host/database") shares one buffer between machines, and '
    'ReplayBuffer(url="sqlite:///replay.db") keeps it in a file'
)
_INSTEAD = {
    "RedisStorage": _SQL_STORAGE,
    "OdpsStorage": f"{_SQL_STORAGE}; analysts read the view v_experiences",
    "EventReplayBuffer": (
        "make a DataRow of each message and give it to ReplayBuffer.store, or give its fields to "
        "sqlbuffer.ReplayBuffer.add"
    ),
    "ReplayBufferExporter": (
        "query the view v_experiences, or write to_dict() of the rows that "
        "sqlbuffer.ReplayBuffer.get_all() streams"
    ),
}
ALTERNATIVES = Alternatives("AWorld", _INSTEAD)
