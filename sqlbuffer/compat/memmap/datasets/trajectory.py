"""`ReplayDatasetTrajectory`: a dataset of whole episodes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.compat.memmap.datasets.batches import Items
from sqlbuffer.compat.memmap.datasets.readable import Ints, Source
from sqlbuffer.compat.memmap.datasets.slot_dataset import SlotDataset
from sqlbuffer.compat.memmap.datasets.step_positions import padded, steps_of
from sqlbuffer.compat.memmap.errors import MemmapError


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
