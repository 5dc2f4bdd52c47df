"""Restore a mirror's data about its steps from the arrays that hold them."""

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import NONE
from sqlbuffer.mirror.memory.block_map import BLOCK
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import AGENT, EPISODE, SEQ, TASK, T

Integers = NDArray[np.int64]


def block_numbers(memory: StepMemory, blocks: Integers) -> Integers:
    """Return which block of numbers blocks of slots have, -1 for those that are free."""
    slots = blocks[:, None] * BLOCK + np.arange(BLOCK)
    newest = memory.records[SEQ][slots].max(axis=1, initial=0)
    found: Integers = np.where(newest > 0, newest // BLOCK, NONE)
    return found


def restore(memory: StepMemory, n_used: int) -> None:
    """Restore the state that is needed to continue with the arrays of another memory.

    Args:
        memory: Memory with those arrays, and with the names and the episodes.
        n_used: Slots from 0 to this one have been given at some time.
    """
    memory.blocks.restore(block_numbers(memory, np.arange(n_used // BLOCK)))
    records = memory.records[:n_used]
    written = np.flatnonzero(records[SEQ] != 0)
    memory.tasks.restore(records[TASK][written].astype(np.int64))
    memory.agents.restore(records[AGENT][written].astype(np.int64))
    episodes = records[EPISODE][written].astype(np.int64)
    own = episodes != NONE
    slots = written[own]
    memory.episodes.restore(episodes[own], records[T][slots].astype(np.int64), slots)
