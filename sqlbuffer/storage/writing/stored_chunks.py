"""Read stored chunks back in packed form."""

import json
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, Text, cast, select

from sqlbuffer.encoding.chunks import PackedChunk
from sqlbuffer.storage.buffers.tables import sessions
from sqlbuffer.storage.chunks.tables import chunk_data, chunks
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.schema.number_keys import is_numbered

_PLAIN = (
    "id", "n_steps", "task_id", "task_name", "agent_id", "pre_agent", "model_version", "t", "step",
    "first_time", "last_time",
)  # fmt: skip
_FLAGS = ("terminated", "truncated")
_LISTS = ("steps", "times", "adv_t", "v_t", *_FLAGS, "offsets")
_JOINED = ("records", "block_steps", "payload_arrays", "episode_key", "session_key")
_CHUNKS = (
    select(
        chunks.c.first_seq,
        *(chunks.c[name] for name in (*_PLAIN, *_LISTS[:-1], "reward_t")),
        chunk_data.c.records,
        chunk_data.c.block_steps,
        chunk_data.c.offsets,
        cast(chunk_data.c.payloads, Text()).label("payloads"),
        chunk_data.c.payload_arrays,
        episodes.c.key.label("episode_key"),
        sessions.c.key.label("session_key"),
    )
    .select_from(chunks)
    .join(chunk_data, is_numbered(chunk_data.c.first_seq, chunks.c.buffer_id, chunks.c.first_seq))
    .outerjoin(episodes, episodes.c.id == chunks.c.episode_id)
    .outerjoin(sessions, sessions.c.id == chunks.c.session_id)
    .order_by(chunks.c.first_seq)
)


class StoredChunk(NamedTuple):
    """A chunk that a buffer holds, with the values of its steps that are compared.

    It has no priorities, no values for conditions, and no ids.
    """

    first_seq: int
    chunk: PackedChunk


def stored_chunks(connection: Connection, buffer_id: int, *conditions: Any) -> list[StoredChunk]:
    """Return the chunks of a buffer that match."""
    found = connection.execute(_CHUNKS.where(chunks.c.buffer_id == buffer_id, *conditions))
    return [StoredChunk(row["first_seq"], _chunk(row)) for row in found.mappings()]


def _chunk(row: RowMapping) -> PackedChunk:
    given = {name: row[name] for name in (*_PLAIN, *_JOINED)}
    given |= {name: listed(row[name]) for name in _LISTS}
    for name in _FLAGS:
        if given[name] == []:  # all are False
            given[name] = [False] * row["n_steps"]
    payloads = listed(row["payloads"])
    if payloads is not None:
        payloads = [None if one is None else json.dumps(one) for one in payloads]
    return PackedChunk(
        **given,
        reward=listed(row["reward_t"]),
        payloads=payloads,
        initial_priority=None,
        fields=None,
        ids=None,
    )


def listed(values: Any) -> Any:
    """Return a list, which is JSON on SQLite."""
    return json.loads(values) if isinstance(values, str) else values
