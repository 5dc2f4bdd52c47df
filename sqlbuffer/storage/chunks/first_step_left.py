"""The oldest held step of an episode whose steps are in chunks."""

from typing import Any

from sqlalchemy import case, select

from sqlbuffer.storage.chunks.tables import chunks, deleted_steps


def first_step_left(buffer_id: Any, episode_id: Any, low: Any) -> Any:
    """Return the expression for the number of the oldest held step; null if there is none.

    It does not read all steps of a chunk: an index finds the first chunk of the episode, and
    another index skips deleted steps.

    Args:
        buffer_id: The buffer.
        episode_id: The episode: a column of the statement around this one.
        low: Lower end of the window.
    """
    own, gone = chunks.alias("of_episode").c, deleted_steps.alias("gone").c
    stop = own.first_seq + own.n_steps
    start = case((own.first_seq > low, own.first_seq), else_=low + 1)
    behind_gone = (
        select(gone.seq + 1)
        .where(
            gone.buffer_id == buffer_id,
            gone.seq >= start,
            gone.seq < stop - 1,
            ~_is_gone(buffer_id, gone.seq + 1),
        )
        .order_by(gone.seq)
        .limit(1)
        .scalar_subquery()
    )
    first = case((_is_gone(buffer_id, start), behind_gone), else_=start)
    return (
        select(first)
        .where(
            own.buffer_id == buffer_id,
            own.episode_id == episode_id,
            stop > low + 1,
            first.is_not(None),
        )
        .order_by(own.t)
        .limit(1)
        .scalar_subquery()
    )


def _is_gone(buffer_id: Any, seq: Any) -> Any:
    gone = deleted_steps.alias("next_gone").c
    is_its = select(1).where(gone.buffer_id == buffer_id, gone.seq == seq)
    # The offset keeps PostgreSQL from reading all deleted steps of the buffer.
    return is_its.offset(0).exists()
