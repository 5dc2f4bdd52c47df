"""Chunks with their numbers, as they are inserted."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.encoding.chunks import ChunkColumns, Values
from sqlbuffer.encoding.columns import reward_array
from sqlbuffer.encoding.episode_records import PlacedEpisode
from sqlbuffer.storage.messages import share_payloads

_ALL_FALSE: list[bool | None] = []  # one for all: a new one for each chunk keeps the collector busy
_TRUE = b"\1"  # in the bytes of an array of flags
_LARGE = "9e999"  # JSON has no infinity, and both databases read this as one


class NumberedChunks(NamedTuple):
    """Chunks with their numbers.

    Attributes:
        chunks: The chunks.
        first_seqs: Number of the first step of each chunk.
        episode_ids: Number of the episode of each.
        session_ids: Number of the session of each.
        priority: Priority of steps without a given one; None if the buffer has no priorities.
        inserted_at: Time when each was written, in the form of the database; None for now.
    """

    chunks: ChunkColumns
    first_seqs: Sequence[int]
    episode_ids: Sequence[int | None]
    session_ids: Sequence[int | None]
    priority: float | None
    inserted_at: Sequence[Any] | None = None

    @property
    def n_steps(self) -> int:
        """Number of their steps."""
        return sum(self.chunks.column("n_steps"))

    def part(self, places: slice) -> "NumberedChunks":
        """Return some of the chunks."""
        return NumberedChunks(
            self.chunks[places],
            self.first_seqs[places],
            self.episode_ids[places],
            self.session_ids[places],
            self.priority,
            self.inserted_at and self.inserted_at[places],
        )

    @property
    def has_priorities(self) -> bool:
        """True if the buffer has priorities, or any were given."""
        return self.priority is not None or self.chunks.has("initial_priority")

    def initial_priorities(self) -> Sequence[Values | None]:
        """Return the priorities that the steps of each begin with; None without priorities."""
        given = self.chunks.column("initial_priority")
        if self.priority is None:
            return given
        default = self.priority
        return [
            _with_default(priorities, default, n)
            for priorities, n in zip(given, self.chunks.column("n_steps"), strict=True)
        ]


def numbered_chunks(
    packed: ChunkColumns,
    first_seq: int,
    priority: float | None,
    episodes: Sequence[PlacedEpisode],
    ids: Sequence[int],
) -> NumberedChunks:
    """Return chunks with consecutive numbers, and with those of their episodes.

    Args:
        packed: The chunks, of steps without sessions.
        first_seq: Number of their first step.
        priority: Priority of steps without a given one.
        episodes: Their episodes.
        ids: The number of each episode.
    """
    *firsts, _ = accumulate(packed.column("n_steps"), initial=first_seq)
    none: Sequence[int | None] = [None] * len(packed)
    episode_ids = none
    if episodes:
        of_keys: dict[tuple[str | None, str], int] = {
            (episode.key, episode.task_id): id_ for episode, id_ in zip(episodes, ids, strict=True)
        }
        keys = zip(packed.column("episode_key"), packed.column("task_id"), strict=True)
        episode_ids = list(map(of_keys.get, keys))
    return NumberedChunks(packed, firsts, episode_ids, none, priority)


def _with_default(priorities: Values | None, default: float, n_steps: int) -> Values:
    if priorities is None:
        return np.full(n_steps, default)
    if isinstance(priorities, np.ndarray):
        return priorities
    filled = [default if priority is None else priority for priority in priorities]
    return np.array(filled, np.float64)


def reward_column(chunks: ChunkColumns) -> Sequence[bytes | None]:
    """Return the rewards of each chunk as 64-bit numbers, NaN for none."""
    rewards, lengths = chunks.column("reward"), chunks.column("n_steps")
    if not _are_arrays(rewards) or chunks.has("payloads"):
        payloads = chunks.column("payloads")
        return list(map(_reward_bytes, rewards, payloads, lengths))
    raw = _joined(rewards).astype(">f8").tobytes()
    bounds = accumulate([8 * n_steps for n_steps in lengths], initial=0)
    return [raw[start:end] for start, end in pairwise(bounds)]


def _reward_bytes(
    rewards: Values | None, payloads: Sequence[str | None] | None, n_steps: int
) -> bytes | None:
    if rewards is None and payloads is None:
        return None
    if payloads is not None:
        # NaN and -0.0 are in the JSON.
        extras = [text if text and '"$reals"' in text else None for text in payloads]
        held = [None] * n_steps if rewards is None else list(rewards)
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


def flag_columns(chunks: ChunkColumns) -> FlagColumns:
    """Return how the steps of each chunk ended."""
    lengths = chunks.column("n_steps")
    terminated, truncated = (list(chunks.column(name)) for name in ("terminated", "truncated"))
    given_columns = [column for column in (terminated, truncated) if not _are_missing(column)]
    if not all(map(_are_arrays, given_columns)):
        return FlagColumns(
            list(map(_stored_flags, terminated)),
            list(map(_stored_flags, truncated)),
            list(map(_end_bytes, terminated, truncated, lengths)),
        )
    # Most chunks have no flag that is set.
    stored = FlagColumns(
        [None if terminated[0] is None else _ALL_FALSE] * len(chunks),
        [None if truncated[0] is None else _ALL_FALSE] * len(chunks),
        [b"" if given_columns else None] * len(chunks),
    )
    bounds = list(accumulate(lengths, initial=0))
    for column in given_columns:
        flags = _joined(column).tobytes()
        step = flags.find(_TRUE)
        while step >= 0:
            place = bisect_right(bounds, step) - 1
            both = terminated[place], truncated[place]
            stored.terminated[place], stored.truncated[place] = map(_stored_flags, both)
            stored.ends[place] = _end_bytes(*both, lengths[place])
            step = flags.find(_TRUE, bounds[place + 1])
    return stored


def _stored_flags(flags: Values | None) -> Values | None:
    return _ALL_FALSE if isinstance(flags, np.ndarray) and not flags.any() else flags


def _end_bytes(terminated: Values | None, truncated: Values | None, n_steps: int) -> bytes | None:
    first, second = (
        np.zeros(n_steps, bool) if values is None else np.array(values, bool)
        for values in (terminated, truncated)
    )
    if not (first.any() or second.any()):
        return b"" if _has_flags(terminated) or _has_flags(truncated) else None
    return (first + np.uint8(2) * second).astype(np.uint8).tobytes()


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
    connection: Connection, buffer_id: int, numbered: NumberedChunks
) -> NumberedChunks:
    """Store the messages of chunks; return the chunks with their ids."""
    payloads = numbered.chunks.column("payloads")
    steps = [
        (first_seq + place, text)
        for first_seq, texts in zip(numbered.first_seqs, payloads, strict=True)
        for place, text in enumerate(texts or ())
    ]
    stored = iter(share_payloads(connection, buffer_id, steps))
    shared = [None if texts is None else list(islice(stored, len(texts))) for texts in payloads]
    return numbered._replace(chunks=numbered.chunks.replaced(payloads=shared))


def payloads_json(payloads: Sequence[str | None] | None) -> str | None:
    """Return the JSON of each step as one list."""
    if payloads is None:
        return None
    return f"[{','.join('null' if text is None else text for text in payloads)}]"


def _json(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return _LARGE if value > 0 else f"-{_LARGE}"
    return orjson.dumps(value).decode()
