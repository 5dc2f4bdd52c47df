"""Conversion of a buffer's fields to observations and actions of a Minari data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.fields.env_fields import parts_of, paths_of, spaces_of
from sqlbuffer.fields.specs import FieldSpec

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class DatasetSpaces:
    """The spaces of a data set and the fields of a buffer that they are made of.

    Attributes:
        observation: Space of an observation.
        action: Space of an action.
        observation_fields: The fields of an observation.
        action_fields: The fields of an action.
    """

    observation: Any
    action: Any
    observation_fields: tuple[str, ...]
    action_fields: tuple[str, ...]

    def observations(self, arrays: Arrays) -> Any:
        """Return the observations of an episode as Minari takes them.

        Args:
            arrays: The observation fields, arrays `(n, *shape)`.
        """
        return _nested("obs", self.observation, arrays)

    def actions(self, arrays: Arrays) -> Any:
        """Return the actions of an episode as Minari takes them."""
        return _nested("action", self.action, arrays)


def dataset_spaces(
    specs: Mapping[str, FieldSpec], observation_fields: Sequence[str], env: Any = None
) -> DatasetSpaces:
    """Return the spaces of a data set of a buffer's steps.

    Args:
        specs: The buffer's typed fields.
        observation_fields: Those of an observation.
        env: An environment, or another object with its two spaces. Without one the spaces are
            boxes with the bounds of each field's dtype.

    Raises:
        FieldError: The buffer lacks a field of the spaces, or has no observation or action.
    """
    if env is None:
        return _boxes(specs, observation_fields)
    observation, action = spaces_of(env)
    observed, acted = tuple(paths_of("obs", observation)), tuple(paths_of("action", action))
    if lacking := [name for name in (*observed, *acted) if name not in specs]:
        raise FieldError(
            f"the environment has {', '.join(map(repr, lacking))}, and the buffer has the fields "
            f"{', '.join(map(repr, specs)) or 'none'}; give the environment that was recorded, or "
            f"none"
        )
    for prefix, space in (("obs", observation), ("action", action)):
        for name, (_, leaf) in parts_of(prefix, space).items():
            _check_fits(specs[name], leaf)
    return DatasetSpaces(observation, action, observed, acted)


def _check_fits(spec: FieldSpec, space: Any) -> None:
    shape = tuple(space.shape or ())
    if (
        spec.is_variable
        or spec.shape != shape
        or not np.can_cast(spec.dtype, space.dtype, "same_kind")
    ):
        raise FieldError(
            f"field {spec.name!r} is {spec}, and the environment has {space.dtype}{shape or ''} "
            f"there; give the environment that was recorded, or none"
        )


def _boxes(specs: Mapping[str, FieldSpec], observation_fields: Sequence[str]) -> DatasetSpaces:
    observed = tuple(observation_fields) or _named(specs, "obs")
    acted = _named(specs, "action")
    for kind, names in (("observation", observed), ("action", acted)):
        if not names:
            raise FieldError(
                f"no field is an {kind}; a buffer of `fields_from_env` has `obs` and `action`, and "
                f"this one has {', '.join(map(repr, specs)) or 'no typed fields'}"
            )
    return DatasetSpaces(
        _space("obs", observed, specs), _space("action", acted, specs), observed, acted
    )


def _named(specs: Mapping[str, FieldSpec], name: str) -> tuple[str, ...]:
    if name in specs:
        return (name,)
    return tuple(field for field in specs if field.startswith(f"{name}_"))


def _space(name: str, fields: Sequence[str], specs: Mapping[str, FieldSpec]) -> Any:
    from gymnasium import spaces

    boxes = {field: _box(field, specs[field]) for field in fields}
    if list(boxes) == [name]:
        return boxes[name]
    return spaces.Dict({field.removeprefix(f"{name}_"): box for field, box in boxes.items()})


def _box(name: str, spec: FieldSpec) -> Any:
    from gymnasium import spaces

    dtype = np.dtype(spec.dtype)
    if spec.is_variable or dtype.kind not in "fiub":
        raise FieldError(f"field {name!r} is {spec}; Minari takes numbers of a fixed shape")
    if dtype.kind == "b":
        return spaces.Box(0, 1, spec.shape, np.int8)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, spec.shape, dtype.type)
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, spec.shape, dtype.type)


def _nested(name: str, space: Any, arrays: Arrays) -> Any:
    """Return the arrays in the structure of a space; fields have the names of `fields_from_env`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {key: _part(name, key, part, arrays) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_part(name, i, part, arrays) for i, part in enumerate(space.spaces))
    return arrays[name].astype(space.dtype, copy=False)


def _part(name: str, key: Any, part: Any, arrays: Arrays) -> Any:
    inner = f"{name}_{key}"
    # Observation fields that the user named stand for themselves.
    own = inner if inner in arrays or key not in arrays else key
    return _nested(own, part, arrays)
