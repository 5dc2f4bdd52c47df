"""The one way to change what a stored row holds; `compat` alone goes it."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from sqlbuffer.codec import Blob
from sqlbuffer.storage.dialects import Dialect


class Replaced(NamedTuple):
    """What a row holds from now on; the other columns stay.

    Attributes:
        seq: The row.
        arrays: Its typed fields, packed.
        fields: The JSON of those that conditions can use.
        reward_t: Its reward.
        terminated: Whether the episode ended there.
        truncated: Whether it was cut there.
    """

    seq: int
    arrays: Blob
    fields: str | None = None
    reward_t: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None


def replace_payload(
    connection: Connection,
    dialect: Dialect,
    buffer_id: int,
    rows: Sequence[Replaced],
    names: Sequence[str],
) -> int:
    """Change what rows hold, and note in `payload_changes` that they were changed.

    A row is read, changed and written whole: the caller keeps others from doing that meanwhile.

    Args:
        connection: The transaction.
        dialect: Its database's operations.
        buffer_id: The buffer.
        rows: The rows; those that the buffer does not have are left out.
        names: The fields that another value was given to, for the note.

    Returns:
        How many rows were changed.
    """
    if not rows:
        return 0
    # In one order: two processes may change several of the same ones.
    in_order = sorted(rows, key=lambda row: row.seq)
    return dialect.replace(connection, buffer_id, in_order, ", ".join(names))
