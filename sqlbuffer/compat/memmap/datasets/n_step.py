"""`ReplayDatasetNStep`: a dataset of n-step transitions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.compat.memmap.datasets.argument_checks import check_count, check_names
from sqlbuffer.compat.memmap.datasets.batches import Items
from sqlbuffer.compat.memmap.datasets.readable import Arrays, Ints, Source
from sqlbuffer.compat.memmap.datasets.slot_dataset import StepDataset
from sqlbuffer.compat.memmap.datasets.step_positions import counted, padded, steps_ahead, steps_of


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
            **{f"next_{name}": cells[name][following] for name in self.next_fields},
            **{
                f"seq_{name}": padded(cells[name][sequence], ahead, self.n_steps)
                for name in self.sequence_fields
            },
        }
