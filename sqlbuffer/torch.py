"""Datasets for `torch.utils.data.DataLoader`, with worker processes that read by themselves."""

import operator
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError, MissingExtraError
from sqlbuffer.extras import install
from sqlbuffer.loading.iteration import LoaderRun
from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import Mode, check_drawn, options_of
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.worker_consensus import Meeting
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.tensors import as_tensor

try:
    from torch.utils import data
except ImportError:
    raise MissingExtraError(f"sqlbuffer.torch needs torch; run {install('torch')}") from None

__all__ = ["Dataset", "IterableDataset"]


class IterableDataset(data.IterableDataset):  # type: ignore[misc]
    """The batches of a loader, for `DataLoader(dataset, batch_size=None, num_workers=...)`.

    Workers under fork and spawn open connections of their own. Between them they visit each row of
    a pass once: worker w of W takes every W-th number of the pass, from w on, so that each of them
    has a last batch that is smaller. Batches without end are drawn by each worker with random
    numbers of its own. Each `iter` of the `DataLoader` is an iteration with other random numbers,
    with persistent workers too; the loader's seed decides which, not that of torch.

    Items are dicts of tensors with an item `info`, a dict as well; or the named tuples that the
    loader makes. Texts and objects stay arrays.

    Args:
        loader: Made by `ReplayBuffer.loader` or `Mixture.loader`.

    Raises:
        TypeError: Not a loader.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"})
        >>> buffer.extend({"x": [0.0, 1.0, 2.0]}).inserted
        3
        >>> dataset = IterableDataset(buffer.loader("step", 2, epochs=1, shuffle=False))
        >>> [batch["x"].tolist() for batch in DataLoader(dataset, batch_size=None)]
        [[0.0, 1.0], [2.0]]
    """

    def __init__(self, loader: Loader) -> None:
        if not isinstance(loader, Loader):
            raise TypeError(
                f"IterableDataset takes a loader, such as buffer.loader(), got {loader!r}"
            )
        self.loader = loader
        self._meeting = Meeting()

    def __iter__(self) -> Iterator[Any]:
        """Begin an iteration: in a worker, its part of the one that the workers make together."""
        info = data.get_worker_info()
        if info is None:
            return _items(iter(self.loader))
        token = str(info.seed - info.id)  # is the same in all workers of a DataLoader's iteration
        number = self._meeting.join(token, info.id, self.loader.next_run)
        run = LoaderRun(self.loader.seed, number, info.id, info.num_workers, self._meeting.agree)
        return _items(self.loader.part(run))


class Dataset(data.Dataset):  # type: ignore[misc]
    """What a buffer holds at the moment, one by one, for the samplers of `DataLoader`.

    Holds numbers, no data: it pickles small where the buffer has few holes. Items are dicts of
    tensors; texts stay text. `DataLoader` reads those of a batch at once.

    What was evicted since, and steps that no transition or window can be made of, are left out of a
    batch; asked for alone, they raise.

    Args:
        buffer: The buffer.
        mode: What an item is; see `ReplayBuffer.loader`. Trajectories and values of varying length
            are padded to the longest of those that are read at once.
        info: Names of the batch's info that items have as well, such as `seq`.
        fieldname_map: `{name: other name}` of arrays.
        **options: The options of the mode, `fields` and `condition`, as `ReplayBuffer.loader`
            takes them.

    Raises:
        FieldError: An unknown field.
        ValueError: An option that the mode does not take.

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
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"Dataset takes a ReplayBuffer, got {buffer!r}")
        if wrong := sorted(set(options) & _OF_LOADERS):
            raise TypeError(f"Dataset takes no {wrong[0]}: that is for the DataLoader to decide")
        if isinstance(info, str):
            raise FieldError(f"info is a list of names such as ['seq'], got {info!r}")
        self._output, self._info = Output(fieldname_map), tuple(info)
        check_drawn(buffer.name, buffer.max_use, "a dataset of numbers")
        self._source = buffer.batch_source(options_of({"mode": mode, **options}))
        self._numbers = self._source.numbers()

    def __len__(self) -> int:
        """Return how many things there were when the dataset was made."""
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one of them.

        Raises:
            IndexError: There are not that many.
            InsufficientDataError: It is not there any more, or cannot be made.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return those of some indices, read at once, without those that are not there any more or
        cannot be made.

        Raises:
            IndexError: There are not that many.
            InsufficientDataError: There is none.
        """
        n = len(self)
        places = np.array([operator.index(index) for index in indices], np.int64)
        if places.size and not (-n <= places.min() and places.max() < n):
            raise IndexError(f"the dataset has {n} items, and {places.tolist()} were asked for")
        keys = self._numbers[np.where(places < 0, places + n, places)]
        batch = self._source.read(np.unique(keys))
        items = dict(zip(batch.info["seq"].tolist(), self._split(batch), strict=True))
        found = [items[key] for key in keys.tolist() if key in items]
        if places.size and not found:
            raise InsufficientDataError(
                f"none of the items {places.tolist()} is there: they were evicted or deleted, or "
                f"what they are made of is not stored; make the dataset anew"
            )
        return found

    def _split(self, batch: Batch) -> list[dict[str, Any]]:
        made = self._output(batch)
        columns = {name: as_tensor(array, "cpu") for name, array in made.items()}
        for name in self._info:
            if name not in made.info or name in columns:
                raise FieldError(
                    f"info names {name!r}; choose of {', '.join(made.info)}, and no name of an "
                    f"array"
                )
            columns[name] = as_tensor(made.info[name], "cpu")
        return [
            {name: _plain(column[i]) for name, column in columns.items()}
            for i in range(batch.n_rows)
        ]


_OF_LOADERS = {"batch_size", "shuffle", "seed", "drop_last", "replace", "sampler", "epochs"}


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
