"""Columns of stored rows, and pieces of their bytes."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlbuffer.codec.decoder import Blob


class Columns(NamedTuple):
    """What rows hold beside their keys, a value of each column for each row.

    Attributes:
        arrays: Their typed fields, packed.
        fields: The JSON of those that conditions can use.
        reward_t: Their rewards.
        terminated: Whether the episode ended there.
        truncated: Whether it was cut there.
    """

    arrays: Sequence[Blob]
    fields: Sequence[str | None]
    reward_t: Sequence[float | None]
    terminated: Sequence[bool | None]
    truncated: Sequence[bool | None]


class Piece(NamedTuple):
    """Bytes in the database: of a part, or of the column `arrays` where that is None."""

    seq: int
    part: int | None
    start: int
    size: int
