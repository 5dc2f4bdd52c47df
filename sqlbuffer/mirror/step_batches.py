"""Batches of single steps from memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.fields.declarations import BUILT_IN
from sqlbuffer.mirror.choosing.chosen import Chosen
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import AGENT, SEQ, STEP, TASK
from sqlbuffer.steps.batches import Batch

Integers = NDArray[np.int64]


def step_batch(memory: StepMemory, chosen: Chosen, names: Sequence[str]) -> Batch:
    """Return the batch of steps.

    Args:
        memory: The steps.
        chosen: Which of them.
        names: Which fields, in order, and which of `reward`, `terminated` and `truncated`.
    """
    slots = chosen.slots
    rows = memory.gathered(slots)
    arrays = fields_of(memory, slots, rows, [name for name in names if name not in BUILT_IN])
    arrays |= {name: rows[name].copy() for name in BUILT_IN if name in names}
    return Batch({**arrays, **chosen.columns}, info_of(memory, rows))


def fields_of(
    memory: StepMemory, slots: Integers, rows: NDArray[Any], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return fields of steps, of shape (n, *shape); those of varying length with their lengths.

    Args:
        memory: The steps.
        slots: Where they are.
        rows: Their records.
        names: Which fields.

    Raises:
        FieldError: The mirror does not keep one of them.
    """
    layout = memory.layout
    for name in names:
        if name not in layout.specs:
            raise FieldError(
                f"the mirror was opened without field {name!r}; add it to fields=[...]"
            )
    found: dict[str, NDArray[Any]] = {}
    padded: dict[str, NDArray[Any]] = {}
    if memory.tails is not None:
        padded = layout.tail_columns(rows, memory.tails[slots].tolist(), names)
    for name in names:
        if name in padded:
            found |= {name: padded[name], f"{name}_lens": padded[f"{name}_lens"]}
        elif name in memory.large:
            found[name] = memory.large[name].take(slots, axis=0)
        else:
            found[name] = rows[name].copy()
    return found


def info_of(
    memory: StepMemory, rows: NDArray[Any], more: Mapping[str, NDArray[Any]] | None = None
) -> Callable[[], dict[str, NDArray[Any]]]:
    """Return what makes the info of a batch, also after the memory has changed.

    Args:
        memory: The steps.
        rows: The records of the batch.
        more: What else it says.
    """
    tasks, agents = memory.tasks.names, memory.agents.names

    def made() -> dict[str, NDArray[Any]]:
        return {
            "seq": rows[SEQ].copy(),
            "task_id": tasks.take(rows[TASK]),
            "agent_id": agents.take(rows[AGENT]),
            "step": rows[STEP].copy(),
            **(more or {}),
        }

    return made
