"""`ReplayDatasetTimeWindow`: a dataset of one random window of each episode."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.compat.memmap.datasets.argument_checks import check_count
from sqlbuffer.compat.memmap.datasets.batches import Items
from sqlbuffer.compat.memmap.datasets.readable import Ints, Source
from sqlbuffer.compat.memmap.datasets.slot_dataset import SlotDataset
from sqlbuffer.compat.memmap.datasets.step_positions import padded, steps_of


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
