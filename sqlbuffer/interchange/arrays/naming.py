"""The fields that flat arrays mean, and the arrays that fields become."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.fields import KINDS, Fields, check_name, near_name
from sqlbuffer.interchange.arrays.sources import Arrays, Columns, FlatColumn
from sqlbuffer.spaces import NEXT, part_name

REWARD, TERMINATED, TRUNCATED, ENDED = "reward", "terminated", "truncated", "episode_terminals"
FLAGS = (TERMINATED, TRUNCATED, ENDED)
# Names of D4RL, d3rlpy, Minari, cpprb and gymnasium, and the names here.
_MEANINGS = {
    **dict.fromkeys(("observations", "observation", "obs"), "obs"),
    **dict.fromkeys(("next_observations", "next_observation", "next_obs"), "next_obs"),
    **dict.fromkeys(("actions", "action", "act"), "action"),
    **dict.fromkeys(("rewards", "reward", "rew"), REWARD),
    **dict.fromkeys(("terminals", "terminal", "terminated", "terminations"), TERMINATED),
    **dict.fromkeys(("timeouts", "timeout", "truncated", "truncations"), TRUNCATED),
    "infos": "info",
    ENDED: ENDED,
}
_UNCLEAR = ("done", "dones")
_NEEDED = {"obs": "observations", "action": "actions", REWARD: "rewards"}


def meaning_of(name: str) -> str:
    """Return the field or value of a step that an array has.

    The field of `observations/KEY` is that of the key of a Dict space.

    Example:
        >>> meaning_of("observations"), meaning_of("observations/image"), meaning_of("infos/qpos")
        ('obs', 'obs_image', 'info_qpos')
    """
    if name in _MEANINGS:
        return _MEANINGS[name]
    group, *rest = name.split("/")
    return part_name(_MEANINGS.get(group, group), "_".join(rest)) if rest else name


@dataclass(frozen=True)
class ArrayPlan:
    """What the arrays of a source mean.

    Attributes:
        names: Names of the arrays by what they mean.
        specs: Dtype and shape of each field.
        observations: The fields of an observation.
        has_next: Whether the observations after each step are given.
    """

    names: dict[str, str]
    specs: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    observations: tuple[str, ...]
    has_next: bool

    def declared(self, *, store_next: bool) -> dict[str, Any]:
        """Return the declaration of the fields of a new buffer."""
        fields = {
            name: spec for name, spec in self.specs.items() if store_next or not self.is_next(name)
        }
        return {"fields": fields, "observation_fields": [*self.observations]}

    def is_next(self, name: str) -> bool:
        """Return whether a field is the observation after a step."""
        return name.startswith(NEXT) and name.removeprefix(NEXT) in self.observations


def planned(
    columns: Columns, chosen: Mapping[str, str | None], source: str, declared: Fields | None = None
) -> ArrayPlan:
    """Return what arrays mean.

    Args:
        columns: The arrays.
        chosen: Other meanings, by the names of arrays; None leaves one out.
        source: Their name, for messages.
        declared: The fields of the buffer; None: they follow from the arrays.

    Raises:
        FieldError: An array is missing, or has another length or no meaning.
    """
    known = {} if declared is None else declared.specs
    for name in chosen:
        if name not in columns:
            raise FieldError(
                f"columns names {name!r}, which {source} does not have; it has "
                f"{', '.join(columns) or 'no arrays'}"
            )
    names: dict[str, str] = {}
    for name, column in columns.items():
        meaning = chosen.get(name, name)
        if meaning is None or not column.shape:  # a number or text is about the whole data set
            continue
        if meaning in _UNCLEAR and name not in chosen:
            raise FieldError(
                f"array {name!r}: it may have ends by a time limit too, after which a value is "
                f"estimated; say what it is with columns={{{name!r}: 'terminals'}} or "
                f"{{{name!r}: 'episode_terminals'}} (--column {name}=terminals)"
            )
        meaning = _field_of(meaning, known)
        if meaning in names:
            raise FieldError(
                f"arrays {names[meaning]!r} and {name!r} are both {meaning!r}; leave one of them "
                f"out with columns={{{name!r}: None}} (--column {name}=)"
            )
        names[meaning] = name
    _check_needed(names, source, are_declared=bool(known))
    _check_lengths(columns, names, source)
    if declared is not None and known:
        observations = tuple(name for name in declared.observations if name in names)
    else:
        observations = tuple(name for name in names if name == "obs" or name.startswith("obs_"))
    specs = {
        meaning: _spec(columns[name], name, meaning)
        for meaning, name in names.items()
        if meaning not in (REWARD, *FLAGS)
    }
    has_next = any(NEXT + name in names for name in observations)
    plan = ArrayPlan(names, specs, observations, has_next)
    if has_next:
        _check_following(plan, source)
    return plan


def _check_following(plan: ArrayPlan, source: str) -> None:
    """Raise FieldError unless each observation has a next one of its shape."""
    names, specs = plan.names, plan.specs
    following = [name for name in plan.observations if NEXT + name in names]
    if len(following) < len(plan.observations):
        missing = next(name for name in plan.observations if NEXT + name not in names)
        raise FieldError(
            f"{source} has the next observation {names[NEXT + following[0]]!r} and none of "
            f"{names[missing]!r}; give all of them, or leave it out with "
            f"columns={{{names[NEXT + following[0]]!r}: None}}"
        )
    for name in following:
        if specs[NEXT + name][1] != specs[name][1]:
            raise FieldError(
                f"array {names[NEXT + name]!r} has rows of the shape {specs[NEXT + name][1]}, and "
                f"{names[name]!r} of {specs[name][1]}"
            )


def _field_of(name: str, known: Collection[str]) -> str:
    """Return what an array means in a buffer with known fields: `observations/image` is `image`
    where the buffer has no `obs_image`.
    """
    meaning = name if name in known else meaning_of(name)
    for group, prefix in (("obs_", ""), (f"{NEXT}obs_", NEXT)):
        base = meaning.removeprefix(group)
        if meaning.startswith(group) and group + base not in known and base in known:
            return prefix + base
    return meaning


def _check_needed(names: Mapping[str, str], source: str, *, are_declared: bool) -> None:
    for meaning, name in _NEEDED.items():
        if are_declared and meaning != REWARD:  # the fields of the buffer say what is needed
            continue
        if meaning not in names and not any(other.startswith(f"{meaning}_") for other in names):
            nearest = near_name(name, tuple(names.values()))
            hint = f" (is it {nearest!r}?)" if nearest else ""
            example = nearest or "x"
            raise FieldError(
                f"{source} has no {name!r}{hint}; it has {', '.join(names.values()) or 'none'}; "
                f"say which array it is with columns={{{example!r}: {name!r}}} "
                f"(--column {example}={name})"
            )
    if not any(flag in names for flag in FLAGS):
        raise FieldError(
            f"{source} has neither 'terminals' nor 'timeouts', so the ends of episodes are "
            f"unknown; give one of them, with True in the last row of each episode and False in "
            f"the other rows"
        )


def _check_lengths(columns: Columns, names: Mapping[str, str], source: str) -> None:
    lengths = {name: columns[name].shape[0] for name in names.values()}
    n_rows = lengths[names[REWARD]]
    for name, length in lengths.items():
        if length != n_rows:
            raise FieldError(
                f"array {name!r} has {length:,} rows, and {names[REWARD]!r} {n_rows:,}: each array "
                f"of {source} has a row for each step; leave it out with columns={{{name!r}: "
                f"None}} (--column {name}=)"
            )


def _spec(column: FlatColumn, name: str, meaning: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    try:
        check_name(meaning)
    except FieldError as error:
        raise FieldError(
            f"array {name!r}: {error}; name its field with columns={{{name!r}: 'x'}} "
            f"(--column {name}=x), or leave it out with None (--column {name}=)"
        ) from None
    if column.dtype.kind not in KINDS:
        kind = "Python objects, which only pickle reads" if column.dtype.kind == "O" else "values"
        raise FieldError(
            f"array {name!r} has {kind} of dtype {column.dtype}; a field holds numbers, booleans "
            f"or texts of one length: convert it, or leave it out with columns={{{name!r}: None}} "
            f"(--column {name}=)"
        )
    return column.dtype.newbyteorder("="), column.shape[1:]


def one_a_row(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a column of numbers, which d3rlpy and cpprb give as `(n, 1)`, as `(n,)`."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise FieldError(
            f"array {name!r}: expected a number for each row, got {values.dtype} of the shape "
            f"{values.shape}"
        )
    return values


def rewards_of(piece: Arrays, plan: ArrayPlan, first: int) -> NDArray[np.float64]:
    """Return the rewards of a piece.

    Raises:
        FieldError: One is not a finite number; the message has its row.
    """
    name = plan.names[REWARD]
    rewards = one_a_row(piece[name], name).astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if len(wrong):
        raise FieldError(
            f"array {name!r}, row {first + int(wrong[0]):,}: a reward is a finite number, got "
            f"{rewards[wrong[0]]}; mend it, or leave the rows of its episode out"
        )
    return rewards


def flags_of(piece: Arrays, plan: ArrayPlan, first: int) -> dict[str, NDArray[np.bool_]]:
    """Return the flags that a piece has, from booleans or numbers 0 and 1.

    Raises:
        FieldError: A value is another one; the message has its row.
    """
    flags = {}
    for flag in FLAGS:
        if flag in plan.names:
            name = plan.names[flag]
            values = one_a_row(piece[name], name)
            wrong = np.flatnonzero((values != 0) & (values != 1))
            if len(wrong):
                raise FieldError(
                    f"array {name!r}, row {first + int(wrong[0]):,}: expected True or False, or 1 "
                    f"or 0, got {values[wrong[0]]}"
                )
            flags[flag] = values.astype(np.bool_)
    return flags


_GROUPS = {"action": "actions", "info": "infos"}


def array_name(field: str, observations: tuple[str, ...]) -> str:
    """Return the name that a field has among flat arrays.

    Example:
        >>> array_name("obs_image", ("obs_image",)), array_name("info_qpos", ())
        ('observations/image', 'infos/qpos')
    """
    base = field.removeprefix(NEXT)
    if base in observations:
        group = "observations" if base == field else "next_observations"
        return group if base == "obs" else f"{group}/{base.removeprefix('obs_')}"
    if field == "action":
        return "actions"
    group, _, rest = field.partition("_")
    return f"{_GROUPS[group]}/{rest}" if rest and group in _GROUPS else field
