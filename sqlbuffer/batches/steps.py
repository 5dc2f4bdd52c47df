"""Single steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import StepForm
from sqlbuffer.batches.step_table import Flags, Integers, StepTable
from sqlbuffer.steps.batches import Batch


@dataclass
class StepPlan:
    """Single steps; each is accepted."""

    slots: Integers

    @property
    def accepted(self) -> Flags:
        """True for each; a mirror does not ask."""
        return np.ones(len(self.slots), bool)


class StepMaker:
    """Makes batches of single steps.

    Args:
        table: The steps.
        form: Fields of each step.

    Attributes:
        table: The steps.
        accepts_all: An item can be made of every key.
    """

    accepts_all = True

    def __init__(self, table: StepTable, form: StepForm) -> None:
        self.table, self._form = table, form

    def are_keys(self, slots: Integers) -> None:
        """Return None: each step is an item."""

    def n_steps(self, slots: Integers) -> int:
        """Return 1."""
        return 1

    def plan(self, slots: Integers) -> StepPlan:
        """Return the plan of some steps."""
        return StepPlan(slots)

    def taken(self, plan: StepPlan, index: Integers) -> StepPlan:
        """Return a part of a plan."""
        return StepPlan(plan.slots[index])

    def batch(self, plan: StepPlan, columns: Mapping[str, NDArray[Any] | None]) -> Batch:
        """Return the steps of a plan; see `Maker.batch`."""
        table, form = self.table, self._form
        steps = table.gathered(plan.slots)
        arrays = table.fields_of(steps, form.names, form.built_in)
        return Batch({**arrays, **columns}, table.info_of(steps, with_place=False))
