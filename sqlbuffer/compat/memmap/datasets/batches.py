"""Items of datasets, and the function that collates them into batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlbuffer.compat.memmap.datasets.argument_checks import UnknownNameError
from sqlbuffer.compat.memmap.errors import MemmapError
from sqlbuffer.errors import MissingExtraError, install
from sqlbuffer.loading.loader import made_tuple
from sqlbuffer.steps import as_tensor

try:
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils import data
except ImportError:
    raise MissingExtraError(
        f"datasets and data loaders need torch; run {install('torch')}; numpy arrays come from "
        "buffer.data['name'][...] without it"
    ) from None


class Items(Sequence[dict[str, Any]]):
    """Items that were read together, as columns: collating them copies nothing.

    Args:
        columns: Arrays of shape (n, ..), by name.
        n: Number of items.
        lens: Lengths of the items, where columns are padded.
        ragged: Names of the columns that are padded.
    """

    def __init__(
        self, columns: Mapping[str, Any], n: int, lens: Any = None, ragged: Sequence[str] = ()
    ) -> None:
        self.columns = {name: as_tensor(array, "cpu") for name, array in columns.items()}
        self._n, self._lens, self._ragged = n, lens, frozenset(ragged)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(self._n)[index]]
        i = range(self._n)[index]
        return {
            name: column[i, : self._lens[i]] if name in self._ragged else column[i]
            for name, column in self.columns.items()
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(self._n))


class Collate:
    """Collates items into a batch: pads with zeros, adds the mask, moves tensors, names fields."""

    def __init__(
        self, return_mask: bool, device: Any, to_named_tuple: tuple[str, ...] | None
    ) -> None:
        self._return_mask, self._device, self._names = return_mask, device, to_named_tuple

    def __call__(self, items: Any) -> Any:
        if isinstance(items, Mapping):  # batch_size=None: an item is a batch
            batch = {name: torch.as_tensor(value) for name, value in items.items()}
        else:
            batch = dict(items.columns) if isinstance(items, Items) else _stacked(list(items))
        if self._return_mask:
            batch["_mask"] = _mask(batch)
        if self._device is not None:
            batch = {name: tensor.to(self._device) for name, tensor in batch.items()}
        return batch if self._names is None else _named(batch, self._names)


def _stacked(items: list[Mapping[str, Any]]) -> dict[str, Any]:
    batch = {}
    for name in items[0]:
        tensors = [torch.as_tensor(item[name]) for item in items]
        is_ragged = len({tensor.shape for tensor in tensors}) > 1
        batch[name] = pad_sequence(tensors, True) if is_ragged else torch.stack(tensors)
    return batch


def _mask(batch: Mapping[str, Any]) -> Any:
    if "_lens" not in batch:
        raise UnknownNameError("return_mask needs '_lens' in the batch: return_episode_lens=True")
    lens = batch["_lens"]
    return torch.arange(int(lens.max()), device=lens.device) < lens[..., None]


def _named(batch: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name not in batch:
            raise MemmapError(f"field `{name}` not found in batch. available fields: {list(batch)}")
    return made_tuple(tuple(name.lstrip("_") for name in names), [batch[name] for name in names])


class Columns(data.Dataset):  # type: ignore[misc]
    """A dataset of steps in memory.

    Args:
        columns: Tensors or arrays of shape (n, ..), by name.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: torch.as_tensor(column) for name, column in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self._columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> Items:
        return Items({n: column[indices] for n, column in self._columns.items()}, len(indices))
