"""A chunk with its numbers, as it is inserted."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.encoding.columns import reward_array
from sqlbuffer.encoding.packed_chunk import PackedChunk, Values

_LARGE = "9e999"  # JSON has no infinity, and both databases read this as one


class NumberedChunk(NamedTuple):
    """A chunk with its numbers.

    Attributes:
        chunk: The chunk.
        first_seq: Number of its first step.
        episode_id: Number of its episode.
        session_id: Number of its session.
        priority: What steps have that were given no priority; None: the buffer has none.
    """

    chunk: PackedChunk
    first_seq: int
    episode_id: int | None
    session_id: int | None
    priority: float | None

    @property
    def initial_priority(self) -> Values | None:
        """The priority that each step begins with; None: the buffer has none."""
        given = self.chunk.initial_priority
        if self.priority is None or isinstance(given, np.ndarray):
            return given
        if given is None:
            return np.full(self.chunk.n_steps, self.priority)
        return np.array([self.priority if own is None else own for own in given], np.float64)


def reward_bytes(chunk: PackedChunk) -> bytes | None:
    """Return the rewards of steps as numbers of 64 bits, NaN where there is none."""
    if chunk.reward is None and chunk.payloads is None:
        return None
    rewards = chunk.reward
    if chunk.payloads is not None:
        # NaN and -0.0 are in the JSON.
        extras = [text if text and '"$reals"' in text else None for text in chunk.payloads]
        held = [None] * chunk.n_steps if rewards is None else list(rewards)
        trees = [None if text is None else orjson.loads(text)["extra"] for text in extras]
        texts = [None if tree is None else orjson.dumps(tree).decode() for tree in trees]
        rewards = reward_array(held, texts)
    return np.array(rewards, ">f8").tobytes()


def end_bytes(chunk: PackedChunk) -> bytes | None:
    """Return a byte for each step: 1 where it terminated, 2 where it was truncated.

    Empty where none did; None where no step says whether it did.
    """
    flags = (chunk.terminated, chunk.truncated)
    if not any(map(_has_true, flags)):
        return b"" if any(map(_says, flags)) else None
    terminated, truncated = (
        np.zeros(chunk.n_steps, bool) if values is None else np.array(values, bool)
        for values in (chunk.terminated, chunk.truncated)
    )
    return (terminated + np.uint8(2) * truncated).astype(np.uint8).tobytes()


def stored_flags(flags: Values | None) -> Values | None:
    """Return the flags of steps as they are stored: none at all where all are False."""
    all_false = isinstance(flags, np.ndarray) and not _has_true(flags)
    return [] if all_false else flags


def _has_true(flags: Values | None) -> bool:
    if flags is None:
        return False
    # Of one step `any` takes ten times as long.
    return True in flags if isinstance(flags, list) else b"\1" in flags.tobytes()


def _says(flags: Values | None) -> bool:
    return isinstance(flags, np.ndarray) or any(flag is not None for flag in flags or ())


def json_column(values: Sequence[Values | None]) -> Sequence[str | None]:
    """Return the values of the steps of each of several chunks, of one column, as JSON lists."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return [None] * len(values)
    if kinds == {np.ndarray}:
        joined = _joined(values)
        if joined.dtype.kind == "f":
            # Of chunks of one step this takes a third of the time.
            parts = iter((values_json(joined) or "")[1:-1].split(","))
            return [f"[{','.join(islice(parts, len(own)))}]" for own in values if own is not None]
    return list(map(values_json, values))


def flag_column(flags: Sequence[Values | None]) -> Sequence[str | None]:
    """Return the flags of the steps of each of several chunks as JSON lists."""
    if set(map(type, flags)) == {np.ndarray} and not _joined(flags).any():
        return ["[]"] * len(flags)
    return [values_json(stored_flags(own)) for own in flags]


def _joined(values: Sequence[Values | None]) -> NDArray[Any]:
    return np.concatenate([own for own in values if isinstance(own, np.ndarray)])


def values_json(values: Values | None) -> str | None:
    """Return a value for each step as a JSON list."""
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        if values.dtype.kind != "f" or b"null" not in text:  # in the place of infinities
            return text.decode()
        values = values.tolist()
    return f"[{','.join(map(_json, values))}]"


def fields_json(fields: dict[str, Values] | None) -> str | None:
    """Return the lists of fields as one JSON object."""
    if fields is None:
        return None
    lists = (f"{orjson.dumps(name).decode()}:{values_json(own)}" for name, own in fields.items())
    return f"{{{','.join(lists)}}}"


def payloads_json(payloads: Sequence[str | None] | None) -> str | None:
    """Return the JSON of each step as one list."""
    if payloads is None:
        return None
    return f"[{','.join('null' if text is None else text for text in payloads)}]"


def _json(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return _LARGE if value > 0 else f"-{_LARGE}"
    return orjson.dumps(value).decode()
