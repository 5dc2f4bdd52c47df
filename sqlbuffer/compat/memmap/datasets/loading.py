"""`dataset`, `dataloader` and `get_all_data`, which are methods of `ReplayBuffer`.

The modules of the datasets need torch. Writing does not, so they are imported when they are used.
"""

from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from sqlbuffer.compat.memmap.datasets.argument_checks import (
    check_known,
    check_names,
)
from sqlbuffer.compat.memmap.datasets.readable import Readable
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.errors import MissingExtraError, install
from sqlbuffer.steps import as_tensor, check_device

# The public classes, and their modules in this folder.
DATASETS = {
    "ReplayDataset": "trajectory",
    "ReplayDatasetNStep": "n_step",
    "ReplayDatasetTimeWindow": "time_window",
    "ReplayDatasetTimestep": "timestep",
    "ReplayDatasetTrajectory": "trajectory",
}


def dataset_class(name: str) -> Any:
    """Return the class of a dataset.

    Raises:
        MissingExtraError: torch is not installed.
    """
    return getattr(import_module(f"{__package__}.{DATASETS[name]}"), name)


def dataset(
    self: Readable,
    n_steps: int | None = None,
    fields: tuple[str, ...] | None = None,
    current_fields: tuple[str, ...] | None = None,
    next_fields: tuple[str, ...] | None = None,
    sequence_fields: tuple[str, ...] | None = None,
    timestep_level: bool = False,
    filter_meta: Mapping[str, Any] | None = None,
    filter_fields: Mapping[str, Any] | None = None,
    fieldname_map: Mapping[str, str] | None = None,
    slice_by_episode_len: bool = True,
    return_episode_lens: bool = True,
    **kwargs: Any,
) -> Any:
    """Return a torch dataset of the steps stored now, with those of the open episode.

    Args:
        n_steps: Transitions that reach so far ahead: a `ReplayDatasetNStep`.
        fields: Names of the fields that items have; all by default.
        current_fields: For n_steps only, as are the next two.
        next_fields: All by default.
        sequence_fields: None by default.
        timestep_level: Single steps: a `ReplayDatasetTimestep`. Otherwise whole episodes: a
            `ReplayDatasetTrajectory`.
        filter_meta: `{name: value}` of episodes.
        filter_fields: `{name: value}` of steps; not for whole episodes.
        fieldname_map: `{name: other name}` of what items have.
        slice_by_episode_len: For whole episodes: False has max_timesteps steps of each.
        return_episode_lens: For whole episodes: have `_lens`.
        **kwargs: `include_metadata`, `return_indices`, `min_episode_len`.

    Raises:
        KeyError: A filter has an unknown name; at the first item: `fields` has one.
        MissingExtraError: torch is not installed.
        TypeError: Names that are not in a tuple.
        ValueError: Nothing is stored, or parameters that exclude each other.
    """
    need_torch()
    from sqlbuffer.compat.memmap.datasets.n_step import ReplayDatasetNStep
    from sqlbuffer.compat.memmap.datasets.timestep import ReplayDatasetTimestep
    from sqlbuffer.compat.memmap.datasets.trajectory import ReplayDatasetTrajectory

    if n_steps is not None and timestep_level:
        raise MemmapError("cannot specify both n_steps and timestep_level")
    self._flush()
    if not self._state()[0].any():
        raise MemmapError("replay buffer is empty")
    common = {"fieldname_map": fieldname_map, "filter_meta": filter_meta, **kwargs}
    if n_steps is not None:
        return ReplayDatasetNStep(
            self,
            n_steps,
            current_fields,
            next_fields,
            sequence_fields,
            filter_fields=filter_fields,
            **common,
        )
    if timestep_level:
        return ReplayDatasetTimestep(self, fields, filter_fields=filter_fields, **common)
    return ReplayDatasetTrajectory(
        self,
        fields,
        filter_fields=filter_fields,
        slice_by_episode_len=slice_by_episode_len,
        return_episode_lens=return_episode_lens,
        **common,
    )


def dataloader(
    self: Any,
    batch_size: int,
    n_steps: int | None = None,
    dataset: Any = None,
    fields: tuple[str, ...] | None = None,
    current_fields: tuple[str, ...] | None = None,
    next_fields: tuple[str, ...] | None = None,
    sequence_fields: tuple[str, ...] | None = None,
    filter_meta: Mapping[str, Any] | None = None,
    filter_fields: Mapping[str, Any] | None = None,
    fieldname_map: Mapping[str, str] | None = None,
    return_indices: bool = False,
    return_mask: bool = False,
    timestep_level: bool = False,
    to_named_tuple: tuple[str, ...] | None = None,
    shuffle: bool = False,
    device: Any = None,
    dataset_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Return a torch `DataLoader` of the data that is stored now.

    Batches are dicts of tensors: fields and values of episodes by name. Whole episodes are padded
    with zeros to the longest of their batch, with their lengths as `_lens`. See the datasets for
    the contents of items.

    Args:
        batch_size: Items in a batch.
        n_steps: See `dataset`, also for the arguments that are not explained here.
        dataset: Read this dataset; the arguments that choose items and fields have no effect.
        fields: Not together with to_named_tuple.
        current_fields: For n_steps only, as are the next two.
        next_fields: All by default.
        sequence_fields: None by default.
        filter_meta: `{name: value}` of episodes.
        filter_fields: `{name: value}` of steps.
        fieldname_map: `{name: other name}`.
        return_indices: Include `_index` (whole episodes) or `_indices` (slot and time).
        return_mask: For whole episodes: include `_mask`, bool of shape (B, longest), True for real
            steps.
        timestep_level: Single steps.
        to_named_tuple: Names of the parts of a named tuple `Batch`, in order. Attributes have no
            leading underscores: `_mask` becomes `batch.mask`.
        shuffle: In random order. Otherwise by slot, then by time.
        device: Move tensors there, in worker processes if there are any.
        dataset_kwargs: More for `dataset`, such as `include_metadata`.
        **kwargs: For torch's `DataLoader`: `drop_last`, `num_workers`, `generator`, ..

    Raises:
        KeyError: A filter has an unknown name; at the first batch: `fields` has one.
        MissingExtraError: torch is not installed.
        TypeError: Names are not in a tuple, or `collate_fn` is given.
        ValueError: Nothing is stored, or parameters exclude each other. At the first batch: the
            batch lacks a part of the named tuple.
    """
    if n_steps is not None and timestep_level:
        raise MemmapError("cannot specify both n_steps and timestep_level")
    if return_mask and (n_steps is not None or timestep_level):
        raise MemmapError("return_mask is only supported for trajectory-level data")
    if fields is not None and to_named_tuple is not None:
        raise MemmapError("cannot specify both fields and to_named_tuple")
    if "collate_fn" in kwargs:
        raise MemmapTypeError("dataloader takes no collate_fn: build torch's DataLoader yourself")
    collate = collate_for(return_mask, device, to_named_tuple)
    if dataset is None:
        dataset = self.dataset(
            n_steps=n_steps,
            fields=fields,
            current_fields=current_fields,
            next_fields=next_fields,
            sequence_fields=sequence_fields,
            timestep_level=timestep_level,
            filter_meta=filter_meta,
            filter_fields=filter_fields,
            fieldname_map=fieldname_map,
            return_indices=return_indices,
            **(dataset_kwargs or {}),
        )
    return torch_loader(dataset, batch_size, shuffle, collate, kwargs)


def collate_for(return_mask: bool, device: Any, to_named_tuple: Any) -> Any:
    """Return the function that collates items into batches."""
    need_torch()
    from sqlbuffer.compat.memmap.datasets.batches import Collate

    if device is not None:
        check_device(device)
    names = check_names("to_named_tuple", to_named_tuple)
    if names is not None:
        _check_parts(names)
    return Collate(bool(return_mask), device, names)


def torch_loader(
    dataset: Any, batch_size: Any, shuffle: bool, collate: Any, options: dict[str, Any]
) -> Any:
    """Return torch's loader over a dataset."""
    from torch.utils import data

    if not isinstance(dataset, data.Dataset):
        raise MemmapTypeError(f"dataset is one of torch's datasets, got {dataset!r}")
    return data.DataLoader(
        dataset, batch_size=batch_size, shuffle=shuffle, collate_fn=collate, **options
    )


def get_all_data(
    self: Readable,
    fields: tuple[str, ...] | None = None,
    meta_fields: tuple[str, ...] | None = None,
    device: Any = None,
) -> dict[str, Any]:
    """Return the finished episodes as tensors, by slot.

    Args:
        fields: Names of fields of steps. If both arguments are omitted, all fields and all values
            of episodes are returned, with `episode_lens`. If one is given, the other kind is left
            out.
        meta_fields: Names of values of episodes.
        device: Put the tensors there.

    Returns:
        Fields of shape (num_episodes, longest, *shape), with their defaults behind the end of
        shorter episodes; values of episodes of shape (num_episodes, *shape). Empty without any.

    Raises:
        KeyError: A name is unknown.
        MissingExtraError: torch is not installed.
        TypeError: The names are not a tuple or list.
        ValueError: There is no such device.
    """
    need_torch()
    if device is not None:
        check_device(device)
    if fields is None and meta_fields is None:
        names, meta_names = list(self.tracks), [n for n in self.meta_tracks if n != "_initted"]
    else:
        names, meta_names = _names("fields", fields), _names("meta_fields", meta_fields)
    check_known("fields", names, self.tracks)
    check_known("meta_fields", meta_names, self.meta_tracks)
    slots = np.arange(self.num_episodes)
    if not len(slots):
        return {}

    def values(_: object) -> dict[str, Any]:
        found = {}
        if names:
            longest = int(self._state(slots)[0].max())
            grid = np.broadcast_arrays(slots[:, None], np.arange(longest)[None])
            found = self._cells(names, *(np.ascontiguousarray(part) for part in grid))
        if meta_names:
            found |= self._meta(meta_names, slots)
        return found

    found = self._at_one_moment(values)
    return {name: as_tensor(array, device or "cpu") for name, array in found.items()}


def _names(parameter: str, names: Any) -> list[str]:
    if names is None:
        return []
    if isinstance(names, list):
        names = tuple(names)
    return list(check_names(parameter, names) or ())


def _check_parts(names: tuple[str, ...]) -> None:
    attributes = [name.lstrip("_") for name in names]
    for name in attributes:
        if not name.isidentifier():
            raise MemmapError(f"to_named_tuple: {name!r} cannot be the name of a part")
    double = [name for name, n in Counter(attributes).items() if n > 1]
    if double:
        raise MemmapError(f"to_named_tuple has two parts named {double[0]!r}")


def need_torch() -> None:
    """Raise unless torch is installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            f"datasets, data loaders and get_all_data need torch; run {install('torch')}; "
            "buffer.data['name'][...] gives numpy arrays without it"
        ) from None
