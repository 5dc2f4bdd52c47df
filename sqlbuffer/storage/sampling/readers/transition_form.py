"""The form of transitions."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlbuffer.checks import checked_names
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.storage.sampling.readers.checks import (
    FIELDS_EXAMPLE,
    check_observations,
    checked_sequence_fields,
    checked_stack,
    checked_terminal_field,
)

NEXT = "next_"
ENDS_NOT_TOLD = (
    "rows say neither terminated nor truncated, and there is a field 'done': pass "
    "terminal_field='done' if it means that the episode terminated, or store terminated and "
    "truncated"
)
_BUILT_IN = ("reward", "discount", "terminated", "truncated")

logger = logging.getLogger(__name__)
_warned: set[tuple[str, int, int]] = set()


@dataclass(frozen=True, eq=False)
class TransitionForm:
    """The form of transitions; made with `of`.

    Attributes:
        fields: The typed fields of the buffer.
        n_step: Maximum number of steps in a transition.
        gamma: Discount of one step.
        stack: Number of stacked frames, by field.
        terminal_field: The field that marks a terminated episode.
        sequence_fields: The fields that are given for each step of a transition.
        own: The fields of the first step.
        following: The observations after, without their prefix.
        with_truncated: `truncated` is requested.
        skip_single: Steps without an episode are left out instead of refused.
    """

    fields: Fields
    n_step: int
    gamma: float
    stack: Mapping[str, int]
    terminal_field: str | None
    sequence_fields: Sequence[str]
    own: Sequence[str]
    following: Sequence[str]
    with_truncated: bool
    skip_single: bool

    @cached_property
    def has_next(self) -> bool:
        """True if the observations after steps are fields."""
        return self.fields.has_next

    @cached_property
    def n_before(self) -> int:
        """Number of steps that are needed before the first one."""
        return max(self.stack.values(), default=1) - 1

    @cached_property
    def needs_all_fields(self) -> bool:
        """True if the fields of all steps are needed, not only of the first and the last one."""
        return self.terminal_field is not None or bool({*self.sequence_fields} - {"reward"})

    @classmethod
    def of(
        cls,
        fields: Fields,
        n_step: int = 1,
        gamma: float = 0.99,
        *,
        names: Sequence[str] | None = None,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        sequence_fields: Sequence[str] = (),
        skip_single: bool = False,
    ) -> "TransitionForm":
        """Return the form of transitions; see `ReplayBuffer.sample_transitions`.

        Args:
            fields: The typed fields of the buffer.
            n_step: Maximum number of steps in a transition.
            gamma: Discount of one step.
            names: Names of the fields to return; all by default.
            stack: Number of stacked frames, by field.
            terminal_field: The field that marks a terminated episode.
            sequence_fields: The fields that are given for each step of a transition.
            skip_single: Leave steps without an episode out instead of refusing them.

        Raises:
            FieldError: No observation field, one of varying length, or an unknown name.
        """
        check_observations(fields)
        stacked = checked_stack(fields, stack)
        terminal = checked_terminal_field(fields, terminal_field)
        sequences = checked_sequence_fields(fields, sequence_fields)
        own, following, with_truncated = _chosen(fields, names)
        return cls(
            fields, n_step, gamma, stacked, terminal, sequences, own, following, with_truncated,
            skip_single,
        )  # fmt: skip


def no_successor(seq: int) -> FieldError:
    """Return the error for a step without an episode where the observations after are not fields.

    Drawing its terminal ones alone, which need no observation after, would bias the batches.
    """
    return FieldError(
        f"step {seq} has no episode, so no step follows it: store steps in episodes "
        f"(store_episode, episode(), record, or extend(.., episode_id=..)), declare the field "
        f"next_obs, or pass skip_single=True to draw from the episodes alone"
    )


def warn_of_single_steps(database: str, buffer_id: int, n_step: int) -> None:
    """Warn once that steps without an episode are transitions of one step."""
    if n_step > 1 and (database, buffer_id, n_step) not in _warned:
        _warned.add((database, buffer_id, n_step))
        logger.warning(
            "n_step=%d: steps without an episode are transitions of one step, with their own "
            "next_obs; batch.info['n_steps'] shows them",
            n_step,
        )


def _chosen(fields: Fields, given: Sequence[str] | None) -> tuple[list[str], list[str], bool]:
    """Return the fields of the first step, the observations after, and True for `truncated`."""
    observations = fields.observations
    following = [NEXT + name for name in observations]
    own = [name for name in fields.specs if name not in following]
    if given is None:
        return own, list(observations), False
    names = checked_names(given, "fields", FIELDS_EXAMPLE)
    for name in names:
        if name not in (*own, *following, *_BUILT_IN):
            known = ", ".join((*own, *following, *_BUILT_IN))
            raise FieldError(f"unknown field {shown(name)}; transitions have {known}")
    after = [name for name in observations if name in names or NEXT + name in names]
    return [name for name in own if name in names], after, "truncated" in names
