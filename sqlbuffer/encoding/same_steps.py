"""Compare the steps of two chunks: a step with the same content, to the bit, is a duplicate."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.equality import equal
from sqlbuffer.encoding.packed_chunk import PackedChunk, Values, step_numbers, step_rows
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import decode_extra
from sqlbuffer.encoding.step_payloads import split_payload

_OF_ALL = (
    "task_id",
    "task_name",
    "agent_id",
    "pre_agent",
    "episode_key",
    "session_key",
    "model_version",
)
_OF_EACH = ("reward", "adv_t", "v_t", "terminated", "truncated")


def same_steps(
    layout: Layout,
    left: PackedChunk,
    left_places: Sequence[int],
    right: PackedChunk,
    right_places: Sequence[int],
    ignore: Collection[str] = (),
) -> NDArray[np.bool_]:
    """Return for pairs of steps whether both hold the same, to the bit; shape (n,).

    Ids, priorities and times are not compared.

    Args:
        layout: The typed fields.
        left: A chunk, packed here or read back. Step numbers that were made are not compared.
        left_places: Places of n steps in it.
        right: Another chunk.
        right_places: Places of the n steps that these are compared with.
        ignore: Keys of a chunk that may differ, such as one that the library made.

    Raises:
        FieldError: Damaged bytes.
    """
    ours, theirs = (np.asarray(places, np.int64) for places in (left_places, right_places))
    keys = [name for name in _OF_ALL if name not in ignore]
    if any(getattr(left, name) != getattr(right, name) for name in keys):
        return np.zeros(len(ours), bool)
    same: NDArray[np.bool_] = step_numbers(left, ours) == step_numbers(right, theirs)
    same |= left.makes_steps
    for name in _OF_EACH:
        same &= _same(getattr(left, name), ours, getattr(right, name), theirs)
    same &= _same_records(layout, left, ours, right, theirs)
    if left.payloads is not None or right.payloads is not None:
        for i in np.flatnonzero(same).tolist():
            same[i] = _same_payloads(layout, left, int(ours[i]), right, int(theirs[i]))
    return same


def _same_payloads(layout: Layout, left: PackedChunk, i: int, right: PackedChunk, j: int) -> bool:
    """Return True if two payloads are the same; databases may order the keys of JSON."""
    return equal(_payload(layout, left, i), _payload(layout, right, j), strict=True)


def _payload(layout: Layout, chunk: PackedChunk, place: int) -> list[Any]:
    text = None if chunk.payloads is None else chunk.payloads[place]
    payload = split_payload(layout, text, chunk.payload_arrays)
    reals: dict[str, Any] = {}
    return [
        decode(payload.state, payload.arrays),
        decode(payload.actions, payload.arrays),
        decode(payload.messages, payload.arrays),
        decode_extra(payload.extra, payload.arrays, reals),
        reals,
    ]


def _same(
    left: Values | None, ours: NDArray[np.int64], right: Values | None, theirs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return where values are the same; None is the same as None only. None of them is NaN."""
    a, b = _numbers(left, ours), _numbers(right, theirs)
    same: NDArray[np.bool_] = (a == b) | (np.isnan(a) & np.isnan(b))
    return same


def _numbers(values: Values | None, places: NDArray[np.int64]) -> NDArray[np.float64]:
    if values is None:
        return np.full(len(places), np.nan)
    numbers: NDArray[np.float64] = np.array(values, np.float64)[places]  # None is NaN
    return numbers


def _same_records(
    layout: Layout,
    left: PackedChunk,
    ours: NDArray[np.int64],
    right: PackedChunk,
    theirs: NDArray[np.int64],
) -> NDArray[np.bool_]:
    a, b = step_rows(layout, left, ours), step_rows(layout, right, theirs)
    return np.fromiter(map(bytes.__eq__, a, b), bool, len(a))
