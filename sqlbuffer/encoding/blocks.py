"""The typed fields of a chunk as compressed blocks of steps, and blocks back as rows and arrays.

A block is the records of its steps one after the other, then for each step its values of varying
length. Where a buffer compresses, each block is a frame, or raw where it would not shrink. Records
that shrink by less than an eighth are stored as in a buffer without compression.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout, expand, has_frame, shown_row
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import VARIABLE

# Steps that are compressed together have up to this many bytes. 256 random steps of 160 bytes are
# expanded in 1.5 ms; with blocks of 16 KiB, which are 3 % smaller, in 3.9 ms.
_BLOCK_BYTES = 2**12
# Random floats shrink to 15/16, and 256 steps of them are read in twice the time of plain records.
_WORTH = 7 / 8

Stored = bytes | memoryview


class RecordBlocks(NamedTuple):
    """`records`, `block_steps` and `offsets` of several `PackedChunk`."""

    records: list[bytes]
    block_steps: list[int]
    offsets: list[NDArray[np.int64] | None]


def pack_blocks(
    layout: Layout,
    records: Stored,
    tails: Sequence[bytes] | None,
    ranges: Sequence[tuple[int, int]],
) -> RecordBlocks:
    """Return the blocks of chunks.

    Args:
        layout: The typed fields.
        records: The records of the steps, one after the other.
        tails: The values of varying length of each step, if there are such fields.
        ranges: The first step of each chunk, and the one after its last.
    """
    size = layout.size_bytes
    if layout.compression is None and tails is None:
        plain = [bytes(records[start * size : stop * size]) for start, stop in ranges]
        return RecordBlocks(plain, [stop - start for start, stop in ranges], [None] * len(ranges))
    blocks: list[Any] = []
    shapes: list[tuple[int, int]] = []  # steps in a block, blocks
    for start, stop in ranges:
        longest = 0 if tails is None else max(map(len, tails[start:stop]))
        block_steps = _block_steps(layout, size + longest, stop - start)
        firsts = range(start, stop, block_steps)
        for first in firsts:
            after = min(first + block_steps, stop)
            heads = records[first * size : after * size]
            blocks.append(heads if tails is None else b"".join([heads, *tails[first:after]]))
        shapes.append((block_steps, len(firsts)))
    stored: list[Any] = list(layout.compress(blocks))
    packed, done = RecordBlocks([], [], []), 0
    for (start, stop), (block_steps, n_blocks) in zip(ranges, shapes, strict=True):
        compressed = stored[done : done + n_blocks]
        done += n_blocks
        heads = records[start * size : stop * size]
        is_worth = sum(map(len, compressed)) < _WORTH * len(heads)
        if tails is None and not is_worth and not has_frame(heads, stop - start):
            packed.records.append(bytes(heads))
            packed.block_steps.append(stop - start)
            packed.offsets.append(None)
            continue
        offsets = np.fromiter(accumulate(map(len, compressed), initial=0), np.int64, n_blocks + 1)
        packed.records.append(b"".join(compressed))
        packed.block_steps.append(block_steps)
        packed.offsets.append(offsets)
    return packed


def _block_steps(layout: Layout, largest: int, n_steps: int) -> int:
    if layout.compression is None:
        return 1
    return min(n_steps, _BLOCK_BYTES // largest or 1)


def expanded_rows(
    layout: Layout,
    blocks: Sequence[Stored | None],
    places: Sequence[int],
    seqs: Sequence[Any] | None = None,
) -> list[Any]:
    """Return the bytes of the typed fields of steps, as `Layout.unpack_expanded` reads them.

    Args:
        layout: The typed fields.
        blocks: For each step its block as stored, None where it is missing. A block that several
            steps have in common is expanded once, if it is the same object.
        places: The place of each step in its block.
        seqs: The numbers of the steps, for error messages.

    Returns:
        Bytes or views of them; None stays.

    Raises:
        FieldError: The bytes are damaged; the message names the step.
    """
    size = layout.size_bytes
    if layout.compression is None:
        if layout.has_tails:  # a block for each step
            return list(blocks)
        return [
            block and block[place * size : (place + 1) * size]
            for block, place in zip(blocks, places, strict=True)
        ]
    first_places: dict[int, int] = {}
    for i, block in enumerate(blocks):
        first_places.setdefault(id(block), i)
    distinct: Any = [blocks[i] for i in first_places.values()]
    own_seqs = None if seqs is None else [seqs[i] for i in first_places.values()]
    expanded = dict(zip(first_places, expand(distinct, own_seqs), strict=True))
    ends: dict[int, list[int]] = {}
    rows: list[Any] = []
    for i, (block, place) in enumerate(zip(blocks, places, strict=True)):
        key = id(block)
        whole: Any = expanded[key]
        if whole is None:
            rows.append(None)
            continue
        row = whole[place * size : (place + 1) * size]
        if layout.has_tails:
            if key not in ends:
                ends[key] = _tail_ends(layout, whole, shown_row(i, seqs))
            if place + 1 >= len(ends[key]):
                raise _damaged(shown_row(i, seqs))
            row = b"".join((row, whole[slice(*ends[key][place : place + 2])]))
        rows.append(row)
    return rows


def fields_of_steps(
    layout: Layout,
    blocks: Sequence[Stored | None],
    places: Sequence[int],
    numbers: Sequence[int],
    names: Sequence[str] | None = None,
    seqs: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Return typed fields of each step, `{name: array}`: arrays of their own memory, of the shape
    that the field has in this step, and scalars of numpy.

    Args:
        layout: The typed fields.
        blocks: The block of each step.
        places: The place of each in its block.
        numbers: The number of the layout of each; fields that were added later have their defaults.
        names: Fields to read; all by default.
        seqs: The numbers of the steps, for error messages.

    Raises:
        FieldError: The bytes are damaged; the message names the step.
    """
    layout.of(max(numbers, default=0))  # it may become a newer one
    layout = layout.fixed
    rows: list[Any] = [None] * len(blocks)
    for number in set(numbers):
        older = layout.of(number)
        if older is layout and numbers.count(number) == len(numbers):
            rows = expanded_rows(layout, blocks, places, seqs)
            break
        at = [i for i, one in enumerate(numbers) if one == number]
        own_seqs = None if seqs is None else [seqs[i] for i in at]
        own_places = [places[i] for i in at]
        expanded = expanded_rows(older, [blocks[i] for i in at], own_places, own_seqs)
        for i, row in zip(at, layout.converted(expanded, older), strict=True):
            rows[i] = row
    return fields_of_rows(layout, rows, names, seqs)


def fields_of_rows(
    layout: Layout,
    rows: Sequence[Any],
    names: Sequence[str] | None = None,
    seqs: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Return what `fields_of_steps` does, of the bytes of steps as `expanded_rows` returns them."""
    columns = layout.unpack_expanded(rows, names, seqs=seqs)
    steps: list[dict[str, Any]] = [{} for _ in rows]
    field_names = layout.wanted(names)
    for name in [name for name in layout.specs if name in field_names]:
        spec, values, lens = layout.specs[name], columns.get(name), columns.get(f"{name}_lens")
        assert values is not None
        for i, step in enumerate(steps):
            value: Any = values[i]
            if lens is not None:
                axis = spec.shape.index(VARIABLE)
                value = value[(*[slice(None)] * axis, slice(int(lens[i])))]
            step[name] = value.copy() if spec.shape else value
    return steps


def _tail_ends(layout: Layout, block: Any, shown: str) -> list[int]:
    """Return where the values of varying length of each step of a block begin, and the end.

    The number of steps is the one whose records and values fill the block.
    """
    size = layout.size_bytes
    records: Any = np.frombuffer(block, layout.record, len(block) // size)
    sizes = layout.tail_sizes(records)
    counts = np.flatnonzero(np.cumsum(sizes + size) == len(block))
    if not len(counts):
        raise _damaged(shown)
    n = int(counts[0]) + 1
    return list(accumulate(sizes[:n].tolist(), initial=n * size))


def _damaged(shown: str) -> FieldError:
    return FieldError(
        f"{shown} has damaged arrays (its block has another size than its steps); delete it, or "
        f"restore it from a backup"
    )


def read_steps(
    layout: Layout,
    records: Stored,
    n_steps: int,
    block_steps: int,
    offsets: Sequence[int] | NDArray[Any] | None,
    start: int,
    stop: int,
    *,
    fields: Sequence[str] | None = None,
    first_seq: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the fields of a run of steps of a chunk as arrays that own their memory.

    Args:
        layout: The typed fields.
        records: The typed fields of the chunk's steps, in blocks.
        n_steps: Number of steps in the chunk.
        block_steps: Number of steps in a block; the last block may be shorter.
        offsets: Where each block begins and where the last one ends, in bytes of `records`; None if
            all steps are one plain block.
        start: Place of the first step to read.
        stop: Place after the last one.
        fields: Fields to read; all by default.
        first_seq: Number of the chunk's first step, for error messages.

    Returns:
        The result of `Layout.unpack` for these steps.

    Raises:
        FieldError: The bytes are damaged; the message names a step.
    """
    field_names, size = layout.wanted(fields), layout.size_bytes
    if not field_names:
        return {}
    seqs = None if first_seq is None else range(first_seq, first_seq + n_steps)
    base = start - start % block_steps
    firsts = range(base, stop, block_steps)
    blocks = stored_blocks(records, n_steps, block_steps, offsets, firsts, seqs)
    run_seqs = None if seqs is None else seqs[start:stop]
    if layout.compression is not None:
        blocks = expand(blocks, None if seqs is None else [seqs[i] for i in firsts])
    elif layout.has_tails:  # a block for each step
        return layout.unpack_expanded(blocks, fields, seqs=run_seqs)
    if layout.has_tails:
        rows = [
            row
            for i, block in zip(firsts, blocks, strict=True)
            for row in _rows(layout, block, min(block_steps, n_steps - i), shown_row(i, seqs))
        ]
        return layout.unpack_expanded(rows[start - base : stop - base], fields, seqs=run_seqs)
    for i, block in zip(firsts, blocks, strict=True):
        if len(block) != min(block_steps, n_steps - i) * size:
            raise _damaged(shown_row(i, seqs))
    whole: Any = blocks[0] if len(blocks) == 1 else b"".join(blocks)
    taken = np.frombuffer(whole, layout.record, stop - start, (start - base) * size)
    return layout.columns_of(taken, field_names)


def stored_blocks(
    records: Stored,
    n_steps: int,
    block_steps: int,
    offsets: Sequence[int] | NDArray[Any] | None,
    firsts: Sequence[int],
    seqs: Sequence[Any] | None = None,
) -> Any:
    """Return blocks of a chunk as they are stored.

    Args:
        records: The typed fields of the chunk's steps, in blocks.
        n_steps: Number of steps in the chunk.
        block_steps: Number of steps in a block; the last block may be shorter.
        offsets: Where each block begins and where the last one ends, in bytes of `records`; None if
            all steps are one plain block.
        firsts: The place of the first step of each block.
        seqs: The numbers of the chunk's steps, for error messages.

    Raises:
        FieldError: The offsets do not fit the bytes.
    """
    if offsets is None:
        return [records] * len(firsts)
    ends: list[int] = np.asarray(offsets).tolist()
    if (
        len(ends) != 1 - (-n_steps // block_steps)
        or [ends[0], ends[-1]] != [0, len(records)]
        or any(after < before for before, after in pairwise(ends))
    ):
        raise _damaged(shown_row(firsts[0] if firsts else 0, seqs))
    numbers = [first // block_steps for first in firsts]
    return [records[ends[i] : ends[i + 1]] for i in numbers]


def _rows(layout: Layout, block: Any, n: int, shown: str) -> list[bytes]:
    """Return the bytes of each of the n steps of an expanded block."""
    ends, size = _tail_ends(layout, block, shown), layout.size_bytes
    if len(ends) != n + 1:
        raise _damaged(shown)
    if n == 1:
        return [block]
    return [
        b"".join((block[i * size : (i + 1) * size], block[start:end]))
        for i, (start, end) in enumerate(pairwise(ends))
    ]
