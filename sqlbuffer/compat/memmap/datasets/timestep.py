"""`ReplayDatasetTimestep`: a dataset of single steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.compat.memmap.datasets.batches import Items
from sqlbuffer.compat.memmap.datasets.readable import Ints, Source
from sqlbuffer.compat.memmap.datasets.slot_dataset import StepDataset
from sqlbuffer.compat.memmap.datasets.step_positions import steps_of


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
