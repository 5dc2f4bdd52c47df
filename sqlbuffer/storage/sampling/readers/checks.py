"""Checks of the arguments of a reader, before any row is read."""

from collections.abc import Mapping, Sequence

import numpy as np

from sqlbuffer.checks import checked_dict, checked_names, refused
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.fields.declarations import BUILT_IN

# The arrays of a batch have a place for each of them.
MOST_STEPS = 1_000_000
FIELDS_EXAMPLE = "['obs', 'reward']"
MOST_FRAMES = 1_000


def checked_stack(fields: Fields, stack: Mapping[str, int] | None) -> dict[str, int]:
    """Return the number of stacked frames, by field.

    Raises:
        FieldError: Not a dict of fields of fixed shape and numbers from 1 to `MOST_FRAMES`.
    """
    if stack is None:
        return {}
    for name, k in checked_dict(stack, "stack", "{'obs': 4}", error=FieldError).items():
        _check_fixed(fields, name, "stack")
        is_integer = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
        if not is_integer or not 1 <= k <= MOST_FRAMES:
            raise FieldError(
                f"stack: field {shown(name)} needs a number of frames from 1 to {MOST_FRAMES}, "
                f"got {shown(k)}"
            )
    return {name: int(k) for name, k in stack.items()}


def checked_terminal_field(fields: Fields, name: str | None) -> str | None:
    """Return the field that marks terminal steps.

    Raises:
        FieldError: Not a declared number or boolean.
    """
    if name is None:
        return None
    _check_fixed(fields, name, "terminal_field")
    spec = fields.specs[name]
    if spec.shape or spec.dtype.kind not in "biuf":
        raise FieldError(
            f"terminal_field is a boolean or a number, and field {shown(name)} is {spec}"
        )
    return name


def checked_sequence_fields(fields: Fields, names: Sequence[str]) -> list[str]:
    """Return the fields that are given for each step.

    Raises:
        FieldError: Not a list of fields of fixed shape, or of `reward`.
    """
    found = list(dict.fromkeys(checked_names(names, "sequence_fields", "['reward']")))
    for name in found:
        if name != "reward":
            _check_fixed(fields, name, "sequence_fields")
        if f"seq_{name}" in fields.specs:
            raise FieldError(f"sequence_fields: field 'seq_{name}' is declared; rename it")
    return found


def checked_step_names(
    fields: Fields, names: Sequence[str] | None, things: str
) -> tuple[list[str], list[str]]:
    """Return the requested declared fields and built-in ones; all by default.

    Raises:
        FieldError: Not a list of names, or an unknown one.
    """
    if names is None:
        return list(fields.specs), list(BUILT_IN)
    wanted = checked_names(names, "fields", FIELDS_EXAMPLE)
    for name in wanted:
        if name not in (*fields.specs, *BUILT_IN):
            known = ", ".join((*fields.specs, *BUILT_IN))
            raise FieldError(f"unknown field {shown(name)}; {things} have {known}")
    return (
        [name for name in fields.specs if name in wanted],
        [name for name in BUILT_IN if name in wanted],
    )


def check_window(length: int, burn_in: int, stride: int) -> None:
    """Raise ArgumentError unless length and stride are at least 1 and the burn-in at least 0."""
    given = (("length", length, 1), ("burn_in", burn_in, 0), ("stride", stride, 1))
    for name, value, least in given:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, np.integer))
            or not least <= value <= MOST_STEPS
        ):
            what = f"an integer from {least} to {MOST_STEPS}"
            raise refused(value, name, what)


def check_observations(fields: Fields) -> None:
    """Raise FieldError unless there are observation fields, all of fixed shape."""
    if not fields.observations:
        raise FieldError(
            "transitions need an observation field, and the buffer was made without: make it with "
            "one named obs, or with ReplayBuffer(.., observation_fields=[...])"
        )
    for name in fields.observations:
        if fields.specs[name].is_variable:
            raise FieldError(f"field {shown(name)}: transitions need observations of fixed shape")


def _check_fixed(fields: Fields, name: str, what: str) -> None:
    if not isinstance(name, str) or name not in fields.specs:
        raise FieldError(
            f"{what}: unknown field {shown(name)}; the buffer has "
            f"{', '.join(fields.specs) or 'none'}"
        )
    if fields.specs[name].is_variable:
        raise FieldError(f"{what}: field {shown(name)} has a length that varies")
