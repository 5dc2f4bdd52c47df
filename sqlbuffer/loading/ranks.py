"""The ranks of a training run, and how the rows of a pass are divided between them."""

import hashlib
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sqlbuffer.checks import integer_of, refused
from sqlbuffer.errors import ArgumentError
from sqlbuffer.loading.intervals import Intervals
from sqlbuffer.loading.order import SLICE, Numbers, Order

MAX_WORLD = 2**20
Shard = tuple[int, int] | Literal["torch"] | None
# torchrun sets these; together they are another text for each launch and each restart.
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Rank:
    """One of the processes that train together.

    Attributes:
        rank: Its number, from 0.
        world: Number of processes.
        launch: Text that the processes of one launch share; empty if it is not known.
    """

    rank: int
    world: int
    launch: str = ""


def rank_of(shard: Any) -> Rank | None:
    """Return the rank that `shard` names; None for a loader that is not divided.

    Raises:
        ArgumentError: It is neither `(rank, world)` nor `torch`, or there is no such rank.
    """
    if shard is None:
        return None
    if isinstance(shard, str) and shard == "torch":
        return _torch_rank()
    is_pair = isinstance(shard, Sequence) and not isinstance(shard, str) and len(shard) == 2
    rank, world = map(integer_of, shard) if is_pair else (None, None)
    if rank is None or world is None or not 0 <= rank < world <= MAX_WORLD:
        what = f"(rank, world) or 'torch', two integers with 0 <= rank < world <= {MAX_WORLD}"
        raise refused(shard, "shard", what)
    return Rank(rank, world)


def _torch_rank() -> Rank:
    """Return the rank of torch.distributed where it runs, else that of torchrun's variables."""
    launch = "/".join(os.environ.get(name, "") for name in _LAUNCH)
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(int(distributed.get_rank()), int(distributed.get_world_size()), launch)
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise ArgumentError(
            f"shard='torch' reads RANK and WORLD_SIZE, which torchrun sets; they are {rank!r} and "
            f"{world!r}. Start the script with torchrun, or give shard=(rank, world), for one "
            f"process shard=(0, 1)"
        )
    return Rank(int(rank), int(world), launch)


def group_of(identity: Any, launch: str) -> str:
    """Return the text under which the loaders of all ranks meet."""
    return hashlib.sha256(repr((identity, launch)).encode()).hexdigest()[:32]


class PartOfPass:
    """A part of the rows of a pass, in its order; used in place of an `Order`.

    Part p of n has every n-th row of the order, from the p-th on.

    Args:
        keys: Numbers of the rows of the pass, the same for all parts.
        rng: Generator that shuffles them, the same for all parts; None: ascending.
        part: Number of this part.
        n_parts: Number of parts.
        even: A part that would be empty, since there are fewer rows than parts, has a row of
            another part.

    Attributes:
        n_rows: Number of rows of this part.
        end: Place at which `after` stops. Places from `n_rows` on are the rows once more.

    Example:
        >>> part = PartOfPass(Intervals((11, 15)), None, 1, 2)
        >>> part.after(0, 10, 0)[0].tolist(), part.n_batches(1, drop_last=False)
        ([12, 14], 3)
    """

    is_restricted = True  # all its rows existed when the pass began

    def __init__(
        self,
        keys: Intervals,
        rng: np.random.Generator | None,
        part: int,
        n_parts: int,
        *,
        even: bool = False,
    ) -> None:
        self._keys, self._n_all, self._n_parts = keys, len(keys), n_parts
        if even and self._n_all:
            part = part if part < self._n_all else part % self._n_all
        self._order = Order(0, self._n_all, rng, part, n_parts)
        self.n_rows = len(range(part, self._n_all, n_parts))
        self.end = self.n_rows

    def restrict(self, keys: Numbers) -> None:
        """Do nothing: the rows of the pass are known."""

    def after(self, place: int, n: int, above: int) -> tuple[Numbers, Numbers]:
        """Return the next numbers from a place on, and their places; see `Order.after`."""
        while place < self.end and n > 0 and self.n_rows:
            lap = place // self.n_rows * self.n_rows
            size = min(max(n, SLICE), self.end - place)
            indices, places = self._order.after(place - lap, size, 0)
            keys, places = self._keys[indices - 1], places + lap
            live = np.flatnonzero(keys > above)[:n]
            if live.size:
                return keys[live], places[live]
            place = int(places[-1]) + 1
        return np.empty(0, np.int64), np.empty(0, np.int64)

    def n_batches(self, batch_size: int, *, drop_last: bool) -> int:
        """Return the number of batches that each part has, if all have the same number."""
        if drop_last:
            return self._n_all // self._n_parts // batch_size
        return math.ceil(math.ceil(self._n_all / self._n_parts) / batch_size)

    def rows_of_batch(self, number: int, batch_size: int, *, drop_last: bool) -> int:
        """Return the number of rows of a batch, if all parts have the same number of batches.

        A part with a row less has smaller batches at its end, so that none of them is empty.
        """
        if drop_last:
            return batch_size
        n_batches = self.n_batches(batch_size, drop_last=False)

        def up_to(count: int) -> int:
            return min(batch_size * count, max(self.n_rows - (n_batches - count), count))

        return up_to(number + 1) - up_to(number)
