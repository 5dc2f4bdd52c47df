"""Base classes of the datasets over the slots of a buffer, for `torch.utils.data.DataLoader`.

A dataset lists its items once, when it is made. Values and lengths are read when an item is read.
One read of the database serves all items of a batch.

An item never mixes two episodes. A slot may show another episode than when the dataset was made.
Then its item is what that episode holds there, if it is long enough and passes the filters.
Otherwise the item is left out of its batch. Where nothing is left of a batch, or where the item is
read alone, InsufficientDataError is raised: make a new dataset.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.datasets.argument_checks import (
    check_count,
    check_known,
    check_map,
    check_names,
    check_options,
)
from sqlbuffer.compat.memmap.datasets.batches import Items
from sqlbuffer.compat.memmap.datasets.filters import check_filter, of_episodes, of_steps
from sqlbuffer.compat.memmap.datasets.readable import (
    Arrays,
    Ints,
    Source,
    as_readable,
    user_meta,
)
from sqlbuffer.errors import InsufficientDataError, MissingExtraError, install

try:
    import torch
    from torch.utils import data
except ImportError:
    raise MissingExtraError(f"datasets need torch; run {install('torch')}") from None


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
        buffer = self.replay_buffer = as_readable(replay_buffer)
        self.fieldname_map = check_map(fieldname_map)
        self.return_indices = bool(return_indices)
        self._meta_names = user_meta(buffer) if include_metadata else []
        self._filter_meta = check_filter("filter_meta", filter_meta, buffer.meta_tracks)
        self._filter_fields = check_filter("filter_fields", filter_fields, buffer.tracks)
        shortest = check_count("min_episode_len", options.pop("min_episode_len", 0), 0)
        self._shortest = max(shortest, 1 + self._reach)
        check_options(options)
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
        self.replay_buffer._flush()
        distinct, which = np.unique(slots, return_inverse=True)

        def items(_: object) -> tuple[NDArray[np.bool_], Items]:
            lengths, shown = (of[which] for of in self.replay_buffer._state(distinct))
            kept = self._are_there(slots, ts, lengths, shown)
            if not kept.any():
                return kept, Items({}, 0)
            return kept, self._items(slots[kept], ts[kept], lengths[kept])

        return self.replay_buffer._at_one_moment(items, distinct)

    def _all(self, slots: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """Return slot and time of each item of these slots."""
        return slots, np.zeros(len(slots), np.int64)

    def _items(self, slots: Ints, ts: Ints, lengths: Ints) -> Items:
        raise NotImplementedError

    def _places(self, indices: Sequence[int]) -> Ints:
        places, n = np.array([operator.index(index) for index in indices], np.int64), len(self)
        if places.size and not (-n <= places.min() and places.max() < n):
            raise IndexError(f"the dataset has {n} items, and the indices were {places.tolist()}")
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


class StepDataset(SlotDataset):
    """A dataset whose items start at any step, in the order of slots, then of time."""

    @property
    def timepoints(self) -> Any:
        """Slot and time of each item: int64 of shape (n, 2)."""
        return torch.from_numpy(np.stack([self._slots, self._ts], 1))
