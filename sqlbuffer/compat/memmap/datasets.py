"""Datasets over the slots of a buffer, for `torch.utils.data.DataLoader`.

A dataset holds the numbers of its items, which it counts when it is made; values and lengths are
those of the moment when an item is read. All items of a batch are read at once.

An item is never made of another episode's leftovers. Where a slot has begun another episode since
the dataset was made, an item of it is what that episode holds there, if it is long enough and
passes the filters; otherwise it is left out of its batch. Asked for alone, or where nothing is left
of a batch, it raises InsufficientDataError: make the dataset anew.
"""

import difflib
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.checks import (
    check_count,
    check_known,
    check_map,
    check_names,
)
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.compat.memmap.filters import check_filter, of_episodes, of_steps
from sqlbuffer.compat.memmap.items import Items
from sqlbuffer.compat.memmap.positions import counted, padded, steps_ahead, steps_of
from sqlbuffer.compat.memmap.readable import Arrays, Ints, Readable, user_meta
from sqlbuffer.errors import InsufficientDataError, MissingExtraError

try:
    import torch
    from torch.utils import data
except ImportError:
    raise MissingExtraError("datasets need `pip install sqlbuffer[torch]`") from None

OPTIONS = frozenset(
    {
        "current_fields",
        "dataset_kwargs",
        "fieldname_map",
        "fields",
        "filter_fields",
        "filter_meta",
        "include_metadata",
        "min_episode_len",
        "n_steps",
        "next_fields",
        "return_episode_lens",
        "return_indices",
        "sequence_fields",
        "slice_by_episode_len",
        "timestep_level",
        "window_length",
    }
)


class _Items(data.Dataset):  # type: ignore[misc]
    """What the datasets have in common: items are steps, or episodes, which begin at step 0."""

    _reach = 0  # how many steps after its own an item needs

    def __init__(
        self,
        replay_buffer: Readable | str | Path,
        fieldname_map: Mapping[str, str] | None,
        filter_meta: Mapping[str, Any] | None,
        filter_fields: Mapping[str, Any] | None,
        include_metadata: bool,
        return_indices: bool,
        options: dict[str, Any],
    ) -> None:
        if isinstance(replay_buffer, (str, Path)):
            from sqlbuffer.compat.memmap.buffer import ReplayBuffer

            replay_buffer = ReplayBuffer.from_folder(replay_buffer, read_only=True)
        self.replay_buffer: Readable = replay_buffer
        self.fieldname_map = check_map(fieldname_map)
        self.return_indices = bool(return_indices)
        self._meta_names = user_meta(replay_buffer) if include_metadata else []
        self._filter_meta = check_filter("filter_meta", filter_meta, replay_buffer.meta_tracks)
        self._filter_fields = check_filter("filter_fields", filter_fields, replay_buffer.tracks)
        shortest = check_count("min_episode_len", options.pop("min_episode_len", 0), 0)
        self._shortest = max(shortest, 1 + self._reach)
        check_options(options)
        replay_buffer._flush()
        with replay_buffer._snapshot():
            lengths, self._shown = replay_buffer._state()
            slots = np.flatnonzero(lengths >= self._shortest)
            slots = slots[of_episodes(replay_buffer, self._filter_meta, slots)]
            self.indices = torch.from_numpy(slots)
            self._slots, self._ts = self._all(slots, lengths)
            kept = of_steps(replay_buffer, self._filter_fields, self._slots, self._ts)
            self._slots, self._ts = self._slots[kept], self._ts[kept]

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
        """Return several items, read at once, without those that are not there any more.

        Raises:
            IndexError: There are not that many.
            InsufficientDataError: None is there any more.
        """
        _, items = self.found(indices)
        if len(indices) and not len(items):
            raise InsufficientDataError(
                f"none of the items {[int(i) for i in indices]} is there: their slots hold other "
                f"episodes since the dataset was made; make the dataset, or the data loader, anew"
            )
        return items

    def found(self, indices: Sequence[int]) -> tuple[NDArray[np.bool_], Items]:
        """Return which of the items are there, and those."""
        places = self._places(indices)
        slots, ts = self._slots[places], self._ts[places]
        self.replay_buffer._flush()
        distinct, which = np.unique(slots, return_inverse=True)
        with self.replay_buffer._snapshot(distinct):
            lengths, shown = (of[which] for of in self.replay_buffer._state(distinct))
            kept = self._are_there(slots, ts, lengths, shown)
            if not kept.any():
                return kept, Items({}, 0)
            return kept, self._items(slots[kept], ts[kept], lengths[kept])

    def _all(self, slots: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """Return slot and time of each item of these slots."""
        return slots, np.zeros(len(slots), np.int64)

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        raise NotImplementedError

    def _places(self, indices: Sequence[int]) -> Ints:
        places, n = np.array([operator.index(index) for index in indices], np.int64), len(self)
        if places.size and not (-n <= places.min() and places.max() < n):
            raise IndexError(f"the dataset has {n} items, and {places.tolist()} were asked for")
        return np.where(places < 0, places + n, places)

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


class ReplayDatasetTrajectory(_Items):
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
        KeyError: filter_meta names what episodes do not have.
        TypeError: Names that are not in a tuple, or what looks like a misspelt parameter.
        ValueError: filter_fields, or a filter by what is no single number.

    Example:
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", 10, 5, fields={"x": "float"})
        >>> buffer.store_episode(x=[1.0, 2.0])
        >>> ReplayDatasetTrajectory(buffer)[0]
        {'x': tensor([1., 2.]), '_lens': tensor(2)}
    """

    def __init__(
        self,
        replay_buffer: Readable | str | Path,
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
        cells = self._cells(self.fields, *steps_of(slots, counts))
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


class ReplayDatasetTimestep(_Items):
    """Single steps of all episodes, in the order of slots, then of time.

    Items have the fields, the episode's own values, and `_indices`, slot and time as int64, if
    asked for.

    Args:
        replay_buffer: The buffer, its folder, or its URL.
        fields: See `ReplayDatasetTrajectory`, as for what is not said here.
        fieldname_map: Other names.
        return_indices: Have `_indices` as well.
        include_metadata: Have the episode's own values as well.
        filter_meta: Steps of episodes with these values only.
        filter_fields: `{name: value}`: steps that have all these values only.
        **kwargs: `min_episode_len`.

    Raises:
        KeyError: A filter names what there is not.
        TypeError: Names that are not in a tuple.
        ValueError: A filter by what is no single number.

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
        replay_buffer: Readable | str | Path,
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

    @property
    def timepoints(self) -> Any:
        """Slot and time of each item: int64 of shape (n, 2)."""
        return torch.from_numpy(np.stack([self._slots, self._ts], 1))

    def _all(self, slots: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        return steps_of(slots, lengths[slots])

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        made = {**self._named(self._cells(self.fields, slots, ts)), **self._of_episodes(slots)}
        if self.return_indices:
            made["_indices"] = np.stack([slots, ts], 1)
        return Items(made, len(slots))


class ReplayDatasetNStep(_Items):
    """Transitions that reach n steps ahead, or to the last stored step of their episode.

    An item of step t of an episode of length L has `current_fields` at t; `next_fields` at t + m,
    as `next_<name>`; `sequence_fields` at t to t + m - 1 as `seq_<name>`, of shape (n, *shape),
    with zeros behind; and `n_step_lens`, which is m = min(n, L - t - 1). The last stored step is
    none to begin with: it is the observation after the last action. Values of an episode and
    `_indices` are as `ReplayDatasetTimestep` has them.

    Args:
        replay_buffer: The buffer, its folder, or its URL.
        n_steps: How far ahead.
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
        KeyError: A filter names what there is not.
        TypeError: Names that are not in a tuple, or n_steps that is no whole number.
        ValueError: Negative n_steps, or a filter by what is no single number.

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
        replay_buffer: Readable | str | Path,
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

    @property
    def timepoints(self) -> Any:
        """Slot and time of each item: int64 of shape (n, 2)."""
        return torch.from_numpy(np.stack([self._slots, self._ts], 1))

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
            **{f"next_{name}": cells[name][following] for name in self.next_fields},
            **{
                f"seq_{name}": padded(cells[name][sequence], ahead, self.n_steps)
                for name in self.sequence_fields
            },
        }


class ReplayDatasetTimeWindow(_Items):
    """One window of each episode, at random whenever it is read: give it to `dataloader(dataset=)`.

    Windows lie within the episode; their start is drawn from numpy's global random numbers, which
    `numpy.random.seed` seeds. Fields are of shape (window_length, *shape), with zeros behind the
    end of shorter episodes. Items also have the episode's own values; `_lens`, how many steps are
    real; `_reaches_episode_end`; and `_index` and `_start`, slot and time, if asked for.

    Args:
        replay_buffer: The buffer, its folder, or its URL.
        window_length: How many steps.
        fields: See `ReplayDatasetTrajectory`, as for what is not said here.
        fieldname_map: Other names.
        include_metadata: Have the episode's own values as well.
        filter_meta: Episodes with these values only.
        return_indices: Have `_index` and `_start` as well.
        **kwargs: `min_episode_len`.

    Raises:
        KeyError: filter_meta names what episodes do not have.
        TypeError: Names that are not in a tuple, or a length that is no whole number.
        ValueError: A length below 1, or a filter by what is no single number.

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
        replay_buffer: Readable | str | Path,
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
    """Return where windows begin: anywhere where they lie within."""
    most = np.maximum(lengths - width, 0)
    # The global generator is what memmap-replay-buffer's users seed.
    return np.array([np.random.randint(0, n + 1) for n in most], np.int64)  # noqa: NPY002


def check_options(given: Mapping[str, Any]) -> None:
    """Raise for what looks like a misspelt parameter; others are ignored, as they always were."""
    for name in given:
        close = difflib.get_close_matches(name, OPTIONS, 1, 0.8)
        if close and close[0] != name:
            raise MemmapTypeError(f"a dataset takes no {name!r}: is it {close[0]!r}?")
