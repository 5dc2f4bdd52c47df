"""What a mirror keeps of a step: the record that batches are made of, and its links."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.storage.following.buffer_state import ChunkRow

Integers = NDArray[np.int64]

# Fields of that many bytes have an array of their own: a gather of whole records would copy them
# where they are not asked for.
LARGE_BYTES = 1024
# Fields have names that Python could use, so these are free.
SEQ, STEP, TASK, AGENT, EPISODE, T = ".seq", ".step", ".task", ".agent", ".episode", ".t"
# Flags of a step. It is live if the buffer has it, barred if it may not be sampled now; told if it
# says whether the episode ended there.
TERMINATED, TRUNCATED, LAST, LIVE, BARRED, TOLD = 1, 2, 4, 8, 16, 32
NO_VERSION = np.iinfo(np.int64).max
NO_REWARD = np.array(np.nan, ">f8").tobytes()
LINK: np.dtype[Any] = np.dtype(
    [
        ("reward", np.float64),
        ("next", np.int32),
        ("prev", np.int32),
        ("episode", np.int32),
        ("t", np.int32),
        ("flags", np.uint8),
    ],
    align=True,
)


def record_of(layout: Layout) -> np.dtype[Any]:
    """Return the dtype of what is gathered of a step: its small fields, and what batches say."""
    small = [
        (name, layout.record[name])
        for name, spec in layout.specs.items()
        if spec.is_variable or layout.record[name].itemsize < LARGE_BYTES
    ]
    own: list[Any] = [
        ("reward", np.float32), ("terminated", np.bool_), ("truncated", np.bool_), (SEQ, np.int64),
        (STEP, np.int64), (TASK, np.int32), (AGENT, np.int32), (EPISODE, np.int32), (T, np.int32),
    ]  # fmt: skip
    return np.dtype([*small, *own], align=True)


def slot_bytes(layout: Layout) -> int:
    """Return how much memory a slot takes, without values of varying length."""
    large = sum(
        layout.record[name].itemsize
        for name in layout.specs
        if name not in (record_of(layout).names or ())
    )
    flags_and_limits = 2 + 8 + 4
    pointer = 8 if layout.has_tails else 0
    return record_of(layout).itemsize + LINK.itemsize + large + flags_and_limits + pointer


def as_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rewards as batches have them; those too large are infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def as_slice(slots: Integers) -> Any:
    """Return slots next to each other as a slice, which numpy copies to much faster."""
    first, last = int(slots[0]), int(slots[-1])
    is_run = last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all())
    return slice(first, last + 1) if is_run else slots


def step_numbers_of(
    chunks: Sequence[ChunkRow], counts: Integers, ends: Integers, places: Integers
) -> Integers:
    steps: Integers = np.repeat([chunk.step for chunk in chunks], counts) + places
    for chunk, end in zip(chunks, ends.tolist(), strict=True):
        if chunk.steps is not None:
            steps[end - chunk.n_steps : end] = chunk.steps
    return steps


def flags_of(chunk: ChunkRow) -> bytes:
    """Return the flags of the steps of a chunk."""
    if chunk.ends is None:
        return bytes(chunk.n_steps)
    told = np.frombuffer(chunk.ends or bytes(chunk.n_steps), np.uint8) | np.uint8(TOLD)
    return told.tobytes()


def lengthened(array: NDArray[Any], more: int) -> NDArray[Any]:
    """Return a copy of an array with more entries, which are zero."""
    found = np.zeros((len(array) + more, *array.shape[1:]), array.dtype)
    found[: len(array)] = array
    return found
