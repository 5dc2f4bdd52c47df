"""A chunk with its numbers, as it is inserted."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

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


def values_json(values: Values | None) -> str | None:
    """Return a value for each step as a JSON list."""
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        if values.dtype.kind != "f" or np.isfinite(values).all():
            return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).decode()
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
