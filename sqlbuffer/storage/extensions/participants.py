"""Participants of a buffer: writers of slots, workers that make fragments, consumers."""

from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    select,
    text,
    update,
)

from sqlbuffer.storage.extensions.tables import participants
from sqlbuffer.storage.schema.metadata import json_parameter

_TABLE = participants.c
_ONE = (
    (_TABLE.buffer_id == bindparam("of", type_=Integer()))
    & (_TABLE.role == bindparam("as_role", type_=Text()))
    & (_TABLE.name == bindparam("who", type_=Text()))
)
_STATE = select(cast(_TABLE.state, Text)).where(_ONE)
_FORGET = delete(participants).where(_ONE)
_CHANGE = (
    update(participants)
    .where(_ONE)
    .values(
        state=json_parameter("value"),
        oldest_version=bindparam("oldest", type_=BigInteger()),
    )
)
_NOTE = text(
    "INSERT INTO participants (buffer_id, role, name, state, oldest_version) "
    "VALUES (:of, :as_role, :who, :value, :oldest) "
    "ON CONFLICT (buffer_id, role, name) DO UPDATE SET state = excluded.state, "
    "oldest_version = excluded.oldest_version, seen_at = excluded.seen_at"
)


def state_of(connection: Connection, buffer_id: int, role: str, name: str) -> Any:
    """Return the stored state of a participant; None if there is none."""
    given = {"of": buffer_id, "as_role": role, "who": name}
    found = connection.execute(_STATE, given).scalar_one_or_none()
    return None if found is None else orjson.loads(found)


def note_seen(
    connection: Connection,
    buffer_id: int,
    role: str,
    name: str,
    state: Any = None,
    oldest_version: int | None = None,
) -> None:
    """Store the state of a participant, and that it was active just now."""
    value = None if state is None else orjson.dumps(state).decode()
    given = {"of": buffer_id, "as_role": role, "who": name}
    connection.execute(_NOTE, {**given, "value": value, "oldest": oldest_version})


def change(
    connection: Connection,
    buffer_id: int,
    role: str,
    name: str,
    state: Any,
    oldest_version: int | None,
) -> None:
    """Change the state of a participant without storing that it was active."""
    given = {"of": buffer_id, "as_role": role, "who": name, "oldest": oldest_version}
    connection.execute(_CHANGE, {**given, "value": orjson.dumps(state).decode()})


def forget(connection: Connection, buffer_id: int, role: str, name: str) -> None:
    """Delete a participant."""
    connection.execute(_FORGET, {"of": buffer_id, "as_role": role, "who": name})
