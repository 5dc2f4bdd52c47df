"""The makers of batches: their protocol, the one for single steps, and the choice by form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import Form, StepForm, TrajectoryForm, WindowForm
from sqlbuffer.batches.step_table import Flags, Integers, StepTable
from sqlbuffer.batches.transitions import TransitionMaker
from sqlbuffer.batches.windows import TrajectoryMaker, WindowMaker
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.steps import Batch


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
        info = table.info_of(steps, with_place=False)
        return Batch({**arrays, **columns}, info, form.structure)


class Plan(Protocol):
    """Items before their fields are read.

    Attributes:
        slots: Slots of their keys, shape (b,): mostly the first steps.
        accepted: True where everything that an item needs is there and may be sampled, shape (b,).
    """

    @property
    def slots(self) -> Integers: ...

    @property
    def accepted(self) -> Flags: ...


P = TypeVar("P", bound=Plan)


class Maker(Protocol[P]):
    """Makes batches of one form from a table of steps.

    Attributes:
        table: The steps.
        accepts_all: An item can be made of every key.
    """

    table: StepTable
    accepts_all: bool

    def are_keys(self, slots: Integers) -> Flags | None:
        """Return at which steps an item may be placed; None: at every step."""

    def n_steps(self, slots: Integers) -> int:
        """Return how many steps the plan of an item of these slots covers at most."""

    def plan(self, slots: Integers) -> P:
        """Return the plan of the items at some steps, which are keys."""

    def taken(self, plan: P, index: Integers) -> P:
        """Return a part of a plan."""

    def batch(self, plan: P, columns: Mapping[str, NDArray[Any] | None]) -> Batch:
        """Return the accepted items of a plan, with further arrays."""


def maker_of(table: StepTable, form: Form, observation: Layout) -> Maker[Any]:
    """Return the maker of a form.

    Args:
        table: The steps.
        form: The form.
        observation: Layout of the bytes of final observations.
    """
    if isinstance(form, StepForm):
        return StepMaker(table, form)
    if isinstance(form, WindowForm):
        return WindowMaker(table, form)
    if isinstance(form, TrajectoryForm):
        return TrajectoryMaker(table, form, observation)
    return TransitionMaker(table, form, observation)
