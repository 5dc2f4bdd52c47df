"""Datasets for `torch.utils.data.DataLoader`; each worker process reads the database on its own."""

import operator
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_names, refused
from sqlbuffer.display import shown
from sqlbuffer.errors import (
    ArgumentError,
    FieldError,
    InsufficientDataError,
    MissingExtraError,
    install,
)
from sqlbuffer.loading.loader import Loader, Output
from sqlbuffer.loading.modes import Mode, check_drawn, options_of
from sqlbuffer.loading.plans import LoaderRun, Progress
from sqlbuffer.loading.ranks import Meeting
from sqlbuffer.steps import Batch, as_tensor

try:
    from torch.utils import data
except ImportError:
    raise MissingExtraError(f"sqlbuffer.torch needs torch; run {install('torch')}") from None

__all__ = ["Dataset", "IterableDataset"]


class IterableDataset(data.IterableDataset):  # type: ignore[misc]
    """The batches of a loader, for `DataLoader(dataset, batch_size=None, num_workers=...)`.

    Workers under fork and spawn open their own connections. Together they visit each row of a pass
    once. Worker w of W takes every W-th number of the pass, from w on; the last batch of each
    worker may be smaller. For batches without end, each worker has its own random numbers. Each
    `iter` of the `DataLoader` has other random numbers, also with persistent workers. They depend
    on the loader's seed, not on that of torch.

    The `StatefulDataLoader` of torchdata saves and restores the position of each worker. Batches
    that a loader has fetched ahead (`prefetch`) are not copied to workers.

    Items are dicts of tensors with an entry `info`, also a dict; or the named tuples of the loader.
    Texts and objects stay arrays.

    Args:
        loader: Made by `ReplayBuffer.loader` or `Mixture.loader`.

    Raises:
        ArgumentError: It is not a loader.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"})
        >>> buffer.extend({"x": [0.0, 1.0, 2.0]}).inserted
        3
        >>> dataset = IterableDataset(buffer.loader("step", 2, epochs=1, shuffle=False))
        >>> [batch["x"].tolist() for batch in DataLoader(dataset, batch_size=None)]
        [[0.0, 1.0], [2.0]]
        >>> _ = next(iter(dataset))
        >>> dataset.load_state_dict(dataset.state_dict())
        >>> [batch["x"].tolist() for batch in dataset]
        [[2.0]]
    """

    def __init__(self, loader: Loader) -> None:
        if not isinstance(loader, Loader):
            raise refused(loader, "loader", "a loader, such as buffer.loader()")
        self.loader = loader
        self._meeting = Meeting()
        self._part: _Part | None = None
        self._resumed: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begin an iteration; in a worker process, its part of the common iteration.

        Raises:
            ArgumentError: A state was loaded that is of another worker or number of workers.
        """
        info = data.get_worker_info()
        if info is None:
            return _items(iter(self.loader))
        if self._resumed is None:
            # The seed of torch without the worker's number is the same in all its workers.
            token = str(info.seed - info.id)
            number = self._meeting.join(token, info.id, self.loader.next_run)
            progress: Progress = {}
        else:
            number, progress = self._continued(info)
        run = self.loader.run_of(number, info.id, info.num_workers, self._meeting.agree)
        self._part = part = _Part(self.loader, run, progress)
        return _items(part.batches())

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch; in a worker process, that of its part.

        torchdata's `StatefulDataLoader` calls this, and saves the state of each worker.
        """
        return self.loader.state_dict() if self._part is None else self._part.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue where a state was taken; see `Loader.load_state_dict`.

        Raises:
            ArgumentError: It is not a state, is of another loader, or of a worker and this is none.
        """
        if data.get_worker_info() is not None:
            self._resumed = state
        elif isinstance(state, Mapping) and "worker" in state:
            raise ArgumentError(
                "the state is of a worker process, and there are none here; give the same "
                "num_workers as when it was taken"
            )
        else:
            self.loader.load_state_dict(state)

    def _continued(self, info: Any) -> tuple[int, Progress]:
        """Return the iteration and the progress of the state that was loaded."""
        state, self._resumed = dict(self._resumed or {}), None
        place = (state.pop("worker", None), state.pop("workers", None))
        if place != (info.id, info.num_workers):
            raise ArgumentError(
                f"the state is of worker {place[0]} of {place[1]}, and this is worker {info.id} of "
                f"{info.num_workers}; give the same num_workers as when it was taken"
            )
        number, progress = self.loader.resumed(state)
        self._meeting.begin_at(number + 1)
        return number, progress


class _Part:
    """A worker's part of an iteration, and how far it is."""

    def __init__(self, loader: Loader, run: LoaderRun, progress: Progress) -> None:
        self._loader, self._run, self._progress = loader, run, progress

    def batches(self) -> Generator[Any, None, None]:
        with closing(self._loader.part(self._run, self._progress)) as batches:
            for batch, behind in batches:
                self._progress = behind
                yield batch

    def state_dict(self) -> dict[str, Any]:
        run = self._run
        if not self._progress:
            # The rows of the first pass: when the workers continue, others may be stored.
            self._progress = self._loader.begin(run)
        state = self._loader.state_of(run.number, self._progress)
        return {**state, "worker": run.worker, "workers": run.n_workers}


class Dataset(data.Dataset):  # type: ignore[misc]
    """The rows of a buffer at this moment, by index, for the samplers of `DataLoader`.

    It holds the numbers of rows but no data, so its pickle is small if few rows were deleted. Items
    are dicts of tensors; texts stay text. `DataLoader` reads the items of a batch in one call.

    Rows that were evicted since, and steps at which no transition or window can start, are left out
    of a batch. Reading one of them alone raises.

    Args:
        buffer: The buffer.
        mode: Kind of item; see `ReplayBuffer.loader`. Trajectories and values of varying length are
            padded to the longest one that is read in the same call.
        info: Names in the batch's info that items also have, such as `seq`.
        fieldname_map: `{name: other name}` of arrays.
        **options: The options of the mode, `fields` and `condition`, as `ReplayBuffer.loader`
            takes them.

    Raises:
        ArgumentError: An argument is invalid, or the mode does not take an option.
        ConditionError: The condition is malformed.
        FieldError: A field is unknown.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"})
        >>> buffer.extend({"x": [0.0, 1.0, 2.0]}).inserted
        3
        >>> dataset = Dataset(buffer, "step", fields=["x"])
        >>> len(dataset), dataset[-1]
        (3, {'x': tensor(2.)})
        >>> [batch["x"].tolist() for batch in DataLoader(dataset, batch_size=2)]
        [[0.0, 1.0], [2.0]]
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        mode: Mode = "transition",
        *,
        info: Sequence[str] = (),
        fieldname_map: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        checked_buffer(buffer, "buffer")
        if wrong := sorted(set(options) & _OF_LOADERS):
            raise ArgumentError(
                f"Dataset takes no {wrong[0]}: that is for the DataLoader to decide"
            )
        names = checked_names(info, "info", "['seq']")
        self._output, self._info = Output(fieldname_map), tuple(names)
        check_drawn(buffer.name, buffer.max_use, "a dataset of numbers")
        self._source = buffer.batch_source(options_of({"mode": mode, **options}))
        self._numbers = self._source.numbers()

    def __len__(self) -> int:
        """Return the number of items at the time when the dataset was made."""
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one item.

        Raises:
            IndexError: The index is out of range.
            InsufficientDataError: The item is not stored any more, or cannot be made.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items at some indices, in one read.

        Items that are not stored any more or cannot be made are left out.

        Raises:
            IndexError: An index is out of range.
            InsufficientDataError: None of the items is left.
        """
        n = len(self)
        places = np.array([operator.index(index) for index in indices], np.int64)
        if places.size and not (-n <= places.min() and places.max() < n):
            raise IndexError(f"the dataset has {n} items, and the indices were {places.tolist()}")
        keys = self._numbers[np.where(places < 0, places + n, places)]
        batch = self._source.read(np.unique(keys))
        items = dict(zip(batch.info["seq"].tolist(), self._split(batch), strict=True))
        fetched = [items[key] for key in keys.tolist() if key in items]
        if places.size and not fetched:
            raise InsufficientDataError(
                f"none of the items {places.tolist()} is there any more: they were evicted or "
                f"deleted, or steps that they need are not stored; make a new dataset"
            )
        return fetched

    def _split(self, batch: Batch) -> list[dict[str, Any]]:
        output = self._output(batch)
        columns = {name: as_tensor(array, "cpu") for name, array in output.items()}
        for name in self._info:
            if name not in output.info or name in columns:
                raise FieldError(
                    f"info names {shown(name)}; choose of {', '.join(output.info)}, and no name of "
                    f"an array"
                )
            columns[name] = as_tensor(output.info[name], "cpu")
        return [
            {name: _plain(column[i]) for name, column in columns.items()}
            for i in range(batch.n_rows)
        ]


_OF_LOADERS = {
    "batch_size", "shuffle", "seed", "drop_last", "replace", "sampler", "epochs", "shard", "even",
}  # fmt: skip


def _plain(value: Any) -> Any:
    """Return texts as Python's own, which torch collates into lists."""
    return value.item() if isinstance(value, (np.str_, np.bytes_)) else value


def _items(batches: Generator[Any, None, None]) -> Iterator[Any]:
    """Yield batches in a form that torch's collating leaves whole."""
    for batch in batches:
        if not isinstance(batch, Batch):
            yield batch
            continue
        tensors = {name: as_tensor(array, "cpu") for name, array in batch.items()}
        yield {**tensors, "info": {name: as_tensor(v, "cpu") for name, v in batch.info.items()}}
