"""The episodes that a report is about: the newest of a buffer, without their steps."""

from dataclasses import dataclass

from sqlalchemy import Connection, select

from sqlbuffer.storage.browsing import postgresql, sqlite
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.schema.server_clock import age_s, unix_now

MOST_ROWS = 10_000

_in_order = by_database(sqlite=sqlite.in_order, postgresql=postgresql.in_order)


@dataclass(frozen=True)
class ReportRow:
    """An episode that has ended.

    Attributes:
        episode_id: Its id.
        task_id: Its task.
        agent_id: Who acted.
        status: `complete` or `aborted`.
        length: Its steps.
        total: The sum of its rewards; None where it had none.
        model_version: Version of the model at its start.
        ended_at: When it ended, in Unix seconds; None where that is not known.
    """

    episode_id: str
    task_id: str
    agent_id: str | None
    status: str
    length: int | None
    total: float | None
    model_version: int | None
    ended_at: float | None


def report_rows(connection: Connection, buffer_id: int) -> list[ReportRow]:
    """Return the newest episodes of a buffer that have ended, newest first."""
    own = episodes.c
    query = (
        select(
            *(own.key, own.task_id, own.agent_id, own.status, own.length, own["return"]),
            *(own.model_version, unix_now() - age_s(own.ended_at)),
        )
        .where(own.buffer_id == buffer_id)
        .order_by(own.id.desc())
        .limit(MOST_ROWS)
    )
    with _in_order(connection):
        found = connection.execute(query).all()
    return [ReportRow(*row) for row in found if row.status != "open"]
