"""Conversion of an environment's outputs to the fields of a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.fields.env_fields import fields_from_env, paths_of, spaces_of
from sqlbuffer.fields.specs import FieldSpec

# Values by field; those of several environments have them along the first axis.
Values = dict[str, NDArray[Any]]
Paths = Mapping[str, tuple[Any, ...]]

NEXT = "next_"


@dataclass(frozen=True)
class Form:
    """The fields of a step, of one environment.

    Attributes:
        observation: Where each field is found in an observation.
        action: Where each field is found in an action.
        following: The observation fields that the buffer has once more, as `next_<name>`.
        final: Those that are kept of an episode's final observation.
    """

    observation: Paths
    action: Paths
    following: tuple[str, ...]
    final: tuple[str, ...]


def values_of_all(paths: Paths, value: Any) -> Values:
    """Return copies of the values in an observation or action of several environments."""
    return {name: np.array(reduce(getitem, path, value)) for name, path in paths.items()}


def values_of_one(paths: Paths, value: Any) -> Values:
    """Return copies of the values in an observation or action of one, as of several."""
    return {name: np.array(reduce(getitem, path, value))[None] for name, path in paths.items()}


def form_of(env: Any, specs: Mapping[str, FieldSpec], final: tuple[str, ...]) -> Form:
    """Return how an environment's steps fit a buffer.

    Args:
        env: The environment.
        specs: The fields of the buffer.
        final: Its observation fields.

    Raises:
        FieldError: They do not.
    """
    observed, acted = spaces_of(env)
    form = Form(
        paths_of("obs", observed),
        paths_of("action", acted),
        tuple(name for name in paths_of("obs", observed) if NEXT + name in specs),
        final,
    )
    wrong = _differences(fields_from_env(env, next_observation=True)["fields"], specs, form)
    if wrong:
        option = ", next_observation=True" if form.following else ""
        raise FieldError(
            f"the buffer does not have the fields of the environment ({'; '.join(wrong)}); make "
            f"one with ReplayBuffer(url, **fields_from_env(env{option}))"
        )
    return form


def _differences(
    wanted: Mapping[str, Any], specs: Mapping[str, FieldSpec], form: Form
) -> list[str]:
    """Return what keeps the steps of an environment from being stored, in words."""
    found = []
    given = (*form.observation, *form.action, *(NEXT + name for name in form.following))
    for name in given:
        expected = FieldSpec.parse(name, wanted[name])
        if name not in specs:
            found.append(f"{name!r} is missing: {expected}")
        elif not _takes(specs[name], expected):
            found.append(f"{name!r} is {specs[name]}, and the environment has {expected}")
    found += [
        f"the environment has no {name!r}, which has no default"
        for name, spec in specs.items()
        if name not in given and spec.default is None
    ]
    found += [
        f"the observation field {name!r} is none of the environment's"
        for name in form.final
        if name in specs and name not in form.observation
    ]
    return found


def _takes(spec: FieldSpec, given: FieldSpec) -> bool:
    return spec.shape == given.shape and np.can_cast(given.dtype, spec.dtype, "same_kind")
