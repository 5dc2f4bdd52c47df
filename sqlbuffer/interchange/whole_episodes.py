"""The whole episodes out of a stream of steps, as arrays."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.copying.buffer_copy import OnProgress
from sqlbuffer.interchange.buffer_stream import BufferStream
from sqlbuffer.steps.column_batch import ColumnBatch
from sqlbuffer.storage.copies.chunk_columns import typed_columns

Arrays = dict[str, NDArray[Any]]
# The episode, and its task: ids are unique in a task.
Key = tuple[str, str]
FLAGS = ("terminated", "truncated")


@dataclass(frozen=True)
class WholeEpisode:
    """An episode that has ended and has all its steps.

    Attributes:
        episode_id: Its id.
        task_id: Its task.
        arrays: The typed fields of its n steps, arrays of shape (n, *shape), and `reward`, float64,
            `terminated` and `truncated`, bool, of shape (n,). A reward that is missing is NaN.
        final: The observation after the last step: arrays of the shapes of the fields; None where
            none was given.
    """

    episode_id: str
    task_id: str
    arrays: Arrays
    final: Arrays | None


@dataclass(frozen=True)
class _End:
    last_seq: int
    length: int
    final: Arrays | None


class WholeEpisodes:
    """Reads the whole episodes of a stream, each when its last step was read.

    It keeps the steps of episodes that have begun and not ended. With a condition an episode is
    whole if all its steps match.

    Args:
        stream: An open stream of a buffer with typed fields of fixed shapes.
        on_progress: Called after each batch with the number of steps read so far, the last `seq`
            that was read, and the range of those to read.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
        >>> buffer.store_episode({"obs": [1.0, 2.0]}, final={"obs": 3.0}).inserted
        2
        >>> with BufferStream(buffer) as stream:
        ...     [(each.arrays["obs"].tolist(), each.final) for each in WholeEpisodes(stream)]
        [([1.0, 2.0], {'obs': array(3., dtype=float32)})]
    """

    def __init__(self, stream: BufferStream, on_progress: OnProgress | None = None) -> None:
        self._stream, self._on_progress = stream, on_progress
        self._ends = self._known_ends()
        self._end_of: dict[Key, _End | None] = {}
        self._open: dict[Key, list[Arrays]] = {}

    def __iter__(self) -> Iterator[WholeEpisode]:
        """Yield the episodes in the order in which they ended.

        Raises:
            CopyError: Steps have left, because the stream could not hold them.
        """
        n_steps = 0
        with closing(self._ends):  # it keeps a connection
            for batch, end in self._stream.batches():
                n_steps += len(batch)
                yield from self._whole(batch)
                if self._on_progress is not None:
                    span = range(self._stream.low, self._stream.high)
                    self._on_progress(n_steps, end, span)

    def _whole(self, batch: ColumnBatch) -> Iterator[WholeEpisode]:
        """Take a batch; yield the episodes that end in it."""
        keys = list(zip(batch.shared["episode_id"], batch.shared["task_id"], strict=True))
        columns = {**batch.fields, **_rewards_and_flags(batch)}
        bounds = np.flatnonzero(np.diff(batch.run_of)) + 1
        starts, stops = [0, *bounds.tolist()], [*bounds.tolist(), len(batch)]
        for start, stop in zip(starts, stops, strict=True) if len(batch) else ():
            episode_id, task_id = key = keys[int(batch.run_of[start])]
            end = None if episode_id is None else self._end(key)
            if end is None:
                continue
            parts = self._open.setdefault(key, [])
            # A copy: a view would keep the whole batch.
            parts.append({name: values[start:stop].copy() for name, values in columns.items()})
            if int(batch.seq[stop - 1]) < end.last_seq:
                continue
            del self._open[key], self._end_of[key]
            arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            if len(arrays["reward"]) == end.length:
                yield WholeEpisode(episode_id, task_id, arrays, end.final)

    def _end(self, key: Key) -> _End | None:
        """Return how an episode ends; None: it does not end in the stream, or was aborted."""
        while key not in self._end_of:
            page = next(self._ends, None)
            if page is None:
                return None
            self._end_of.update(page)
        return self._end_of[key]

    def _known_ends(self) -> Generator[dict[Key, _End | None], None, None]:
        """Yield how episodes end, in the order in which they began."""
        layout = self._stream.observation_layout
        for page in self._stream.episodes():
            own = page.values
            finals: Sequence[Arrays | None] = [None] * len(page)
            if layout.specs:
                finals = _finals(layout, own["final_arrays"])
            ends = [
                _End(last, length, final) if status == "complete" and last is not None else None
                for status, last, length, final in zip(
                    own["status"], own["last_seq"], own["length"], finals, strict=True
                )
            ]
            yield dict(zip(zip(own["key"], own["task_id"], strict=True), ends, strict=True))


def _finals(layout: Any, packed: Sequence[bytes | None]) -> list[Arrays | None]:
    raws = layout.expand(packed)
    size = layout.size_bytes
    heads = b"".join([bytes(size) if raw is None else bytes(raw[:size]) for raw in raws])
    records = np.frombuffer(heads, layout.record)
    tails = [b"" if raw is None else bytes(raw[size:]) for raw in raws]
    found = typed_columns(layout, records, tails, list(layout.specs))
    return [
        None if raw is None else {name: np.array(values[i]) for name, values in found.items()}
        for i, raw in enumerate(raws)
    ]


def _rewards_and_flags(batch: ColumnBatch) -> Arrays:
    """Return the rewards and flags of a batch; a flag that is missing is False."""
    n = len(batch)
    found: Arrays = {"reward": np.asarray(batch.own.get("reward", np.full(n, np.nan)), np.float64)}
    for name in FLAGS:
        values = np.asarray(batch.own.get(name, np.zeros(n, bool)), bool)
        found[name] = values & ~batch.is_null.get(name, np.zeros(n, bool))
    return found
