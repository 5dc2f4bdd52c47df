"""What a learner gets: arrays by name."""

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray


class Batch(Mapping[str, NDArray[Any]]):
    """Arrays of n rows each, by name and as attributes.

    Attributes:
        info: Where the rows come from: `seq`, `task_id`, `agent_id`, `step`, arrays of shape (n,).

    Example:
        >>> import numpy as np
        >>> batch = Batch({"obs": np.zeros((2, 4))}, {"seq": np.array([1, 2])})
        >>> batch.obs.shape, batch["obs"].shape, batch.info["seq"].tolist(), batch.n_rows
        ((2, 4), (2, 4), [1, 2], 2)
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], info: Mapping[str, NDArray[Any]]
    ) -> None:
        self._arrays, self.info = dict(arrays), dict(info)

    @property
    def n_rows(self) -> int:
        """How many rows it holds; `len` is the number of arrays, as of any mapping."""
        return next((len(array) for array in (*self.values(), *self.info.values())), 0)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getattr__(self, name: str) -> NDArray[Any]:
        arrays = self.__dict__.get("_arrays", {})
        if name not in arrays:
            raise AttributeError(f"the batch has no {name!r}; it has {', '.join(arrays)}")
        found: NDArray[Any] = arrays[name]
        return found

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in self.items())
        return f"Batch({shown})"
