"""Batches of single steps from memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.choosing.chosen import Chooser, Chosen
from sqlbuffer.mirror.memory.block_map import NONE
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import AGENT, EPISODE, SEQ, STEP, TASK, T
from sqlbuffer.steps.batches import Batch

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class StepForm:
    """Fields of batches of single steps.

    Attributes:
        own: Declared fields, in order.
        built_in: Some of `reward`, `terminated` and `truncated`.
    """

    own: Sequence[str]
    built_in: Sequence[str]


class StepBatches:
    """Makes batches of single steps.

    Args:
        memory: The steps.
        form: Fields of each step.

    Attributes:
        memory: The steps.
    """

    def __init__(self, memory: StepMemory, form: StepForm) -> None:
        self.memory, self._form = memory, form

    def draw(self, chooser: Chooser, n: int, wanted: Flags | None = None) -> Batch:
        """Return n steps; fewer if there are too few. See `PlannedBatches.draw`."""
        return self._batch(chooser.choose(self.memory, self.keys(wanted), n))

    def keys(self, wanted: Flags | None = None) -> Flags:
        """Return which slots have a step that may be drawn, shape (n_used,)."""
        return self.memory.is_drawable[: self.memory.blocks.n_used] if wanted is None else wanted

    def accepted(self, slots: Integers, wanted: Flags | None = None) -> Flags:
        """Return which slots have a step that may be drawn."""
        return self.keys(wanted)[slots]

    def read(self, slots: Integers) -> Batch:
        """Return the steps of slots, in their order."""
        return self._batch(Chosen(slots))

    def _batch(self, chosen: Chosen) -> Batch:
        memory, slots, form = self.memory, chosen.slots, self._form
        rows = memory.gathered(slots)
        arrays = fields_of(memory, slots, rows, form.own, form.built_in)
        return Batch({**arrays, **chosen.columns}, info_of(memory, rows))


def fields_of(
    memory: StepMemory,
    slots: Integers,
    rows: NDArray[Any],
    names: Sequence[str],
    built_in: Sequence[str] = (),
) -> dict[str, NDArray[Any]]:
    """Return fields of steps, of shape (n, *shape); those of varying length with their lengths.

    Args:
        memory: The steps.
        slots: Slots of the steps.
        rows: Their records.
        names: Declared fields to read.
        built_in: Some of `reward`, `terminated` and `truncated`.
    """
    if memory.tails is None and not memory.large:
        return memory.copies.of(rows, (*names, *built_in))
    found: dict[str, NDArray[Any]] = {}
    padded: dict[str, NDArray[Any]] = {}
    if memory.tails is not None:
        padded = memory.layout.tail_columns(rows, memory.tails.of(slots), names)
    for name in names:
        if name in padded:
            found |= {name: padded[name], f"{name}_lens": padded[f"{name}_lens"]}
        elif name in memory.large:
            found[name] = memory.large[name].take(slots, axis=0)
        else:
            found |= memory.copies.of(rows, [name])
    return found | memory.copies.of(rows, built_in)


def episode_info(memory: StepMemory, rows: NDArray[Any]) -> Callable[[], dict[str, NDArray[Any]]]:
    """Return what makes `episode` and `t` of steps, for the info of a batch; see `info_of`.

    Args:
        memory: The steps.
        rows: Their records.
    """
    own, keys = rows[EPISODE], memory.episodes.keys
    # Now: the numbers of episodes are used again.
    found = keys.take(own, mode="clip") if len(keys) else np.full(len(own), None)

    def made() -> "dict[str, NDArray[Any]]":
        found[own == NONE] = None
        return {"episode": found, "t": rows[T].astype(np.int64)}

    return made


def info_of(
    memory: StepMemory,
    rows: NDArray[Any],
    *more: Callable[[], Mapping[str, NDArray[Any]]],
) -> Callable[[], dict[str, NDArray[Any]]]:
    """Return what makes the info of a batch, also after the memory has changed.

    Args:
        memory: The steps.
        rows: The records of the batch.
        more: Make what else it says.
    """
    tasks, agents = memory.tasks.names, memory.agents.names

    def made() -> "dict[str, NDArray[Any]]":
        found = {
            "seq": rows[SEQ].copy(),
            "task_id": tasks.take(rows[TASK]),
            "agent_id": agents.take(rows[AGENT]),
            "step": rows[STEP].copy(),
        }
        for each in more:
            found |= each()
        return found

    return made
