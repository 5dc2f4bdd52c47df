"""Columns of stored rows, and pieces of their bytes."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlbuffer.codec.decoder import Blob


class Columns(NamedTuple):
    """Values of rows in addition to their keys: for each column one value a row.

    Attributes:
        arrays: Their typed fields, packed.
        fields: JSON of the fields that conditions can use.
        reward_t: Their rewards.
        terminated: True if the episode ended there in a terminal state.
        truncated: True if the episode was truncated there.
    """

    arrays: Sequence[Blob]
    fields: Sequence[str | None]
    reward_t: Sequence[float | None]
    terminated: Sequence[bool | None]
    truncated: Sequence[bool | None]


# Stands for `chunk_data.records` in place of a part; `seq` is then the first one of the chunk.
RECORDS = -1


class Piece(NamedTuple):
    """Bytes in the database: of a part, of `RECORDS`, or of the column `arrays` if it is None."""

    seq: int
    part: int | None
    start: int
    size: int
