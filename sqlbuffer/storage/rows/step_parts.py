"""Some typed fields of steps in chunks, read without the bytes of the others."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection

from sqlbuffer.encoding.packing import LENGTH, Layout, item_bytes
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rows import postgresql, sqlite
from sqlbuffer.storage.rows.pieces import RECORDS, Piece

# A smaller block is read whole: a statement for each of its parts would cost more.
SMALL_BLOCK = 65_536
# Fields with at most this distance are read together: TOAST has chunks of 2 kB.
_NEAR_BYTES = 4_096

read_pieces = by_database(sqlite=sqlite.read_pieces, postgresql=postgresql.read_pieces)
read_blocks = by_database(sqlite=sqlite.read_blocks, postgresql=postgresql.read_blocks)


class _Block(NamedTuple):
    """The block of a step: where it is in `chunk_data.records`, and a small one itself."""

    seq: int
    first_seq: int
    start: int
    small: bytes | None


class StepParts:
    """Reads some typed fields of steps whose bytes are not compressed.

    The bytes of a step are its record, and behind it the values of varying length one after the
    other. Where such a value begins depends on the lengths in the record.

    Args:
        layout: The typed fields of the buffer.
        names: The fields to read, in the order of the layout.

    Attributes:
        layout: The layout of the bytes that are returned.
    """

    def __init__(self, layout: Layout, names: Sequence[str]) -> None:
        self.layout = Layout({name: layout.specs[name] for name in names})
        self._whole = layout
        offsets = {name: field[1] for name, field in (layout.record.fields or {}).items()}
        varying = [spec for spec in layout.specs.values() if spec.is_variable]
        last = max((i for i, spec in enumerate(varying) if spec.name in names), default=-1)
        self._varying = varying[: last + 1]
        heads = {*names, *(spec.name for spec in self._varying)}
        self._heads = [
            (offsets[name], layout.record[name].itemsize) for name in layout.specs if name in heads
        ]
        self._head_names = [name for name in layout.specs if name in heads]

    def read(self, connection: Connection, buffer_id: int, seqs: Sequence[int]) -> list[Any]:
        """Return the bytes of steps in `layout`; None for a step that is not in a chunk."""
        blocks = [_Block(*row) for row in read_blocks(connection, buffer_id, seqs, SMALL_BLOCK)]
        heads = self._read(connection, buffer_id, blocks, [self._heads] * len(blocks))
        tails = [self._tails(head) for head in heads]
        values = self._read(connection, buffer_id, blocks, tails)
        steps = {
            block.seq: b"".join([*self._wanted_heads(head), *tail])
            for block, head, tail in zip(blocks, heads, values, strict=True)
        }
        return [steps.get(seq) for seq in seqs]

    def _wanted_heads(self, head: Sequence[bytes]) -> Iterator[bytes]:
        for name, value in zip(self._head_names, head, strict=True):
            if name in self.layout.specs:
                yield value

    def _tails(self, head: Sequence[bytes]) -> list[tuple[int, int]]:
        """Return where the wanted values of varying length are in a block, and their sizes."""
        lengths = dict(zip(self._head_names, head, strict=True))
        sizes = [
            int(np.frombuffer(lengths[spec.name], LENGTH)[0]) * item_bytes(spec)
            for spec in self._varying
        ]
        starts = accumulate(sizes, initial=self._whole.size_bytes)
        return [
            (start, size)
            for spec, start, size in zip(self._varying, starts, sizes, strict=False)
            if spec.name in self.layout.specs
        ]

    def _read(
        self,
        connection: Connection,
        buffer_id: int,
        blocks: Sequence[_Block],
        ranges: Sequence[Sequence[tuple[int, int]]],
    ) -> list[list[bytes]]:
        """Return the bytes of (start, size) ranges of each block, in their order."""
        pieces: list[Piece] = []
        of_blocks: list[tuple[int, int]] = []  # block, start in the block
        for i, (block, own) in enumerate(zip(blocks, ranges, strict=True)):
            if block.small is None:
                for start, end in _runs(own):
                    pieces.append(Piece(block.first_seq, RECORDS, block.start + start, end - start))
                    of_blocks.append((i, start))
        runs: list[dict[int, bytes]] = [{} for _ in blocks]
        if pieces:
            found = read_pieces(connection, buffer_id, pieces)
            for n, parts in groupby(found, itemgetter(0)):
                i, start = of_blocks[n]
                runs[i][start] = b"".join(raw for _, raw in parts)
        return [
            [_part(block, own, start, size) for start, size in wanted]
            for block, own, wanted in zip(blocks, runs, ranges, strict=True)
        ]


def _part(block: _Block, runs: dict[int, bytes], start: int, size: int) -> bytes:
    if block.small is not None:
        return block.small[start : start + size]
    first = max((first for first in runs if first <= start), default=start)
    return runs.get(first, b"")[start - first : start - first + size]


def _runs(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, end) of ranges, those that are near to each other as one."""
    runs: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        if runs and start <= runs[-1][1] + _NEAR_BYTES:
            runs[-1] = runs[-1][0], max(runs[-1][1], start + size)
        elif size:
            runs.append((start, start + size))
    return runs
