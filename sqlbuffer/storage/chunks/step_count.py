"""Count the steps of chunks between two numbers."""

from typing import Any

from sqlalchemy import BigInteger, case, func, select

from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks, deleted_steps


def n_steps(buffer_id: int, start: Any, end: Any) -> Any:
    """Return the expression for the number of steps of a buffer with start <= seq < end.

    It adds up the lengths of chunks, without reading their steps.
    """
    own, gone = chunks.c, deleted_steps.c
    stop = own.first_seq + own.n_steps
    inside = case((stop < end, stop), else_=end) - case(
        (own.first_seq > start, own.first_seq), else_=start
    )
    those = (
        own.buffer_id == buffer_id,
        own.first_seq > start - MOST_STEPS,
        own.first_seq < end,
        stop > start,
    )
    added = select(func.coalesce(func.sum(inside), 0).cast(BigInteger)).where(*those)
    deleted = select(func.count()).where(
        gone.buffer_id == buffer_id, gone.seq >= start, gone.seq < end
    )
    return added.scalar_subquery() - deleted.scalar_subquery()
