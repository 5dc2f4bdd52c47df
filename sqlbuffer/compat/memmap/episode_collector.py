"""`memmap_replay_buffer.episode_collector` on a SQL database: `EpisodeCollector`."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError, UnknownNameError
from sqlbuffer.compat.memmap.fields import (
    array_or_tensor,
    check_count,
    check_known,
    check_names,
    copied,
    is_tensor,
    stacked,
)


class EpisodeCollector:
    """Keeps the steps of several environments in memory, until `store` makes an episode of each.

    An environment is called a group here. All groups have the same number of steps.

    Args:
        replay_buffer: Where episodes are stored.
        num_groups: Number of environments, at least one.
        fieldnames: Names of the fields of steps that are collected; all by default.
        meta_fieldnames: Names of the values of episodes; all by default.
        strict: Raise for a name that is not among them; otherwise it is ignored.

    Raises:
        KeyError: A name that the buffer does not have.
        TypeError: Names that are not in a tuple.
        ValueError: There is no group.

    Example:
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", 10, 5, {"x": "float"}, {"env": "int"})
        >>> collector = buffer.create_collector(2)
        >>> for step in range(3):
        ...     collector.append(x=np.array([step, step + 10.0]))
        >>> collector.env_major("x").tolist()
        [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]
        >>> collector.store(env=np.array([7, 8]))
        >>> buffer.num_episodes, len(collector)
        (2, 0)
    """

    def __init__(
        self,
        replay_buffer: Any,
        num_groups: int,
        fieldnames: tuple[str, ...] | None = None,
        meta_fieldnames: tuple[str, ...] | None = None,
        strict: bool = True,
    ) -> None:
        self.replay_buffer = replay_buffer
        self.num_groups = check_count("num_groups", num_groups, 1)
        self.strict = bool(strict)
        tracks, meta_tracks = replay_buffer.tracks, replay_buffer.meta_tracks
        self.fieldnames = _chosen("fieldnames", fieldnames, tracks)
        self.meta_fieldnames = _chosen("meta_fieldnames", meta_fieldnames, meta_tracks)
        self.shapes = {name: tracks[name].shape for name in self.fieldnames}
        self.meta_shapes = {name: meta_tracks[name].shape for name in self.meta_fieldnames}
        self.clear()

    def __len__(self) -> int:
        """Return how many steps each group has."""
        return self.step_count

    def clear(self) -> None:
        """Forget the collected steps."""
        self.step_count = 0
        self._steps: dict[str, list[Any]] = {}
        self._whole: dict[str, Any] = {}
        self._meta: dict[str, Any] = {}

    def append(self, **data: Any) -> None:
        """Add one step of every group, whole or not at all.

        Args:
            **data: Fields, of shape (groups, *shape) or (groups, 1, *shape), the same ones in every
                step; and values of episodes, one for all groups or one for each, the last of which
                are kept.

        Raises:
            AssertionError: Another shape, or other fields than before. It is a ValueError as well.
            KeyError: The name is unknown.
        """
        steps, meta = self._split(data)
        values = {name: self._step(name, value) for name, value in steps.items()}
        if self._steps and values and set(values) != set(self._steps):
            raise MemmapError(
                f"append has {_listed(values)}, and the steps before have {_listed(self._steps)}: "
                f"give the same fields in every step, and whole trajectories to extend"
            )
        if double := sorted(set(values) & set(self._whole)):
            raise MemmapError(f"field {double[0]} has whole trajectories from extend")
        if self._whole and values:
            raise MemmapError("extend has ended these episodes: store or clear them first")
        self._add_meta(meta)
        for name, value in values.items():
            self._steps.setdefault(name, []).append(value)
        self.step_count += bool(values)

    def extend(self, **trajectories: Any) -> None:
        """Add fields to all collected steps, such as advantages.

        Args:
            **trajectories: Values of shape (steps, groups, *shape).

        Raises:
            AssertionError: Another shape, another number of steps, or a field that it has already.
                A ValueError as well.
            KeyError: A name is unknown.
        """
        whole, meta = self._split(trajectories)
        values = {name: self._trajectory(name, value) for name, value in whole.items()}
        lengths = {name: len(value) for name, value in values.items()}
        for name, length in lengths.items():
            expected = self.step_count or next(iter(lengths.values()))
            if length != expected:
                raise MemmapError(
                    f"field {name} - time dim {length} does not match the {expected} collected "
                    f"steps"
                )
        self._add_meta(meta)
        self._whole |= values
        if lengths:
            self.step_count = next(iter(lengths.values()))

    def field_kind(self, name: str) -> str:
        """Return `data` for a field of steps, `meta` for a value of episodes.

        Raises:
            KeyError: The name is unknown.
        """
        if name in self.fieldnames:
            return "data"
        if name in self.meta_fieldnames:
            return "meta"
        raise self._unknown(name)

    def field_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that one step, or one episode, has of a field.

        Raises:
            KeyError: The name is unknown.
        """
        is_step = self.field_kind(name) == "data"
        shape: tuple[int, ...] = (self.shapes if is_step else self.meta_shapes)[name]
        return shape

    def per_group(self, name: str, value: Any) -> list[Any]:
        """Return what each group has of a value of shape (groups, *shape) or (groups, 1, *shape).

        Raises:
            AssertionError: Another shape.
            KeyError: The name is unknown.
        """
        return list(self._by_group(name, value, self.field_shape(name)))

    def groups(self, name: str) -> list[Any]:
        """Return what each group has of a field: (steps, *shape) for one of steps.

        Raises:
            KeyError: The name is unknown.
            ValueError: Nothing of it was collected.
        """
        if self.field_kind(name) == "data":
            return list(self.env_major(name))
        if name not in self._meta:
            raise MemmapError(f"no {name} was collected")
        return self._meta_by_group(name, self._meta[name])

    def time_major(self, name: str) -> Any:
        """Return a field of steps as (steps, groups, *shape); values of episodes as (groups, ..).

        Tensors where tensors were given, arrays otherwise.

        Raises:
            KeyError: The name is unknown.
            ValueError: Nothing of it was collected.
        """
        if self.field_kind(name) == "meta":
            return stacked(self.groups(name))
        if name in self._whole:
            return self._whole[name]
        if name not in self._steps:
            raise MemmapError("collector is empty" if not self.step_count else f"no {name} in it")
        return stacked(self._steps[name])

    def env_major(self, name: str) -> Any:
        """Return a field of steps as (groups, steps, *shape); values of episodes as (groups, ..).

        Raises:
            KeyError: The name is unknown.
            ValueError: Nothing of it was collected.
        """
        values = self.time_major(name)
        return values if self.field_kind(name) == "meta" else values.swapaxes(0, 1)

    def all_data(self, fields: Iterable[str] | None = None, device: Any = None) -> dict[str, Any]:
        """Return fields as (groups, steps, *shape), by name.

        Args:
            fields: All fields of steps that were collected, by default.
            device: Where tensors are put; arrays stay arrays.

        Raises:
            KeyError: The name is unknown.
            ValueError: Nothing was collected.
        """
        if not self.step_count:
            raise MemmapError("collector is empty")
        if isinstance(fields, str):
            raise MemmapTypeError(f"fields is a tuple of names such as ('state',), got {fields!r}")
        names = list(fields) if fields is not None else [*self._steps, *self._whole]
        values = {name: self.env_major(name) for name in names}
        if device is None:
            return values
        return {n: v.to(device) if is_tensor(v) else v for n, v in values.items()}

    def dataloader(
        self,
        batch_size: int,
        fields: Iterable[str] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        to_named_tuple: tuple[str, ...] | None = None,
        shuffle: bool = False,
        device: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return a torch `DataLoader` over the steps of all groups, read from memory.

        Args:
            batch_size: Steps in a batch.
            fields: Fields of steps; all collected ones by default.
            filter_fields: `{name: value}`; only steps that have all these values.
            to_named_tuple: Names of the parts of a named tuple.
            shuffle: In random order. Otherwise by group, then by time.
            device: Move tensors there.
            **kwargs: For torch's `DataLoader`.

        Raises:
            KeyError: A name is unknown.
            MissingExtraError: torch is not installed.
            ValueError: Nothing was collected, or a filter's field is not a single number.
        """
        datasets = import_module("sqlbuffer.compat.memmap.datasets")
        collate = datasets.collate_for(False, device, to_named_tuple)
        steps = {name: _flat(value) for name, value in self.all_data(fields).items()}
        kept = np.ones(self.num_groups * self.step_count, bool)
        for name, wanted in (filter_fields or {}).items():
            if self.field_kind(name) != "data":
                raise self._unknown(name)
            if self.field_shape(name):
                raise MemmapError(
                    f"filter_fields only supports scalar fields, got shape "
                    f"{self.field_shape(name)} for `{name}`"
                )
            kept &= datasets.matches(np.asarray(_flat(self.env_major(name))), wanted)

        dataset = datasets.Columns(
            {name: value[np.flatnonzero(kept)] for name, value in steps.items()}
        )
        return datasets.torch_loader(dataset, batch_size, shuffle, collate, kwargs)

    def store(self, **meta_data: Any) -> None:
        """Store one episode of each group, then forget them.

        Args:
            **meta_data: Values of episodes: one for all groups, or one for each, of shape
                (groups, *shape).

        Raises:
            AssertionError: Another shape. It is a ValueError as well.
            KeyError: The name is unknown.
            ValueError: Nothing was collected, or the buffer has no room for one episode a group;
                nothing was stored.
        """
        if not self.step_count:
            raise MemmapError("collector is empty: no data to store")
        steps, meta = self._split(meta_data)
        if steps:
            raise self._unknown(next(iter(steps)), self.meta_fieldnames)
        values = {**self._meta, **meta}
        by_group = {name: self._meta_by_group(name, value) for name, value in values.items()}
        buffer, n = self.replay_buffer, self.num_groups
        if not buffer.circular and buffer.num_episodes + n > buffer.max_episodes:
            raise MemmapError(
                f"{n} episodes do not fit: {buffer.num_episodes} of max_episodes "
                f"({buffer.max_episodes}) are stored; make it larger, or circular=True"
            )
        data = self.all_data()
        for group in range(n):
            buffer.store_episode(
                **{name: value[group] for name, value in data.items()},
                **{name: value[group] for name, value in by_group.items()},
            )
        self.clear()

    def _split(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        steps, meta = {}, {}
        for name, value in values.items():
            if name in self.fieldnames:
                steps[name] = value
            elif name in self.meta_fieldnames:
                meta[name] = value
            elif self.strict:
                raise self._unknown(name)
        return steps, meta

    def _step(self, name: str, value: Any) -> Any:
        """Return a copy: environments write into the arrays that they gave."""
        return copied(self._by_group(name, value, self.shapes[name]))

    def _by_group(self, name: str, value: Any, shape: tuple[int, ...]) -> Any:
        value = array_or_tensor(value)
        if value.ndim == 0 or value.shape[0] != self.num_groups:
            raise MemmapError(
                f"field {name} - `append` expects per-step group-batched values of shape "
                f"({self.num_groups}, *{shape}) or ({self.num_groups}, 1, *{shape}), got "
                f"{tuple(value.shape)} - for whole trajectories in time-major "
                f"(time, {self.num_groups}, *{shape}), use `extend`"
            )
        rest = tuple(value.shape[1:])
        if rest == shape:
            return value
        if rest == (1, *shape):
            return value[:, 0]
        raise MemmapError(f"field {name} - per-group shape {rest} should be {shape} or (1, *shape)")

    def _trajectory(self, name: str, value: Any) -> Any:
        value = array_or_tensor(value)
        if value.ndim < 2 or value.shape[1] != self.num_groups or not len(value):
            raise MemmapError(
                f"field {name} - `extend` expects time-major (time, {self.num_groups}, *shape), "
                f"got {tuple(value.shape)}"
            )
        if tuple(value.shape[2:]) != self.shapes[name]:
            raise MemmapError(
                f"field {name} - feature shape {tuple(value.shape[2:])} does not match "
                f"{self.shapes[name]}"
            )
        if name in self._steps or name in self._whole:
            raise MemmapError(f"field {name} was collected already")
        return copied(value)

    def _add_meta(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._meta_by_group(name, value)
        self._meta |= {name: copied(array_or_tensor(value)) for name, value in values.items()}

    def _meta_by_group(self, name: str, value: Any) -> list[Any]:
        shape, array = self.meta_shapes[name], array_or_tensor(value)
        if tuple(array.shape) in {shape, (1,) if shape == () else shape}:
            return [value] * self.num_groups
        if array.ndim and array.shape[0] == self.num_groups:
            return list(self._by_group(name, value, shape))
        raise MemmapError(
            f"meta field {name} has shape {shape}, one for all or one for each of "
            f"{self.num_groups} groups; got {tuple(array.shape)}"
        )

    def _unknown(self, name: str, known: Iterable[str] = ()) -> UnknownNameError:
        names = sorted(known or {*self.fieldnames, *self.meta_fieldnames})
        return UnknownNameError(f"unknown field {name} - valid fields are {names}")


def _chosen(parameter: str, names: Any, tracks: Iterable[str]) -> set[str]:
    checked = check_names(parameter, names)
    if checked is None:
        return set(tracks)
    check_known(parameter, checked, tracks)
    return set(checked)


def _flat(value: Any) -> Any:
    """Return the steps of all groups as one sequence, group by group."""
    return value.reshape((-1, *value.shape[2:]))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
