"""Conditions over the steps in memory: their columns, and the steps that match."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import (
    NO_TERMINATED,
    NO_TRUNCATED,
    NONE,
    STATUS_NAMES,
    TERMINATED,
    TRUNCATED,
)
from sqlbuffer.errors import ConditionError
from sqlbuffer.mirror.memory.records import AGENT, SEQ, STEP, TASK
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.tables import EpisodeTable
from sqlbuffer.query.query_filter import NumberColumn, TextColumn, matching, value_at
from sqlbuffer.query.tree import DECLARED, EVERYTHING, Field, Leaf, Node, facts_of_episodes

Integers = NDArray[np.int64]
Column = NumberColumn | TextColumn


def check_no_abandoned(node: Node) -> None:
    """Raise ConditionError if a condition tells open episodes from abandoned ones."""
    if not isinstance(node, Leaf):
        for part in node.parts:
            check_no_abandoned(part)
    elif node.field.column == "status" and not _names_ends(node):
        raise ConditionError(
            f"a mirror does not know which open episodes are abandoned ({node.field.name!r}); draw "
            f"by this condition from the buffer itself"
        )


def check_in_memory(node: Node, kept: Collection[str]) -> None:
    """Raise ConditionError if a condition uses a field that is not in memory.

    Args:
        node: The condition.
        kept: The declared fields that are.
    """
    if not isinstance(node, Leaf):
        for part in node.parts:
            check_in_memory(part, kept)
        return
    field = node.field
    if field.column == DECLARED and field.name not in kept:
        raise ConditionError(
            f"the mirror was opened without field {field.name!r}; add it to fields=[...]"
        )
    check_no_abandoned(node)
    if field.column != DECLARED and field.column not in _COLUMNS and not field.is_of_episode:
        raise _refused(f"{field.name!r} is not in the memory of a mirror")
    lists_null = node.op == "in" and not isinstance(node.value, str) and None in node.value
    if field.column == "reward_t" and (node.op == "is_null" or lists_null):
        raise _refused(f"a mirror stores None and NaN of {field.name!r} as the same value")


def _names_ends(leaf: Leaf) -> bool:
    """Return True if it makes no difference to a leaf on the status whether one is abandoned."""
    values = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
    ends = {"complete", "aborted", None}
    return leaf.op == "is_null" or (leaf.op in ("eq", "in") and set(values) <= ends)


def _refused(why: str) -> ConditionError:
    return ConditionError(
        f"{why}, so it cannot draw by this condition; open one that follows the steps that match: "
        f"buffer.mirror(condition=...)"
    )


def step_column(memory: StepMemory, field: Field, slots: Integers) -> Column:
    """Return a column of steps that the buffer has.

    Args:
        memory: The steps.
        field: Column to return; see `check_in_memory`.
        slots: Slots of the steps, shape (n,).
    """
    if field.column == DECLARED:
        return _declared(memory, field.name, slots)
    if field.is_of_episode:
        return _fact(memory, field, slots)
    return _COLUMNS[field.column](memory, slots)


def _declared(memory: StepMemory, name: str, slots: Integers) -> Column:
    values = memory.large[name][slots] if name in memory.large else memory.records[name][slots]
    if values.dtype.kind == "U":
        texts, index = np.unique(values, return_inverse=True)
        return TextColumn(texts.tolist(), index)
    # JSON shows more digits of 64 bits than of 32.
    return NumberColumn(values.astype(np.float64) if values.dtype.kind == "f" else values)


def _record(name: str) -> Callable[[StepMemory, Integers], Column]:
    return lambda memory, slots: NumberColumn(memory.records[name][slots])


def _names(part: str, table: str) -> Callable[[StepMemory, Integers], Column]:
    def column(memory: StepMemory, slots: Integers) -> Column:
        distinct, index = np.unique(memory.records[part][slots], return_inverse=True)
        return TextColumn(getattr(memory, table).names[distinct].tolist(), index)

    return column


def _flag(value: int, missing: int) -> Callable[[StepMemory, Integers], Column]:
    def column(memory: StepMemory, slots: Integers) -> Column:
        flags = memory.links["flags"][slots]
        return NumberColumn((flags & value) != 0, (flags & missing) != 0)

    return column


def _reward(memory: StepMemory, slots: Integers) -> Column:
    return NumberColumn(memory.links["reward"][slots])


def _version(memory: StepMemory, slots: Integers) -> Column:
    limits = memory.limits
    return NumberColumn(limits.version[slots], ~limits.has_version[slots])


def _session(memory: StepMemory, slots: Integers) -> Column:
    distinct, index = np.unique(memory.limits.session[slots], return_inverse=True)
    return TextColumn(
        [memory.limits.session_keys.get(number) for number in distinct.tolist()], index
    )


def _episode(memory: StepMemory, slots: Integers) -> Column:
    distinct, index = np.unique(memory.links["episode"][slots], return_inverse=True)
    keys = memory.episodes.keys
    texts: list[Any] = [None if number == NONE else keys[number] for number in distinct.tolist()]
    return TextColumn(texts, index)


def _fact(memory: StepMemory, field: Field, slots: Integers) -> Column:
    """Return a fact of the episodes of steps."""
    numbers = memory.links["episode"][slots]
    has_none = numbers == NONE
    if has_none.all():
        return NumberColumn(np.zeros(len(slots)), has_none)
    facts = _FACTS[field.column](memory.episodes, field)
    if isinstance(facts, list):
        # The last one is that of steps without an episode.
        return TextColumn([*facts, None], np.where(has_none, len(facts), numbers))
    values = facts[numbers]
    return NumberColumn(values, has_none | np.isnan(values))


def _length(episodes: EpisodeTable, _: Field) -> NDArray[Any]:
    return np.where(episodes.length == NONE, np.nan, episodes.length)


def _episode_reward(episodes: EpisodeTable, _: Field) -> NDArray[Any]:
    return np.where(np.isnan(episodes.rewards), episodes.returns, episodes.rewards)


def _meta(episodes: EpisodeTable, field: Field) -> list[Any]:
    return [
        None if meta is None else value_at(orjson.loads(meta), field.path)
        for meta in episodes.metas.tolist()
    ]


# What each episode of the table has: numbers with NaN for none, or a list with None.
_FACTS: dict[str, Callable[[EpisodeTable, Field], NDArray[Any] | list[Any]]] = {
    "episode_reward": _episode_reward,
    "episode_return": lambda episodes, _: episodes.returns,
    "episode_length": _length,
    "status": lambda episodes, _: STATUS_NAMES[episodes.status].tolist(),
    "group_id": lambda episodes, _: episodes.group_ids.tolist(),
    "parent_id": lambda episodes, _: episodes.parent_ids.tolist(),
    "meta": _meta,
}


_COLUMNS: dict[str, Callable[[StepMemory, Integers], Column]] = {
    "seq": _record(SEQ),
    "step": _record(STEP),
    "task_id": _names(TASK, "tasks"),
    "agent_id": _names(AGENT, "agents"),
    "episode_id": _episode,
    "session_id": _session,
    "model_version": _version,
    "reward_t": _reward,
    "terminated": _flag(TERMINATED, NO_TERMINATED),
    "truncated": _flag(TRUNCATED, NO_TRUNCATED),
}


Flags = NDArray[np.bool_]

# Results of more conditions than this are forgotten.
MOST_CONDITIONS = 8
# With more changes than this share of the steps, all are looked at again.
MOST_CHANGED = 1 / 2


class MatchingSteps:
    """Says which steps in memory may be drawn by a condition.

    It keeps the results of the last conditions, and tests changed slots again.
    """

    def __init__(self) -> None:
        self._memory: StepMemory | None = None
        self._known: dict[Node, tuple[int, Flags]] = {}
        self._n_changes = 0

    def of(self, memory: StepMemory, node: Node) -> Flags:
        """Return which slots hold a step that may be drawn and meets a condition.

        Args:
            memory: The steps.
            node: The condition, which names columns in memory only.

        Returns:
            Flags of shape (n,), where n slots have been used.
        """
        n = memory.blocks.n_used
        if node is EVERYTHING:
            return memory.is_drawable[:n]
        if memory is not self._memory:
            self._memory, self._known = memory, {}
        try:
            known = self._known.get(node)
        except TypeError:  # a list in it cannot be hashed
            return _updated(memory, node, np.zeros(n, bool), np.arange(n))
        if self._n_changes != memory.episodes.n_changes:
            # Steps of a changed episode are not among the changed ones.
            self._n_changes = memory.episodes.n_changes
            self._known = {
                one: flags for one, flags in self._known.items() if not facts_of_episodes(one)
            }
            known = self._known.get(node)
        changed = memory.changed
        if known is not None and known[0] == changed.n:
            return known[1][:n]
        slots, flags = None, np.zeros(memory.n_slots, bool)
        if known is not None and len(known[1]) == memory.n_slots:
            slots, flags = changed.since(known[0]), known[1]
        if slots is None or len(slots) > MOST_CHANGED * n:
            slots = np.arange(n)
        _updated(memory, node, flags, slots)
        if known is None and len(self._known) >= MOST_CONDITIONS:
            del self._known[next(iter(self._known))]
        self._known[node] = changed.n, flags
        return flags[:n]


def _updated(memory: StepMemory, node: Node, flags: Flags, slots: Integers) -> Flags:
    """Compute the flags of some slots again, in place."""
    flags[slots] = False
    drawable = slots[memory.is_drawable[slots]]
    flags[drawable] = matching(
        node, len(drawable), lambda field: step_column(memory, field, drawable)
    )
    return flags
