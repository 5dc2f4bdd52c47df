"""`memmap_replay_buffer.concat_replay_buffer` on a SQL database: `ConcatReplayBuffer`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from sqlbuffer.compat.memmap.errors import MemmapError
from sqlbuffer.compat.memmap.replay_buffer import ReplayBuffer
from sqlbuffer.errors import SQLBufferError


class ReadOnlyError(SQLBufferError, NotImplementedError):
    """A concatenated buffer cannot be written to: write to one of its buffers."""


class ConcatReplayBuffer:
    """Several buffers that are read as one, the episodes of the first buffer first.

    `_index` and `_indices` have the slots of the buffer that an item comes from.

    Args:
        folders: Folders or database URLs, at least one. Their fields have the same names.

    Raises:
        ValueError: No folder, a folder without a buffer, or buffers with different fields.

    Example:
        >>> import tempfile
        >>> folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
        >>> for length, folder in enumerate(folders, start=1):
        ...     buffer = ReplayBuffer(folder, 10, 5, fields={"x": "float"})
        ...     buffer.store_episode(x=[float(length)] * length)
        ...     buffer.close()
        >>> both = ConcatReplayBuffer(folders)
        >>> [batch["x"].tolist() for batch in both.dataloader(2)]
        [[[1.0, 0.0], [2.0, 2.0]]]
        >>> both.close()
    """

    read_only = True

    def __init__(self, folders: Sequence[str | Path]) -> None:
        if isinstance(folders, (str, Path)):
            folders = [folders]
        if not len(folders):
            raise MemmapError("ConcatReplayBuffer requires at least one folder")
        self.buffers: list[ReplayBuffer] = []
        try:
            for folder in folders:
                self.buffers.append(ReplayBuffer.from_folder(folder, read_only=True))
            _check_alike(self.buffers)
        except BaseException:
            self.close()
            raise
        self.fieldnames = self.buffers[0].fieldnames
        self.meta_fieldnames = self.buffers[0].meta_fieldnames

    def __len__(self) -> int:
        """Return how many episodes can be read."""
        return sum(map(len, self.buffers))

    @property
    def num_episodes(self) -> int:
        """Number of finished episodes."""
        return sum(buffer.num_episodes for buffer in self.buffers)

    @property
    def max_episodes(self) -> int:
        """Number of slots."""
        return sum(buffer.max_episodes for buffer in self.buffers)

    @property
    def max_timesteps(self) -> int:
        """Largest number of steps of an episode."""
        return max(buffer.max_timesteps for buffer in self.buffers)

    def dataset(self, **kwargs: Any) -> Any:
        """Return the datasets of the buffers, one after the other: a torch `ConcatDataset`.

        Args:
            **kwargs: See `ReplayBuffer.dataset`.

        Raises:
            ValueError: Nothing is stored, or parameters that exclude each other.
        """
        from sqlbuffer.compat.memmap.datasets import BatchedConcatDataset

        held = [buffer for buffer in self.buffers if len(buffer)]
        if not held:
            raise MemmapError("replay buffer is empty")
        return BatchedConcatDataset([buffer.dataset(**kwargs) for buffer in held])

    dataloader = ReplayBuffer.dataloader

    def get_all_data(
        self,
        fields: tuple[str, ...] | None = None,
        meta_fields: tuple[str, ...] | None = None,
        device: Any = None,
    ) -> dict[str, Any]:
        """Return the finished episodes as tensors, with zeros behind the longest of their buffer.

        See `ReplayBuffer.get_all_data`.
        """
        from sqlbuffer.compat.memmap.datasets import concatenated

        parts = [buffer.get_all_data(fields, meta_fields, device) for buffer in self.buffers]
        steps = set(self.buffers[0].tracks)
        return concatenated([part for part in parts if part], steps)

    def flush(self) -> None:
        """Do nothing: there is nothing to write."""

    def close(self) -> None:
        """Close the buffers."""
        for buffer in self.buffers:
            buffer.close()

    def _read_only(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: write to one of the buffers instead.

        Raises:
            NotImplementedError: Always.
        """
        raise ReadOnlyError("ConcatReplayBuffer is read-only: write to one of its buffers")

    store = store_batch = store_meta_batch = store_episode = _read_only
    store_datapoint = store_meta_datapoint = _read_only
    store_batch_datapoint = store_batch_meta_datapoint = _read_only
    one_episode = batched_episode = advance_episode = update = clear = reset_ = _read_only


def _check_alike(buffers: Sequence[ReplayBuffer]) -> None:
    first = buffers[0]
    for other in buffers[1:]:
        for kind in ("fieldnames", "meta_fieldnames"):
            names, others = (set(getattr(buffer, kind)) for buffer in (first, other))
            if names != others:
                raise MemmapError(
                    f"All buffers must have the same {kind} - got {sorted(others)} and "
                    f"{sorted(names)}"
                )
