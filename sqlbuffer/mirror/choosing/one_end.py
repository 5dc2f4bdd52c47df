"""Draw the oldest or the newest steps from memory."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sqlbuffer.mirror.choosing.chosen import Chosen, Flags, Integers
from sqlbuffer.mirror.memory.block_map import BLOCK
from sqlbuffer.mirror.memory.step_memory import StepMemory

# Most steps may be drawn: a few blocks more than have as many are enough.
_SPARE = 2


@dataclass(frozen=True)
class OneEndChooser:
    """Chooses the steps at one end of the buffer.

    Attributes:
        newest: Take the newest, newest first; else the oldest, oldest first.
    """

    newest: bool

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n steps; see `Chooser.choose`."""
        blocks = memory.blocks
        numbers = blocks.numbers()
        numbers = numbers[::-1] if self.newest else numbers
        found: list[Integers] = [np.zeros(0, np.int64)]
        start, size, missing = 0, n // BLOCK + _SPARE, n
        while missing > 0 and start < len(numbers):
            slots = blocks.slots_in(numbers[start : start + size])
            slots = (slots[:, ::-1] if self.newest else slots).reshape(-1)
            slots = slots[is_drawable[slots]]
            if accepts is not None:
                slots = slots[accepts(slots)]
            found.append(slots[:missing])
            missing -= len(found[-1])
            start, size = start + size, 2 * size
        return Chosen(np.concatenate(found))
