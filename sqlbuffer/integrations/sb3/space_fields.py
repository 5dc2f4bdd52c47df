"""The typed fields of a step, and the arrays that Stable-Baselines3 gives for them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from warnings import warn

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int, ...]

OBS, ACTION, NEXT = "obs", "action", "next_"
OF_A_STEP = 100  # bytes that a mirror takes for a step next to its fields, about


@dataclass(frozen=True)
class ObservationPart:
    """An array of an observation.

    Attributes:
        key: Its key in a Dict observation; None: it is the whole observation.
        field: Its field.
        shape: Its shape, of one environment.
        dtype: Its dtype.
    """

    key: str | None
    field: str
    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class SpaceFields:
    """The fields that the spaces of an environment mean; made with `of`.

    Attributes:
        parts: The arrays of an observation.
        action: Shape and dtype of an action.
        n_envs: Number of environments.
    """

    parts: tuple[ObservationPart, ...]
    action: tuple[Shape, np.dtype[Any]]
    n_envs: int

    @classmethod
    def of(
        cls, space: spaces.Space[Any], shapes: Any, action: tuple[Shape, Any], n_envs: int
    ) -> "SpaceFields":
        """Return the fields of spaces.

        Args:
            space: The space of an observation.
            shapes: The shape that Stable-Baselines3 gives it; a dict of those of a Dict space.
            action: Shape and dtype of an action.
            n_envs: Number of environments.
        """
        if isinstance(space, spaces.Dict):
            parts = tuple(
                ObservationPart(key, field, tuple(shapes[key]), np.dtype(space[key].dtype))
                for key, field in _field_names(shapes)
            )
        else:
            parts = (ObservationPart(None, OBS, tuple(shapes), np.dtype(space.dtype)),)
        return cls(parts, (action[0], np.dtype(action[1])), n_envs)

    @property
    def is_dict(self) -> bool:
        """Whether an observation is a dict."""
        return self.parts[0].key is not None

    def declared(self) -> dict[str, Any]:
        """Return the declaration of the fields, for `sqlbuffer.ReplayBuffer`."""
        shape, dtype = self.action
        own = {part.field: (part.dtype, part.shape) for part in self.parts}
        after = {NEXT + name: declaration for name, declaration in own.items()}
        return {"fields": {**own, ACTION: (dtype, shape), **after}, "observation_fields": [*own]}

    def warn_of_size(self, n_steps: int, max_bytes: int) -> None:
        """Warn if n_steps steps do not fit into a mirror: its draws would fail when they are
        stored.
        """
        shape, dtype = self.action
        arrays = [(shape, dtype), *2 * [(part.shape, part.dtype) for part in self.parts]]
        n_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays) + OF_A_STEP
        if n_steps * n_bytes > max_bytes:
            warn(
                f"{n_steps:,} steps take {n_steps * n_bytes / 2**30:,.1f} GiB of memory to draw "
                f"from, and max_bytes allows {max_bytes / 2**30:,.1f} GiB, which is "
                f"{max_bytes // n_bytes:,} steps; draws raise MirrorFullError when there are more: "
                f"make buffer_size smaller, or pass mirror={{'max_bytes': ...}} in "
                f"replay_buffer_kwargs",
                stacklevel=4,
            )

    def observations(self, values: Any, what: str) -> Arrays:
        """Return copies of the observations of all environments, by field.

        Args:
            values: An array of shape (n_envs, *shape), or a dict of them.
            what: Name of the observations, for messages.

        Raises:
            FieldError: The shape is wrong, or the key does not exist.
        """
        found = {}
        for part in self.parts:
            own, name = values, what
            if part.key is not None:
                name = f"{what}[{part.key!r}]"
                if not isinstance(values, Mapping) or part.key not in values:
                    raise FieldError(f"{name} is missing; the space of observations has it")
                own = values[part.key]
            found[part.field] = self._rows(own, part.shape, part.dtype, name)
        return found

    def actions(self, values: Any) -> NDArray[Any]:
        """Return a copy of the actions of all environments, of shape (n_envs, action_dim).

        Raises:
            FieldError: Another shape.
        """
        shape, dtype = self.action
        array = np.array(values, dtype)
        is_of_all = self.n_envs == 1 or array.shape[:1] == (self.n_envs,)
        if is_of_all and array.size == self.n_envs * math.prod(shape):
            return array.reshape(self.n_envs, *shape)
        raise self._wrong("action", array, shape)

    def numbers(self, values: Any, dtype: Any, what: str) -> NDArray[Any]:
        """Return one number of each environment, of shape (n_envs,).

        Raises:
            FieldError: Another shape.
        """
        return self._rows(values, (), dtype, what)

    def _rows(self, values: Any, shape: Shape, dtype: Any, what: str) -> NDArray[Any]:
        array, n = np.array(values, dtype), self.n_envs
        # A single environment may leave out its axis, and a number its own.
        flat = shape[:-1] if shape[-1:] == (1,) else shape
        accepted = [(n, *shape), (n, *flat), *([shape, flat] if n == 1 else [])]
        if array.shape not in accepted:
            raise self._wrong(what, array, shape)
        return array.reshape(n, *shape)

    def _wrong(self, what: str, array: NDArray[Any], shape: Shape) -> FieldError:
        return FieldError(
            f"{what}: expected shape {(self.n_envs, *shape)}, of n_envs={self.n_envs}, got "
            f"{array.shape}; give a step of each environment"
        )


def _field_names(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key of a Dict space and its field: its own name where a field can have it."""
    used = set()
    for i, key in enumerate(keys):
        name = f"{OBS}_{key}"
        if not name.isidentifier() or name.endswith("_lens"):
            name = f"{OBS}_{i}"
        while name in used:
            name += "_"
        used.add(name)
        yield key, name
