"""Why rows that match a condition are not drawn."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select, true

from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.catalog import BufferInfo, why_empty
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.eligibility import Eligibility
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import steps_of
from sqlbuffer.storage.sampling.candidate_source import CandidateSource


@dataclass(frozen=True)
class UndrawnRows:
    """Numbers of rows that match and cannot be drawn. A row with two causes counts in both.

    Attributes:
        why_none: Why no row matches, as text behind the name of the buffer; "" if some do.
        in_no_episode: Rows without an episode, if only rows of episodes are drawn.
        in_quarantine: Rows in quarantine.
        stale: Rows too far behind the clock.
        of_other_sessions: Rows of other sessions.
        used_up: Rows that reached `max_use`.
    """

    why_none: str
    in_no_episode: int
    in_quarantine: int
    stale: int
    of_other_sessions: int
    used_up: int


def undrawn_rows(source: CandidateSource, node: Node, *, of_episodes: bool) -> UndrawnRows:
    """Count the rows that match and cannot be drawn now.

    Each possible cause takes a scan.

    Args:
        source: Opens the rows of the buffer.
        node: Condition of the draw.
        of_episodes: Only rows of episodes are drawn; otherwise rows without one are not counted.
    """
    return source.buffer.with_retries(lambda: _counted(source, node, of_episodes))


def _counted(source: CandidateSource, node: Node, of_episodes: bool) -> UndrawnRows:
    buffer = source.buffer
    with translated(buffer.url), snapshot(buffer.engine) as connection:
        window = source.sampled_window(connection)
        matching = resolve_labels(node, bool(window.has_labels))
        steps = steps_of(buffer.info)
        where = statements.in_window(buffer.info.id, window.low, matching, steps)
        limits = source.restrictions.limits(window)

        def count(cause: ColumnElement[bool]) -> int:
            query = select(func.count()).select_from(steps).where(where, cause)
            return int(connection.execute(query).scalar_one())

        if not count(true()):
            return UndrawnRows(_why_none(connection, buffer.info, window.low, node), 0, 0, 0, 0, 0)

        def barred(limit: Eligibility) -> int:
            return count(limit.is_ineligible(steps)) if limit else 0

        return UndrawnRows(
            "",
            count(steps.c.episode_id.is_(None)) if of_episodes else 0,
            barred(Eligibility(quarantine=limits.quarantine)),
            barred(limits.of_versions),
            barred(Eligibility(session=limits.session)),
            barred(Eligibility(max_use=limits.max_use)),
        )


def _why_none(connection: Connection, info: BufferInfo, low: int, node: Node) -> str:
    """Return why no row matches, as text behind the name of the buffer."""
    steps = steps_of(info)
    held = statements.in_window(info.id, low, EVERYTHING, steps)
    counted = select(func.count()).select_from(steps).where(held)
    n_rows = 0 if node == EVERYTHING else int(connection.execute(counted).scalar_one())
    if not n_rows:
        return why_empty(connection, info.id)
    return f"has {n_rows:,} rows, and none of them matches the condition"
