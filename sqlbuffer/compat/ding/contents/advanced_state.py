"""The state of an advanced buffer, as a dict and as the head of a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlbuffer.checks import integer_of, real_of
from sqlbuffer.compat.ding.contents.item_codec import Encoded, decoded_item
from sqlbuffer.compat.ding.contents.state_dict import data_of
from sqlbuffer.compat.ding.errors import ReplayError
from sqlbuffer.encoding.priority_values import MOST_PRIORITY
from sqlbuffer.storage.extensions.credit_ledger import CreditLedger
from sqlbuffer.storage.extensions.item_ids import number_of
from sqlbuffer.storage.extensions.ring_buffer import RingCounts

KEYS = ("use_count", "tail", "max_priority", "beta", "push_count")


@dataclass(frozen=True)
class AdvancedState:
    """The contents of a state: its items, the oldest first, and the counters of the buffer.

    Attributes:
        items: The items.
        ids: Their ids.
        priorities: Their priorities.
        uses: Number of uses of each item.
        counts: The counters.
        ledger: Other counters that are kept.
        anneal_step: Number of samples in which beta rises to 1; None: unknown.
    """

    items: Sequence[Any]
    ids: Sequence[str]
    priorities: Sequence[float]
    uses: Sequence[int]
    counts: RingCounts
    ledger: CreditLedger
    anneal_step: int | None


def to_state_dict(held: AdvancedState, size: int, beta: float, anneal_step: int) -> dict[str, Any]:
    """Return the contents of a buffer as a dict.

    Args:
        held: The contents.
        size: Number of places.
        beta: Its exponent if none is kept.
        anneal_step: In how many samples that is raised to 1.
    """
    counts, ledger = held.counts, held.ledger
    data: list[Any] = [None] * size
    use_count = dict.fromkeys(range(size), 0)
    places = []
    for item, id_, priority, use in zip(
        held.items, held.ids, held.priorities, held.uses, strict=True
    ):
        place = (number_of(id_) - counts.push_count + counts.tail) % size
        own = {"replay_unique_id": id_, "replay_buffer_idx": place, "priority": priority}
        data[place] = {**item, **own}
        use_count[place] = use
        places.append(place)
    return {
        "data": data,
        "use_count": use_count,
        "tail": counts.tail,
        "max_priority": ledger.max_priority,
        "anneal_step": anneal_step,
        "beta": beta if ledger.beta is None else ledger.beta,
        "head": places[0] if places else counts.tail,
        "next_unique_id": counts.push_count,
        "valid_count": len(places),
        "push_count": counts.push_count,
    }


def from_state_dict(state: Any, size: int) -> AdvancedState | None:
    """Return the contents of a state, as far as a buffer of this size can hold them.

    The result is None if the state has items only.

    Raises:
        MissingDataError: The state has no `data`.
        ReplayError: The parts of the state do not fit together.
    """
    data = data_of(state)
    if not all(key in state for key in KEYS):
        return None
    used = state["use_count"]
    if not isinstance(used, Mapping):
        raise ReplayError(f"'use_count' of a state is a dict, got {used!r:.100}")
    found = [
        (item, _id_of(item), item.get("priority"), _count(used, place, 2**31))
        for place, item in enumerate(data)
        if item is not None
    ]
    counts = RingCounts(_count(state, "push_count"), _count(state, "tail"))
    ledger = CreditLedger(_real(state, "max_priority", MOST_PRIORITY), _real(state, "beta", 1.0))
    steps = _count(state, "anneal_step") if "anneal_step" in state else None
    return _fitted(found, counts, ledger, steps, len(data), size)


def file_head(held: AdvancedState, size: int, beta: float, anneal_step: int) -> dict[str, Any]:
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
        "tail": held.counts.tail,
        "push_count": held.counts.push_count,
        "max_priority": held.ledger.max_priority,
        "beta": beta if held.ledger.beta is None else held.ledger.beta,
        "anneal_step": anneal_step,
        "ids": list(held.ids),
        "priorities": list(held.priorities),
        "uses": list(held.uses),
    }


def from_file(
    items: Sequence[Encoded], head: Mapping[str, Any], size: int
) -> AdvancedState | list[Any]:
    """Return what a file says, as far as a buffer of this size can hold it; of a buffer of another
    kind its items.
    """
    decoded = [decoded_item(text, arrays) for text, arrays in items]
    if head.get("kind") != "advanced":
        return decoded
    found = list(zip(decoded, head["ids"], head["priorities"], head["uses"], strict=True))
    counts = RingCounts(head["push_count"], head["tail"])
    ledger = CreditLedger(head["max_priority"], head["beta"])
    return _fitted(found, counts, ledger, head["anneal_step"], head["size"], size)


def _fitted(
    found: list[tuple[Any, str, Any, Any]],
    counts: RingCounts,
    ledger: CreditLedger,
    anneal_step: int | None,
    had: int,
    size: int,
) -> AdvancedState:
    """Return the contents of a buffer, as far as one of another size can hold them."""
    numbers = [number_of(id_) for _, id_, _, _ in found]
    end = counts.push_count
    if len(set(numbers)) < len(numbers) or not all(max(end - had, 0) <= n < end for n in numbers):
        raise ReplayError(
            f"a state with push_count={end} and {had} places has items of other numbers, or two "
            f"of one: {sorted(numbers)[:5]}.."
        )
    if had != size:
        counts = RingCounts(end, end % size)
    if counts.tail >= size:
        raise ReplayError(f"a state of {size} places cannot have tail={counts.tail}")
    order = sorted(range(len(found)), key=numbers.__getitem__)
    kept = [found[i] for i in order if numbers[i] >= end - size]
    items, ids, priorities, uses = zip(*kept, strict=True) if kept else ((), (), (), ())
    return AdvancedState(items, ids, priorities, uses, counts, ledger, anneal_step)


def _id_of(item: Any) -> str:
    id_ = item.get("replay_unique_id") if isinstance(item, dict) else None
    if not isinstance(id_, str):
        raise ReplayError(f"an item of a state lacks its replay_unique_id: {item!r:.200}")
    return id_


def _count(state: Mapping[Any, Any], key: Any, end: int = 2**63) -> int:
    given = state.get(key, 0)
    value = integer_of(given)
    if value is None or not 0 <= value < end:
        what = f"use_count[{key}]" if isinstance(key, int) else repr(key)
        raise ReplayError(f"{what} of a state is a whole number from 0 on, got {given!r}")
    return value


def _real(state: Mapping[str, Any], key: str, most: float) -> float:
    value = real_of(state[key])
    if value is None or not 0 <= value <= most:
        raise ReplayError(f"{key!r} of a state is a number from 0 to {most:g}, got {state[key]!r}")
    return value
