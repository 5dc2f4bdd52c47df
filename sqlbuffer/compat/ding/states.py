"""The state of a buffer as a dict, and as the file of `save_data`."""

import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from sqlbuffer.checks import integer_of, real_of
from sqlbuffer.compat.ding.errors import ReplayError
from sqlbuffer.compat.ding.items import EncodedItem, decoded_item
from sqlbuffer.compat.ding.prioritized_ring import HeldItems, number_of
from sqlbuffer.compat.ding.rings import Counters
from sqlbuffer.encoding.priority_values import MOST_PRIORITY

_NAIVE_KEYS = ("tail", "valid_count", "push_count")
_ADVANCED_KEYS = ("use_count", "tail", "max_priority", "beta", "push_count")
# The members of a file.
_HEAD, _TEXTS, _ARRAYS, _ENDS = "head", "texts", "arrays", "ends"
_FORMAT = "sqlbuffer.compat.ding 1"


class MissingDataError(ReplayError, AssertionError):
    """A state without items."""


class RingState(NamedTuple):
    """The contents of a state.

    Attributes:
        items: The items, the oldest first.
        push_count: Number of pushed items; None where the state does not say.
        tail: Place of the next item; None if the state has none.
    """

    items: list[Any]
    push_count: int | None = None
    tail: int | None = None


def in_places(items: Sequence[Any], tail: int, size: int) -> list[Any]:
    """Return items in the places of a ring; None for an empty place."""
    places: list[Any] = [None] * size
    for i, item in enumerate(items):
        places[(tail - len(items) + i) % size] = item
    return places


def ring_state(state: Any, size: int) -> RingState:
    """Return the contents of a state, as far as a buffer of this size can hold them.

    Raises:
        ReplayError: The state has no `data`, or its parts do not fit together.
    """
    data = data_of(state)
    if not all(key in state for key in _NAIVE_KEYS):
        # Without these keys, an item None looks like an empty place.
        return RingState([item for item in data if item is not None])
    tail, valid, pushed = (_count(state, key) for key in _NAIVE_KEYS)
    if valid > len(data) or (len(data) and tail >= len(data)):
        raise ReplayError(
            f"a state of {len(data)} places cannot have valid_count={valid} and tail={tail}"
        )
    items = [data[(tail - valid + i) % len(data)] for i in range(valid)]
    kept = items[-size:]
    return RingState(kept, pushed, tail if len(data) == size else len(kept) % size)


def data_of(state: Any) -> Sequence[Any]:
    """Return the items of a state, None in empty places.

    Raises:
        MissingDataError: It lacks `data`.
        ReplayError: `data` is not a list.
    """
    if not isinstance(state, Mapping) or "data" not in state:
        raise MissingDataError("a state is a dict with 'data', as state_dict() returns it")
    data = state["data"]
    if not isinstance(data, (list, tuple)):
        raise ReplayError(f"'data' of a state is a list of items, got {type(data).__name__}")
    return data


def to_state_dict(held: HeldItems, size: int, beta: float, anneal_step: int) -> dict[str, Any]:
    """Return the contents of a buffer as a dict.

    Args:
        held: The contents.
        size: Number of places.
        beta: Its exponent if none is kept.
        anneal_step: In how many samples that is raised to 1.
    """
    counters = held.counters
    data: list[Any] = [None] * size
    use_count = dict.fromkeys(range(size), 0)
    places, place_of_0 = [], counters.place_of(0, size)
    for item, id_, priority, use in zip(
        held.items, held.ids, held.priorities, held.uses, strict=True
    ):
        place = (place_of_0 + number_of(id_)) % size
        added = {"replay_unique_id": id_, "replay_buffer_idx": place, "priority": priority}
        data[place] = {**item, **added}
        use_count[place] = use
        places.append(place)
    return {
        "data": data,
        "use_count": use_count,
        "tail": counters.tail,
        "max_priority": counters.max_priority,
        "anneal_step": anneal_step,
        "beta": beta if counters.beta is None else counters.beta,
        "head": places[0] if places else counters.tail,
        "next_unique_id": counters.push_count,
        "valid_count": len(places),
        "push_count": counters.push_count,
    }


def from_state_dict(state: Any, size: int) -> tuple[HeldItems, int | None] | None:
    """Return the contents of a state, as far as a buffer of this size can hold them.

    The second result is in how many samples beta rises to 1; None: unknown.

    The result is None if the state has items only.

    Raises:
        MissingDataError: The state has no `data`.
        ReplayError: The parts of the state do not fit together.
    """
    data = data_of(state)
    if not all(key in state for key in _ADVANCED_KEYS):
        return None
    used = state["use_count"]
    if not isinstance(used, Mapping):
        raise ReplayError(f"'use_count' of a state is a dict, got {used!r:.100}")
    entries = [
        (item, _id_of(item), item.get("priority"), _count(used, place, 2**31))
        for place, item in enumerate(data)
        if item is not None
    ]
    counters = Counters(
        _count(state, "push_count"),
        _count(state, "tail"),
        _real(state, "max_priority", MOST_PRIORITY),
        _real(state, "beta", 1.0),
    )
    steps = _count(state, "anneal_step") if "anneal_step" in state else None
    return _fitted(entries, counters, len(data), size), steps


def file_head(held: HeldItems, size: int, beta: float, anneal_step: int) -> dict[str, Any]:
    """Return the head of the file of a buffer: what belongs to its items.

    Args:
        held: The contents.
        size: Number of places.
        beta: Its exponent if none is kept.
        anneal_step: In how many samples that is raised to 1.
    """
    return {
        "kind": "advanced",
        "size": size,
        "tail": held.counters.tail,
        "push_count": held.counters.push_count,
        "max_priority": held.counters.max_priority,
        "beta": beta if held.counters.beta is None else held.counters.beta,
        "anneal_step": anneal_step,
        "ids": list(held.ids),
        "priorities": list(held.priorities),
        "uses": list(held.uses),
    }


def from_file(
    items: Sequence[EncodedItem], head: Mapping[str, Any], size: int
) -> tuple[HeldItems, int | None] | list[Any]:
    """Return the contents in a file, as `from_state_dict` does.

    Only the items are returned if a buffer of another kind wrote the file.
    """
    decoded = [decoded_item(text, arrays) for text, arrays in items]
    if head.get("kind") != "advanced":
        return decoded
    entries = list(zip(decoded, head["ids"], head["priorities"], head["uses"], strict=True))
    counters = Counters(head["push_count"], head["tail"], head["max_priority"], head["beta"])
    return _fitted(entries, counters, head["size"], size), head["anneal_step"]


def _fitted(
    entries: list[tuple[Any, str, Any, Any]], counters: Counters, had: int, size: int
) -> HeldItems:
    """Return the contents of a buffer, as far as one of another size can hold them."""
    numbers = [number_of(id_) for _, id_, _, _ in entries]
    end = counters.push_count
    if len(set(numbers)) < len(numbers) or not all(max(end - had, 0) <= n < end for n in numbers):
        raise ReplayError(
            f"a state with push_count={end} and {had} places has items of other numbers, or two "
            f"of one: {sorted(numbers)[:5]}.."
        )
    if had != size:
        counters = counters._replace(tail=end % size)
    if counters.tail >= size:
        raise ReplayError(f"a state of {size} places cannot have tail={counters.tail}")
    order = sorted(range(len(entries)), key=numbers.__getitem__)
    kept = [entries[i] for i in order if numbers[i] >= end - size]
    items, ids, priorities, uses = zip(*kept, strict=True) if kept else ((), (), (), ())
    return HeldItems(items, ids, priorities, uses, counters)


def _id_of(item: Any) -> str:
    id_ = item.get("replay_unique_id") if isinstance(item, dict) else None
    if not isinstance(id_, str):
        raise ReplayError(f"an item of a state lacks its replay_unique_id: {item!r:.200}")
    return id_


def _count(state: Mapping[Any, Any], key: Any, end: int = 2**63) -> int:
    stored = state.get(key, 0)
    value = integer_of(stored)
    if value is None or not 0 <= value < end:
        what = f"use_count[{key}]" if isinstance(key, int) else repr(key)
        raise ReplayError(f"{what} of a state is a whole number from 0 on, got {stored!r}")
    return value


def _real(state: Mapping[str, Any], key: str, most: float) -> float:
    value = real_of(state[key])
    if value is None or not 0 <= value <= most:
        raise ReplayError(f"{key!r} of a state is a number from 0 to {most:g}, got {state[key]!r}")
    return value


def write_file(file_name: Any, items: Sequence[EncodedItem], head: Mapping[str, Any]) -> None:
    """Write encoded items to a file; an existing file is replaced, as a whole or not at all.

    Args:
        file_name: Any name; folders are made.
        items: The items, the oldest first.
        head: Other data of the items, as JSON.
    """
    path = _path(file_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [b"" if text is None else text.encode() for text, _ in items]
    blobs = [bytes(arrays or b"") for _, arrays in items]
    ends = np.cumsum([[len(t), len(b)] for t, b in zip(texts, blobs, strict=True)] or [[0, 0]], 0)
    members = {
        _HEAD: orjson.dumps({"format": _FORMAT, "n_items": len(items), **head}),
        _TEXTS: b"".join(texts),
        _ARRAYS: b"".join(blobs),
    }
    # In the same folder, because only there it can be renamed in one step.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            arrays = {name: np.frombuffer(raw, np.uint8) for name, raw in members.items()}
            np.savez(file, **arrays, **{_ENDS: ends})  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_file(file_name: Any) -> tuple[list[EncodedItem], dict[str, Any]]:
    """Return what `write_file` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ReplayError: Another kind of file, or a damaged one.
    """
    path = _path(file_name)
    raw = path.read_bytes()
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as members:
            head: dict[str, Any] = orjson.loads(members[_HEAD].tobytes())
            texts, arrays, ends = members[_TEXTS].data, members[_ARRAYS].data, members[_ENDS]
        if head["format"] != _FORMAT:
            raise ValueError(head["format"])
        starts = np.vstack([np.zeros((1, 2), ends.dtype), ends[:-1]])
        items = [
            (bytes(texts[t0:t1]).decode() or None, bytes(arrays[a0:a1]) or None)
            for (t0, a0), (t1, a1) in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return list(items[: head["n_items"]]), head
    except Exception as error:
        raise ReplayError(
            f"{path} is not a file of save_data(), or is damaged ({type(error).__name__}); load a "
            "file of DI-engine itself there, and push its items here"
        ) from None


def _path(file_name: Any) -> Path:
    if not isinstance(file_name, (str, os.PathLike)) or not os.fspath(file_name):
        raise TypeError(f"file_name is the path of a file, got {file_name!r}")
    return Path(os.fsdecode(os.fspath(file_name))).expanduser()
