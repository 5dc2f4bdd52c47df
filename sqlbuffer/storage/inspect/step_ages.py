"""Ages of the first and the last steps of buffers, in either layout."""

from typing import Any

from sqlalchemy import func, select

from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.step_relations import chunk_steps
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks
from sqlbuffer.storage.schema.server_clock import age_s


def first_step(buffer_id: Any, seq: Any) -> tuple[Any, Any]:
    """Return the number and the age in seconds of a buffer's first step from a number on."""
    row, step = experiences.c, chunk_steps.c
    of_row = (row.buffer_id == buffer_id, row.seq >= seq), (row.seq,)
    near = step.first_seq > seq - MOST_STEPS
    of_chunk = (step.buffer_id == buffer_id, near, step.seq >= seq), (step.first_seq, step.seq)
    return _either((row.seq, of_row), (step.seq, of_chunk)), _either(
        (age_s(row.inserted_at), of_row), (age_s(step.inserted_at), of_chunk)
    )


def newest_step_age(buffer_id: Any, low: Any) -> Any:
    """Return the age in seconds of the last step of a buffer that is above a number."""
    row, own = experiences.c, chunks.c
    of_row = (row.buffer_id == buffer_id, row.seq > low), (row.seq.desc(),)
    is_held = own.first_seq + own.n_steps - 1 > low
    of_chunk = (own.buffer_id == buffer_id, is_held), (own.first_seq.desc(),)
    return _either((age_s(row.inserted_at), of_row), (age_s(own.inserted_at), of_chunk))


def _either(*choices: tuple[Any, tuple[Any, Any]]) -> Any:
    """Return the first value of rows or of chunks: a buffer has one of them."""
    return func.coalesce(
        *(
            select(value).where(*where).order_by(*order).limit(1).scalar_subquery()
            for value, (where, order) in choices
        )
    )
