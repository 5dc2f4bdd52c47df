"""The choice of steps in memory, and the interface of the samplers that choose."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.mirror.memory.step_memory import StepMemory

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Columns = Mapping[str, NDArray[Any] | None]

NO_COLUMNS: Columns = {}


class Chosen(NamedTuple):
    """Steps that were chosen.

    Attributes:
        slots: Where they are, shape (n,).
        columns: Arrays that the sampler gives with them, each of shape (n,); None for one that is
            not known.
    """

    slots: Integers
    columns: Columns = NO_COLUMNS


class Chooser(Protocol):
    """Chooses steps as a sampler does; made for one draw."""

    def choose(
        self,
        memory: StepMemory,
        is_drawable: Flags,
        n: int,
        accepts: Callable[[Integers], Flags] | None = None,
    ) -> Chosen:
        """Return n of the steps that may be drawn and are accepted; fewer if there are too few.

        Args:
            memory: The steps.
            is_drawable: True for slots that may be drawn, shape (n_slots,).
            n: Number of steps.
            accepts: Function that returns True for accepted slots; all are accepted by default.
        """
