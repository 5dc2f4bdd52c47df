"""A chunk with its numbers, as it is inserted."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice, pairwise
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.encoding.chunks import PackedChunk, Values
from sqlbuffer.encoding.columns import reward_array
from sqlbuffer.encoding.episode_records import PlacedEpisode
from sqlbuffer.storage.messages import share_payloads

_ALL_FALSE: list[bool | None] = []  # one for all: a new one for each chunk keeps the collector busy
_TRUE = b"\1"  # in the bytes of an array of flags
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


def numbered_chunks(
    packed: Sequence[PackedChunk],
    first_seq: int,
    priority: float | None,
    episodes: Sequence[PlacedEpisode],
    ids: Sequence[int],
) -> list[NumberedChunk]:
    """Return chunks with consecutive numbers, and with those of their episodes.

    Args:
        packed: The chunks, of steps without sessions.
        first_seq: Number of their first step.
        priority: Priority of steps without a given one.
        episodes: Their episodes.
        ids: The number of each episode.
    """
    firsts = accumulate([chunk.n_steps for chunk in packed], initial=first_seq)
    if not episodes:
        return [
            NumberedChunk(chunk, seq, None, None, priority)
            for chunk, seq in zip(packed, firsts, strict=False)
        ]
    of_keys: dict[tuple[str | None, str], int] = {
        (episode.key, episode.task_id): id_ for episode, id_ in zip(episodes, ids, strict=True)
    }
    return [
        NumberedChunk(chunk, seq, of_keys.get((chunk.episode_key, chunk.task_id)), None, priority)
        for chunk, seq in zip(packed, firsts, strict=False)
    ]


def reward_column(chunks: Sequence[PackedChunk]) -> Sequence[bytes | None]:
    """Return the rewards of each chunk as 64-bit numbers, NaN for none."""
    rewards = [chunk.reward for chunk in chunks]
    if not _are_arrays(rewards) or {chunk.payloads is None for chunk in chunks} != {True}:
        return list(map(_reward_bytes, chunks))
    raw = _joined(rewards).astype(">f8").tobytes()
    bounds = accumulate([8 * chunk.n_steps for chunk in chunks], initial=0)
    return [raw[start:end] for start, end in pairwise(bounds)]


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

    terminated: list[Values | None]
    truncated: list[Values | None]
    ends: list[bytes | None]


def flag_columns(chunks: Sequence[PackedChunk]) -> FlagColumns:
    """Return how the steps of each chunk ended."""
    terminated: list[Any] = [chunk.terminated for chunk in chunks]
    truncated: list[Any] = [chunk.truncated for chunk in chunks]
    given_columns = [column for column in (terminated, truncated) if not _are_missing(column)]
    if not all(map(_are_arrays, given_columns)):
        return FlagColumns(
            list(map(_stored_flags, terminated)),
            list(map(_stored_flags, truncated)),
            list(map(_end_bytes, chunks)),
        )
    # Most chunks have no flag that is set.
    stored = FlagColumns(
        [None if terminated[0] is None else _ALL_FALSE] * len(chunks),
        [None if truncated[0] is None else _ALL_FALSE] * len(chunks),
        [b"" if given_columns else None] * len(chunks),
    )
    bounds = list(accumulate([chunk.n_steps for chunk in chunks], initial=0))
    for column in given_columns:
        flags = _joined(column).tobytes()
        step = flags.find(_TRUE)
        while step >= 0:
            place = bisect_right(bounds, step) - 1
            stored.terminated[place] = _stored_flags(terminated[place])
            stored.truncated[place] = _stored_flags(truncated[place])
            stored.ends[place] = _end_bytes(chunks[place])
            step = flags.find(_TRUE, bounds[place + 1])
    return stored


def _stored_flags(flags: Values | None) -> Values | None:
    return _ALL_FALSE if isinstance(flags, np.ndarray) and not flags.any() else flags


def _end_bytes(chunk: PackedChunk) -> bytes | None:
    terminated, truncated = (
        np.zeros(chunk.n_steps, bool) if values is None else np.array(values, bool)
        for values in (chunk.terminated, chunk.truncated)
    )
    if not (terminated.any() or truncated.any()):
        return b"" if _has_flags(chunk.terminated) or _has_flags(chunk.truncated) else None
    return (terminated + np.uint8(2) * truncated).astype(np.uint8).tobytes()


def _has_flags(flags: Values | None) -> bool:
    return isinstance(flags, np.ndarray) or any(flag is not None for flag in flags or ())


def json_column(values: Sequence[Values | None]) -> Sequence[str | None]:
    """Return one column of the steps of several chunks, as a JSON list for each chunk."""
    if _are_missing(values):
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


def _are_missing(column: Sequence[Values | None]) -> bool:
    return set(map(type, column)) == {NoneType}


def _are_arrays(column: Sequence[Values | None]) -> bool:
    return set(map(type, column)) == {np.ndarray}


def _joined(values: Sequence[Values | None]) -> NDArray[Any]:
    arrays: Any = values
    return np.concatenate(arrays)


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
