"""Ways to bar the rows of a buffer whose version is 1."""

from collections.abc import Callable

from sqlalchemy import text

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.query.tree import check

OLD = QueryBuilder().eq("exp_meta.model_version", 1).build()


def _set_session(buffer: ReplayBuffer) -> None:
    """Let rows of version 1 be of another session, those of others of this or of none."""
    buffer.start_session("old")
    buffer.start_session("now")
    for table in ("experiences", "chunks"):
        change = text(
            f"UPDATE {table} SET session_id = (SELECT s.id FROM sessions s WHERE s.buffer_id = :id "
            "AND s.key = CASE WHEN model_version = 1 THEN 'old' ELSE 'now' END) "
            "WHERE buffer_id = :id AND model_version IS NOT NULL"
        )
        given = {"id": buffer._store.info.id}
        buffer._store.write(lambda connection, own=(change, given): connection.execute(*own))


def _quarantine(buffer: ReplayBuffer) -> None:
    buffer.quarantine(OLD)


def _quarantine_by_numbers(buffer: ReplayBuffer) -> None:
    with buffer._store.source.candidates(check(OLD)) as candidates:
        seqs = candidates.keys()
    buffer.quarantine(seqs, reason="by number")


def _age(buffer: ReplayBuffer) -> None:
    buffer.set_clock(2)


BARS: dict[str, tuple[dict[str, object], Callable[[ReplayBuffer], None]]] = {
    "session": ({"current_session_only": True}, _set_session),
    "quarantine": ({}, _quarantine),
    "numbers": ({"max_use": 100_000}, _quarantine_by_numbers),
    "all": (
        {"current_session_only": True, "max_staleness": 0, "max_use": 100_000},
        lambda buffer: (_set_session(buffer), _quarantine(buffer), _age(buffer))[0],
    ),
}
