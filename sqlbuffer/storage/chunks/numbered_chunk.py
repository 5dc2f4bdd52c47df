"""A chunk with its numbers, as it is inserted."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.encoding.chunks import PackedChunk, Values
from sqlbuffer.encoding.columns import reward_array
from sqlbuffer.storage.messages import share_payloads

_ALL_FALSE: list[bool | None] = []  # one for all: a new one for each chunk keeps the collector busy
_LARGE = "9e999"  # JSON has no infinity, and both databases read this as one


class NumberedChunk(NamedTuple):
    """A chunk with its numbers.

    Attributes:
        chunk: The chunk.
        first_seq: Number of its first step.
        episode_id: Number of its episode.
        session_id: Number of its session.
        priority: Priority of steps without a given one; None if the buffer has no priorities.
        inserted_at: Time when it was written, in the form of the database; None for now. Either all
            chunks of an insert have one, or none has.
    """

    chunk: PackedChunk
    first_seq: int
    episode_id: int | None
    session_id: int | None
    priority: float | None
    inserted_at: Any = None

    @property
    def initial_priority(self) -> Values | None:
        """The priority that each step begins with; None if the buffer has no priorities."""
        priorities = self.chunk.initial_priority
        if self.priority is None or isinstance(priorities, np.ndarray):
            return priorities
        if priorities is None:
            return np.full(self.chunk.n_steps, self.priority)
        return np.array(
            [self.priority if priority is None else priority for priority in priorities], np.float64
        )


def reward_column(chunks: Sequence[PackedChunk]) -> Sequence[bytes | None]:
    """Return the rewards of each chunk as 64-bit numbers, NaN for none."""
    rewards = [chunk.reward for chunk in chunks]
    if not _are_arrays(rewards) or any(chunk.payloads is not None for chunk in chunks):
        return list(map(_reward_bytes, chunks))
    raw = _joined(rewards).astype(">f8").tobytes()
    ends = accumulate(chunk.n_steps for chunk in chunks)
    return [
        raw[(end - chunk.n_steps) * 8 : end * 8] for chunk, end in zip(chunks, ends, strict=True)
    ]


def _reward_bytes(chunk: PackedChunk) -> bytes | None:
    if chunk.reward is None and chunk.payloads is None:
        return None
    rewards = chunk.reward
    if chunk.payloads is not None:
        # NaN and -0.0 are in the JSON.
        extras = [text if text and '"$reals"' in text else None for text in chunk.payloads]
        held = [None] * chunk.n_steps if rewards is None else list(rewards)
        trees = [None if text is None else orjson.loads(text).get("extra") for text in extras]
        texts = [None if tree is None else orjson.dumps(tree).decode() for tree in trees]
        rewards = reward_array(held, texts)
    return np.array(rewards, ">f8").tobytes()


class FlagColumns(NamedTuple):
    """How the steps of several chunks ended, with one value for each chunk.

    Attributes:
        terminated: The flags of the steps in stored form: no flags if all are False.
        truncated: Flags in the same form.
        ends: A byte for each step: 1 if it terminated, 2 if it was truncated. The bytes are empty
            if no step ended, and None if no step says if it ended.
    """

    terminated: Sequence[Values | None]
    truncated: Sequence[Values | None]
    ends: Sequence[bytes | None]


def flag_columns(chunks: Sequence[PackedChunk]) -> FlagColumns:
    """Return how the steps of each chunk ended."""
    terminated, truncated = [c.terminated for c in chunks], [c.truncated for c in chunks]
    if _are_arrays(terminated) and _are_arrays(truncated):
        starts = list(accumulate(map(len, terminated[:-1]), initial=0))  # type: ignore[arg-type]
        flags = _joined(terminated), _joined(truncated)
        if not (flags[0].any() or flags[1].any()):
            none = [_ALL_FALSE] * len(chunks)
            return FlagColumns(none, none, [b""] * len(chunks))
        have_ended, were_cut = (np.logical_or.reduceat(values, starts).tolist() for values in flags)
    else:
        have_ended, were_cut = _have_true(terminated), _have_true(truncated)
    return FlagColumns(
        _stored_flags(terminated, have_ended),
        _stored_flags(truncated, were_cut),
        [
            _end_bytes(chunk) if ended or cut else _no_ends(chunk)
            for chunk, ended, cut in zip(chunks, have_ended, were_cut, strict=True)
        ],
    )


def _end_bytes(chunk: PackedChunk) -> bytes:
    terminated, truncated = (
        np.zeros(chunk.n_steps, bool) if values is None else np.array(values, bool)
        for values in (chunk.terminated, chunk.truncated)
    )
    return (terminated + np.uint8(2) * truncated).astype(np.uint8).tobytes()


def _stored_flags(
    column: Sequence[Values | None], have_true: Sequence[bool]
) -> Sequence[Values | None]:
    return [
        _ALL_FALSE if isinstance(flags, np.ndarray) and not has_true else flags
        for flags, has_true in zip(column, have_true, strict=True)
    ]


def _have_true(column: Sequence[Values | None]) -> list[bool]:
    """Return for each chunk if a flag is set."""
    return [flags is not None and True in flags for flags in column]


def _no_ends(chunk: PackedChunk) -> bytes | None:
    return b"" if _has_flags(chunk.terminated) or _has_flags(chunk.truncated) else None


def _has_flags(flags: Values | None) -> bool:
    return isinstance(flags, np.ndarray) or any(flag is not None for flag in flags or ())


def json_column(values: Sequence[Values | None]) -> Sequence[str | None]:
    """Return one column of the steps of several chunks, as a JSON list for each chunk."""
    if set(map(type, values)) == {NoneType}:
        return [None] * len(values)
    if _are_arrays(values):
        # One text for all of them takes half the time.
        text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        if b"null" not in text:  # in place of infinities
            return [f"[{numbers}]" for numbers in text.decode()[2:-2].split("],[")]
    return [
        "[]" if list_of_chunk is _ALL_FALSE else values_json(list_of_chunk)
        for list_of_chunk in values
    ]


def _are_arrays(column: Sequence[Values | None]) -> bool:
    return set(map(type, column)) == {np.ndarray}


def _joined(values: Sequence[Values | None]) -> NDArray[Any]:
    return np.concatenate([array for array in values if isinstance(array, np.ndarray)])


def values_json(values: Values | None) -> str | None:
    """Return a value for each step as a JSON list."""
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        if values.dtype.kind != "f" or b"null" not in text:  # in place of infinities
            return text.decode()
        values = values.tolist()
    return f"[{','.join(map(_json, values))}]"


def fields_json(fields: dict[str, Values] | None) -> str | None:
    """Return the lists of fields as one JSON object."""
    if fields is None:
        return None
    lists = (
        f"{orjson.dumps(name).decode()}:{values_json(field_values)}"
        for name, field_values in fields.items()
    )
    return f"{{{','.join(lists)}}}"


def share_chunks(
    connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]
) -> list[NumberedChunk]:
    """Store the messages of chunks; return the chunks with their ids."""
    steps = [
        (one.first_seq + place, text)
        for one in numbered
        for place, text in enumerate(one.chunk.payloads or ())
    ]
    stored = iter(share_payloads(connection, buffer_id, steps))
    return [
        one
        if one.chunk.payloads is None
        else one._replace(
            chunk=replace(one.chunk, payloads=list(islice(stored, len(one.chunk.payloads))))
        )
        for one in numbered
    ]


def payloads_json(payloads: Sequence[str | None] | None) -> str | None:
    """Return the JSON of each step as one list."""
    if payloads is None:
        return None
    return f"[{','.join('null' if text is None else text for text in payloads)}]"


def _json(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return _LARGE if value > 0 else f"-{_LARGE}"
    return orjson.dumps(value).decode()
