"""Torch datasets over the slots of a buffer, for `torch.utils.data.DataLoader`.

A dataset lists its items once, when it is made. Values and lengths are read when an item is read.
One read of the database serves all items of a batch.

An item never mixes two episodes. A slot may show another episode than when the dataset was made.
Then its item is what that episode holds there, if it is long enough and passes the filters.
Otherwise the item is left out of its batch. Where nothing is left of a batch, or where the item is
read alone, InsufficientDataError is raised: make a new dataset.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError, UnknownNameError
from sqlbuffer.compat.memmap.fields import (
    INTERNAL,
    DeclaredField,
    check_count,
    check_dataset_options,
    check_known,
    check_map,
    check_names,
)
from sqlbuffer.compat.memmap.replay_buffer import ReplayBuffer
from sqlbuffer.compat.memmap.slots import Ints
from sqlbuffer.errors import InsufficientDataError, MissingExtraError, install
from sqlbuffer.loading.loader import made_tuple
from sqlbuffer.spaces import NEXT
from sqlbuffer.steps import as_tensor, check_device

try:
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils import data
except ImportError:
    raise MissingExtraError(
        f"datasets, data loaders and get_all_data need torch; run {install('torch')}; "
        "buffer.data['name'][...] gives numpy arrays without it"
    ) from None


Arrays = dict[str, NDArray[Any]]
# A buffer, its folder, or its database URL.
Source = ReplayBuffer | str | Path


class Items(Sequence[dict[str, Any]]):
    """Items that were read together, as columns: collating them copies nothing.

    Args:
        columns: Arrays of shape (n, ..), by name.
        n: Number of items.
        lens: Lengths of the items, where columns are padded.
        ragged: Names of the columns that are padded.
    """

    def __init__(
        self, columns: Mapping[str, Any], n: int, lens: Any = None, ragged: Sequence[str] = ()
    ) -> None:
        self.columns = {name: as_tensor(array, "cpu") for name, array in columns.items()}
        self._n, self._lens, self._ragged = n, lens, frozenset(ragged)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(self._n)[index]]
        i = range(self._n)[index]
        return {
            name: column[i, : self._lens[i]] if name in self._ragged else column[i]
            for name, column in self.columns.items()
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(self._n))


class Collate:
    """Collates items into a batch: pads with zeros, adds the mask, moves tensors, names fields."""

    def __init__(
        self, return_mask: bool, device: Any, to_named_tuple: tuple[str, ...] | None
    ) -> None:
        self._return_mask, self._device, self._names = return_mask, device, to_named_tuple

    def __call__(self, items: Any) -> Any:
        if isinstance(items, Mapping):  # batch_size=None: an item is a batch
            batch = {name: torch.as_tensor(value) for name, value in items.items()}
        else:
            batch = dict(items.columns) if isinstance(items, Items) else _stacked(list(items))
        if self._return_mask:
            batch["_mask"] = _mask(batch)
        if self._device is not None:
            batch = {name: tensor.to(self._device) for name, tensor in batch.items()}
        return batch if self._names is None else _named(batch, self._names)


def _stacked(items: list[Mapping[str, Any]]) -> dict[str, Any]:
    batch = {}
    for name in items[0]:
        tensors = [torch.as_tensor(item[name]) for item in items]
        is_ragged = len({tensor.shape for tensor in tensors}) > 1
        batch[name] = pad_sequence(tensors, True) if is_ragged else torch.stack(tensors)
    return batch


def _mask(batch: Mapping[str, Any]) -> Any:
    if "_lens" not in batch:
        raise UnknownNameError("return_mask needs '_lens' in the batch: return_episode_lens=True")
    lens = batch["_lens"]
    return torch.arange(int(lens.max()), device=lens.device) < lens[..., None]


def _named(batch: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name not in batch:
            raise MemmapError(f"field `{name}` not found in batch. available fields: {list(batch)}")
    return made_tuple(tuple(name.lstrip("_") for name in names), [batch[name] for name in names])


def collate_for(return_mask: bool, device: Any, to_named_tuple: Any) -> Any:
    """Return the function that collates items into batches."""
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
    if not isinstance(dataset, data.Dataset):
        raise MemmapTypeError(f"dataset is one of torch's datasets, got {dataset!r}")
    return data.DataLoader(
        dataset, batch_size=batch_size, shuffle=shuffle, collate_fn=collate, **options
    )


def _check_parts(names: tuple[str, ...]) -> None:
    attributes = [name.lstrip("_") for name in names]
    for name in attributes:
        if not name.isidentifier():
            raise MemmapError(f"to_named_tuple: {name!r} cannot be the name of a part")
    double = [name for name, n in Counter(attributes).items() if n > 1]
    if double:
        raise MemmapError(f"to_named_tuple has two parts named {double[0]!r}")


class Columns(data.Dataset):  # type: ignore[misc]
    """A dataset of steps in memory.

    Args:
        columns: Tensors or arrays of shape (n, ..), by name.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: torch.as_tensor(column) for name, column in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self._columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> Items:
        return Items({n: column[indices] for n, column in self._columns.items()}, len(indices))


def counted(counts: Ints) -> tuple[Ints, Ints]:
    """Return 0..n-1 for each n, concatenated, and the place of the n that each belongs to.

    >>> counted(np.array([2, 0, 3]))
    (array([0, 1, 0, 1, 2]), array([0, 0, 2, 2, 2]))
    """
    counts = np.maximum(counts, 0)
    owners = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return np.arange(len(owners)) - starts[owners], owners


def steps_of(slots: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return slot and time of the first steps of each slot, in the order of slots, then of time.

    >>> steps_of(np.array([4, 7]), np.array([1, 2]))
    (array([4, 7, 7]), array([0, 0, 1]))
    """
    ts, owners = counted(counts)
    return slots[owners], ts


def steps_ahead(ts: Ints, lengths: Ints, n_steps: int) -> Ints:
    """Return how many steps ahead transitions reach: n, or as far as the last stored step.

    >>> steps_ahead(np.array([0, 1, 2]), np.array([4, 4, 4]), 2)
    array([2, 2, 1])
    """
    steps: Ints = np.minimum(n_steps, lengths - ts - 1)
    return steps


def padded(values: NDArray[Any], counts: Ints, width: int) -> NDArray[Any]:
    """Return concatenated values as rows of one width, with zeros on the right.

    Args:
        values: Values of shape (sum of counts, *shape).
        counts: Number of values of each row, at most `width`.
        width: Width of the rows.

    Returns:
        An array of shape (len(counts), width, *shape).

    >>> padded(np.array([1, 2, 3]), np.array([1, 2]), 3)
    array([[1, 0, 0],
           [2, 3, 0]])
    """
    shape = (len(counts), width, *values.shape[1:])
    if len(values) == len(counts) * width:
        return values.reshape(shape)
    rows = np.zeros(shape, values.dtype)
    rows[np.arange(width) < counts[:, None]] = values
    return rows


Filter = Mapping[str, Any]


def matches(column: NDArray[Any], wanted: Any) -> NDArray[np.bool_]:
    """Return where a column has a value; for True or False, where it is one.

    >>> matches(np.array([0, 1, 2]), 1), matches(np.array([0, 1, 2]), True)
    (array([False,  True, False]), array([False,  True,  True]))
    """
    if isinstance(wanted, bool):
        column = column.astype(bool)
    return np.asarray(column == wanted, bool)


def check_filter(parameter: str, wanted: Any, tracks: Mapping[str, DeclaredField]) -> Filter:
    """Return a filter, or raise unless it asks for single numbers of tracks that have them."""
    if wanted is None:
        return {}
    if not isinstance(wanted, Mapping):
        raise MemmapTypeError(f"{parameter} is a dict such as {{'task_id': 1}}, got {wanted!r}")
    checked = {}
    for name, value in wanted.items():
        if name not in tracks:
            raise UnknownNameError(
                f"{parameter} names {name!r}; choose of {', '.join(tracks) or 'none'}"
            )
        if tracks[name].shape:
            raise MemmapError(
                f"{parameter} only supports scalar fields, got shape {tracks[name].shape} for "
                f"`{name}`"
            )
        checked[name] = _number(parameter, name, value)
    return checked


def _number(parameter: str, name: str, value: Any) -> Any:
    """Return a single number as Python's own."""
    if hasattr(value, "item") and np.size(value) == 1:
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise MemmapTypeError(f"{parameter}: {name!r} is to be one number or bool, got {value!r}")
    return value


def of_episodes(buffer: ReplayBuffer, wanted: Filter, slots: Ints) -> NDArray[np.bool_]:
    """Return which slots have the values wanted of episodes."""
    kept = np.ones(len(slots), bool)
    if wanted and len(slots):
        for name, column in buffer._meta(list(wanted), slots).items():
            kept &= matches(column, wanted[name])
    return kept


def of_steps(buffer: ReplayBuffer, wanted: Filter, slots: Ints, ts: Ints) -> NDArray[np.bool_]:
    """Return which steps have the values wanted of steps."""
    kept = np.ones(len(slots), bool)
    if wanted and len(slots):
        for name, column in buffer._cells(list(wanted), slots, ts).items():
            kept &= matches(column, wanted[name])
    return kept


class SlotDataset(data.Dataset):  # type: ignore[misc]
    """A dataset whose items start at a step of an episode; by default at the first step."""

    _reach = 0  # how many steps after its own an item needs

    def __init__(
        self,
        replay_buffer: Source,
        fieldname_map: Mapping[str, str] | None,
        filter_meta: Mapping[str, Any] | None,
        filter_fields: Mapping[str, Any] | None,
        include_metadata: bool,
        return_indices: bool,
        options: dict[str, Any],
    ) -> None:
        buffer = replay_buffer
        if isinstance(buffer, (str, Path)):
            buffer = ReplayBuffer.from_folder(buffer, read_only=True)
        self.replay_buffer = buffer
        self.fieldname_map = check_map(fieldname_map)
        self.return_indices = bool(return_indices)
        self._meta_names = (
            [name for name in buffer.meta_tracks if name not in INTERNAL]
            if include_metadata
            else []
        )
        self._filter_meta = check_filter("filter_meta", filter_meta, buffer.meta_tracks)
        self._filter_fields = check_filter("filter_fields", filter_fields, buffer.tracks)
        shortest = check_count("min_episode_len", options.pop("min_episode_len", 0), 0)
        self._shortest = max(shortest, 1 + self._reach)
        check_dataset_options(options)
        buffer._flush()

        def look(_: object) -> None:
            lengths, self._shown = buffer._state()
            slots = np.flatnonzero(lengths >= self._shortest)
            slots = slots[of_episodes(buffer, self._filter_meta, slots)]
            self.indices = torch.from_numpy(slots)
            self._slots, self._ts = self._all(slots, lengths)
            kept = of_steps(buffer, self._filter_fields, self._slots, self._ts)
            self._slots, self._ts = self._slots[kept], self._ts[kept]

        buffer._at_one_moment(look)

    def __len__(self) -> int:
        """Return how many items there were when the dataset was made."""
        return len(self._slots)

    def __getitem__(self, index: int) -> Any:
        """Return one item: a dict of tensors.

        Raises:
            IndexError: There are not that many.
            InsufficientDataError: Its slot holds another episode now, which has no such item.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Items:
        """Return several items with one read, without those that no longer exist.

        Raises:
            IndexError: There are not that many.
            InsufficientDataError: None is there any more.
        """
        _, items = self.found(indices)
        if len(indices) and not len(items):
            raise InsufficientDataError(
                f"none of the items {[int(i) for i in indices]} is there any more: their slots "
                f"hold other episodes; make a new dataset or data loader"
            )
        return items

    def found(self, indices: Sequence[int]) -> tuple[NDArray[np.bool_], Items]:
        """Return which of the items exist, and those items."""
        places = self._places(indices)
        slots, ts = self._slots[places], self._ts[places]

        def items(_: object) -> tuple[NDArray[np.bool_], Items]:
            lengths, shown = self.replay_buffer._state(slots)
            kept = self._are_there(slots, ts, lengths, shown)
            n_kept = np.count_nonzero(kept)
            if not n_kept:
                return kept, Items({}, 0)
            if n_kept == len(kept):
                return kept, self._items(slots, ts, lengths)
            return kept, self._items(slots[kept], ts[kept], lengths[kept])

        return self.replay_buffer._at_one_moment(items, slots)

    def _all(self, slots: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """Return slot and time of each item of these slots."""
        return slots, np.zeros(len(slots), np.int64)

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        raise NotImplementedError

    def _places(self, indices: Sequence[int]) -> Ints:
        places, n = list(map(operator.index, indices)), len(self)
        if places and not (-n <= min(places) and max(places) < n):
            raise IndexError(f"the dataset has {n} items, and the indices were {places}")
        return np.array([place % n for place in places], np.int64)

    def _are_there(self, slots: Ints, ts: Ints, lengths: Ints, shown: Ints) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = lengths >= np.maximum(ts + 1 + self._reach, self._shortest)
        changed = np.flatnonzero(kept & (shown != self._shown[slots]))
        if len(changed):
            slots, ts = slots[changed], ts[changed]
            kept[changed] = of_episodes(self.replay_buffer, self._filter_meta, slots) & of_steps(
                self.replay_buffer, self._filter_fields, slots, ts
            )
        return kept

    def _cells(self, names: Sequence[str], slots: Ints, ts: Ints) -> Arrays:
        if not names:
            return {}
        check_known("fields", names, self.replay_buffer.tracks)
        return self.replay_buffer._cells(names, slots, ts)

    def _named(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        return {self.fieldname_map.get(name, name): column for name, column in columns.items()}

    def _of_episodes(self, slots: Ints) -> Arrays:
        names = self._meta_names
        return self._named(self.replay_buffer._meta(names, slots)) if names else {}

    def _known_fields(self, parameter: str, fields: Any) -> tuple[str, ...]:
        checked = check_names(parameter, fields)
        return tuple(self.replay_buffer.tracks) if checked is None else checked


class StepDataset(SlotDataset):
    """A dataset whose items start at any step, in the order of slots, then of time."""

    @property
    def timepoints(self) -> Any:
        """Slot and time of each item: int64 of shape (n, 2)."""
        return torch.from_numpy(np.stack([self._slots, self._ts], 1))


class ReplayDatasetTrajectory(SlotDataset):
    """Whole episodes.

    Items have the fields, of shape (L, *shape); the episode's own values, without `episode_lens`;
    `_lens`, its length as int64; and `_index`, its slot, if asked for. A data loader pads them with
    zeros to the longest of a batch.

    Args:
        replay_buffer: The buffer; or its folder or URL, which is opened to read only.
        fields: Names of the fields that items have; all by default. An unknown one raises when an
            item is read.
        fieldname_map: `{name: other name}` of what items have; of two with one name, the latter
            stays.
        include_metadata: Have the episode's own values as well.
        filter_meta: `{name: value}`: episodes that have all these values only. True and False match
            numbers by whether they are zero.
        filter_fields: Not for whole episodes.
        return_indices: Have `_index` as well.
        slice_by_episode_len: False: fields are of shape (max_timesteps, *shape), with defaults
            behind the end.
        return_episode_lens: Have `_lens`.
        **kwargs: `min_episode_len`, for longer episodes only. Others are ignored, as
            memmap-replay-buffer does, unless they look like a misspelt one.

    Raises:
        KeyError: filter_meta names an unknown field.
        TypeError: Names that are not in a tuple, or a parameter that looks misspelt.
        ValueError: filter_fields, or a filter value that is not a single number.

    Example:
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", 10, 5, fields={"x": "float"})
        >>> buffer.store_episode(x=[1.0, 2.0])
        >>> ReplayDatasetTrajectory(buffer)[0]
        {'x': tensor([1., 2.]), '_lens': tensor(2)}
    """

    def __init__(
        self,
        replay_buffer: Source,
        fields: tuple[str, ...] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        include_metadata: bool = True,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        return_indices: bool = False,
        slice_by_episode_len: bool = True,
        return_episode_lens: bool = True,
        **kwargs: Any,
    ) -> None:
        if filter_fields is not None:
            raise MemmapError(
                "filter_fields is only supported for timestep-level and n-step datasets"
            )
        if not (slice_by_episode_len or return_episode_lens):
            raise MemmapError(
                "cannot turn off return_episode_lens if slice_by_episode_len is also turned off"
            )
        super().__init__(
            replay_buffer,
            fieldname_map,
            filter_meta,
            None,
            include_metadata,
            return_indices,
            kwargs,
        )
        self.fields = self._known_fields("fields", fields)
        self.slice_by_episode_len = bool(slice_by_episode_len)
        self.return_episode_lens = bool(return_episode_lens)

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        width = int(lengths.max()) if self.slice_by_episode_len else self._most_steps
        counts = lengths if self.slice_by_episode_len else np.full(len(slots), width)
        check_known("fields", self.fields, self.replay_buffer.tracks)
        cells = self.replay_buffer._starts(self.fields, slots, counts)
        columns = {name: padded(values, counts, width) for name, values in cells.items()}
        made = {**self._named(columns), **self._of_episodes(slots)}
        if self.return_episode_lens:
            made["_lens"] = lengths
        if self.return_indices:
            made["_index"] = slots
        return Items(made, len(slots), counts, list(self._named(columns)))

    @property
    def _most_steps(self) -> int:
        return self.replay_buffer.max_timesteps


ReplayDataset = ReplayDatasetTrajectory


class ReplayDatasetTimestep(StepDataset):
    """Single steps of all episodes, in the order of slots, then of time.

    Items have the fields, the episode's own values, and `_indices`, slot and time as int64, if
    asked for.

    Args:
        replay_buffer: The buffer, its folder, or its URL.
        fields: See `ReplayDatasetTrajectory`, also for other arguments.
        fieldname_map: Other names.
        return_indices: Have `_indices` as well.
        include_metadata: Have the episode's own values as well.
        filter_meta: Steps of episodes with these values only.
        filter_fields: `{name: value}`: steps that have all these values only.
        **kwargs: `min_episode_len`.

    Raises:
        KeyError: A filter names an unknown field.
        TypeError: Names that are not in a tuple.
        ValueError: A filter value that is not a single number.

    Example:
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", 10, 5, fields={"x": "float", "done": "bool"})
        >>> buffer.store_episode(x=[1.0, 2.0], done=[False, True])
        >>> dataset = ReplayDatasetTimestep(buffer, filter_fields={"done": True})
        >>> len(dataset), dataset[0]
        (1, {'x': tensor(2.), 'done': tensor(True)})
    """

    def __init__(
        self,
        replay_buffer: Source,
        fields: tuple[str, ...] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        include_metadata: bool = True,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            replay_buffer,
            fieldname_map,
            filter_meta,
            filter_fields,
            include_metadata,
            return_indices,
            kwargs,
        )
        self.fields = self._known_fields("fields", fields)

    def _all(self, slots: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        return steps_of(slots, lengths[slots])

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        made = {**self._named(self._cells(self.fields, slots, ts)), **self._of_episodes(slots)}
        if self.return_indices:
            made["_indices"] = np.stack([slots, ts], 1)
        return Items(made, len(slots))


class ReplayDatasetNStep(StepDataset):
    """Transitions that reach n steps ahead, or to the last stored step of their episode.

    An item of step t of an episode of length L has `current_fields` at t; `next_fields` at t + m,
    as `next_<name>`; `sequence_fields` at t to t + m - 1 as `seq_<name>`, of shape (n, *shape),
    with zeros behind; and `n_step_lens`, which is m = min(n, L - t - 1). No
    item starts at the last stored step, which is the observation after the last action. Values of
    an episode and `_indices` are those of `ReplayDatasetTimestep`.

    Args:
        replay_buffer: The buffer, its folder, or its URL.
        n_steps: Number of steps ahead.
        current_fields: All by default.
        next_fields: All by default.
        sequence_fields: None by default.
        fieldname_map: Other names, of `next_<name>`, `seq_<name>` and `n_step_lens` too.
        return_indices: Have `_indices` as well.
        include_metadata: Have the episode's own values as well.
        filter_meta: Steps of episodes with these values only.
        filter_fields: Steps t with these values only.
        **kwargs: `min_episode_len`.

    Raises:
        KeyError: A filter names an unknown field.
        TypeError: Names that are not in a tuple, or n_steps that is not a whole number.
        ValueError: Negative n_steps, or a filter value that is not a single number.

    Example:
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", 10, 5, fields={"x": "float"})
        >>> buffer.store_episode(x=[1.0, 2.0, 3.0])
        >>> ReplayDatasetNStep(buffer, 2, sequence_fields=("x",))[1]
        {'x': tensor(2.), 'next_x': tensor(3.), 'seq_x': tensor([2., 0.]), 'n_step_lens': tensor(1)}
    """

    _reach = 1

    def __init__(
        self,
        replay_buffer: Source,
        n_steps: int,
        current_fields: tuple[str, ...] | None = None,
        next_fields: tuple[str, ...] | None = None,
        sequence_fields: tuple[str, ...] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        include_metadata: bool = True,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.n_steps = check_count("n_steps", n_steps, 0)
        super().__init__(
            replay_buffer,
            fieldname_map,
            filter_meta,
            filter_fields,
            include_metadata,
            return_indices,
            kwargs,
        )
        self.current_fields = self._known_fields("current_fields", current_fields)
        self.next_fields = self._known_fields("next_fields", next_fields)
        self.sequence_fields = check_names("sequence_fields", sequence_fields) or ()

    def _all(self, slots: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        return steps_of(slots, lengths[slots] - 1)

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        ahead = steps_ahead(ts, lengths, self.n_steps)
        made = {
            **self._named(self._columns(slots, ts, ahead)),
            self.fieldname_map.get("n_step_lens", "n_step_lens"): ahead,
            **self._of_episodes(slots),
        }
        if self.return_indices:
            made["_indices"] = np.stack([slots, ts], 1)
        return Items(made, len(slots))

    def _columns(self, slots: Ints, ts: Ints, ahead: Ints) -> Arrays:
        """Return current, next and sequence fields, all of them out of one reading of the steps."""
        between, owners = counted(ahead if self.sequence_fields else np.zeros(len(ts), np.int64))
        names = dict.fromkeys((*self.current_fields, *self.next_fields, *self.sequence_fields))
        n, most = len(ts), self.replay_buffer.max_timesteps
        wanted = np.concatenate(
            [slots * most + ts, slots * most + ts + ahead, (slots * most + ts)[owners] + between]
        )
        keys, places = np.unique(wanted, return_inverse=True)
        cells = self._cells(list(names), keys // most, keys % most)
        current, following, sequence = np.split(places.ravel(), [n, 2 * n])
        return {
            **{name: cells[name][current] for name in self.current_fields},
            **{NEXT + name: cells[name][following] for name in self.next_fields},
            **{
                f"seq_{name}": padded(cells[name][sequence], ahead, self.n_steps)
                for name in self.sequence_fields
            },
        }


class ReplayDatasetTimeWindow(SlotDataset):
    """A random window of each episode, drawn again for each read; for `dataloader(dataset=)`.

    Windows lie within the episode; their start is drawn from numpy's global random numbers, which
    `numpy.random.seed` seeds. Fields are of shape (window_length, *shape), with zeros behind the
    end of shorter episodes. Items also have the episode's own values; `_lens`, the number of real
    steps; `_reaches_episode_end`; and with `return_indices` `_index` and `_start`, slot and time.

    Args:
        replay_buffer: The buffer, its folder, or its URL.
        window_length: Number of steps.
        fields: See `ReplayDatasetTrajectory`, also for other arguments.
        fieldname_map: Other names.
        include_metadata: Have the episode's own values as well.
        filter_meta: Episodes with these values only.
        return_indices: Have `_index` and `_start` as well.
        **kwargs: `min_episode_len`.

    Raises:
        KeyError: filter_meta names an unknown field.
        TypeError: Names are not in a tuple, or a length is not a whole number.
        ValueError: A length is below 1, or a filter value is not a single number.

    Example:
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", 10, 5, fields={"x": "float"})
        >>> buffer.store_episode(x=[1.0, 2.0])
        >>> dataset = ReplayDatasetTimeWindow(buffer, 3)
        >>> next(iter(buffer.dataloader(1, dataset=dataset)))["x"]
        tensor([[1., 2., 0.]])
    """

    def __init__(
        self,
        replay_buffer: Source,
        window_length: int,
        fields: tuple[str, ...] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        include_metadata: bool = True,
        filter_meta: Mapping[str, Any] | None = None,
        return_indices: bool = False,
        **kwargs: Any,
    ) -> None:
        self.window_length = check_count("window_length", window_length, 1)
        super().__init__(
            replay_buffer,
            fieldname_map,
            filter_meta,
            None,
            include_metadata,
            return_indices,
            kwargs,
        )
        self.fields = self._known_fields("fields", fields)

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        starts = _starts(lengths, self.window_length)
        counts = np.minimum(lengths, self.window_length)
        owners_slots, offsets = steps_of(slots, counts)
        cells = self._cells(self.fields, owners_slots, offsets + np.repeat(starts, counts))
        columns = {name: padded(v, counts, self.window_length) for name, v in cells.items()}
        made = {
            **self._named(columns),
            **self._of_episodes(slots),
            "_lens": counts,
            "_reaches_episode_end": starts + counts >= lengths,
        }
        if self.return_indices:
            made |= {"_index": slots, "_start": starts}
        return Items(made, len(slots))


def _starts(lengths: Ints, width: int) -> Ints:
    """Return random starts of windows that lie within their episodes."""
    most = np.maximum(lengths - width, 0)
    # The global generator is what memmap-replay-buffer's users seed.
    return np.array([np.random.randint(0, n + 1) for n in most], np.int64)  # noqa: NPY002


class BatchedConcatDataset(data.ConcatDataset):  # type: ignore[misc]
    """Torch's `ConcatDataset`, with one read for all items of a batch."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items, without those that no longer exist.

        Raises:
            IndexError: There are not that many.
            InsufficientDataError: None is there any more.
        """
        n = len(self)
        places = np.array([int(index) for index in indices], np.int64)
        if places.size and not (-n <= places.min() and places.max() < n):
            raise IndexError(f"the dataset has {n} items, and the indices were {places.tolist()}")
        places = np.where(places < 0, places + n, places)
        ends = np.array(self.cumulative_sizes)
        owners = np.searchsorted(ends, places, "right")
        items: dict[int, dict[str, Any]] = {}
        for owner in np.unique(owners):
            mine = np.flatnonzero(owners == owner)
            local = places[mine] - (ends[owner - 1] if owner else 0)
            kept, kept_items = self.datasets[owner].found(local)
            items |= zip(mine[kept].tolist(), kept_items, strict=True)
        if places.size and not items:
            raise InsufficientDataError("none of the items is there any more: make a new dataset")
        return [items[i] for i in sorted(items)]


def concatenated(parts: Sequence[Mapping[str, Any]], steps: set[str]) -> dict[str, Any]:
    """Return the tensors of several buffers one after the other.

    Args:
        parts: Tensors by name, the same names in each.
        steps: The names of those that have steps, which are padded with zeros to the longest.
    """
    if not parts:
        return {}
    joined = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        if name in steps:
            longest = max(tensor.shape[1] for tensor in tensors)
            tensors = [_padded(tensor, longest) for tensor in tensors]
        joined[name] = torch.cat(tensors)
    return joined


def _padded(tensor: Any, length: int) -> Any:
    zeros = tensor.new_zeros((len(tensor), length - tensor.shape[1], *tensor.shape[2:]))
    return torch.cat([tensor, zeros], 1)
