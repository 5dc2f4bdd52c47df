"""Count the rows that match and cannot be drawn, by cause."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from sqlbuffer.query.condition_tree import Node
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.eligibility.eligible_rows import Eligibility
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.sampling.candidate_source import CandidateSource


@dataclass(frozen=True)
class UndrawnRows:
    """Numbers of rows that match and cannot be drawn. A row with two causes counts in both.

    Attributes:
        in_no_episode: Rows without an episode, if only rows of episodes are drawn.
        in_quarantine: Rows in quarantine.
        stale: Rows too far behind the clock.
        of_other_sessions: Rows of other sessions.
        used_up: Rows that reached `max_use`.
    """

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
        now = source.sampled_window(connection)
        matching = resolve_labels(node, bool(now.has_labels))
        where = statements.in_window(buffer.info.id, now.low, matching)
        limits = source.restrictions.limits(now)

        def count(cause: ColumnElement[bool]) -> int:
            query = select(func.count()).select_from(experiences).where(where, cause)
            return int(connection.execute(query).scalar_one())

        def barred(limit: Eligibility) -> int:
            return count(limit.is_ineligible(experiences)) if limit else 0

        return UndrawnRows(
            count(experiences.c.episode_id.is_(None)) if of_episodes else 0,
            barred(Eligibility(quarantine=limits.quarantine)),
            barred(Eligibility(oldest_version=limits.oldest_version)),
            barred(Eligibility(session=limits.session)),
            barred(Eligibility(max_use=limits.max_use)),
        )
