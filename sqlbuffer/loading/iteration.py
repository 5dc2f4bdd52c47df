"""One iteration over a loader."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

Agree = Callable[[str, Callable[[], Any]], Any]


_LOADED = uuid4().hex


def this_process() -> str:
    """Return a random id of this process; a forked child has another one."""
    return f"{_LOADED}-{os.getpid()}"


def alone(_name: str, make: Callable[[], Any]) -> Any:
    """Return the value; used where no other worker has to agree."""
    return make()


@dataclass(frozen=True)
class LoaderRun:
    """One iteration over a loader, in this process alone or in one of several workers.

    Attributes:
        seed: Seed of the loader.
        number: Number of the iteration, from 0.
        worker: Number of the worker.
        n_workers: Number of workers; 0: the process itself iterates.
        rank: Number of the rank, if several ranks divide the loader's batches.
        world: Number of ranks; 0: they do not.
        process: Random id of the process that made the loader.
        agree: `agree(name, make)` returns the JSON value that all workers share: the result of
            `make` in the worker that calls it first.
    """

    seed: int
    number: int = 0
    worker: int = 0
    n_workers: int = 0
    rank: int = 0
    world: int = 0
    process: str = ""
    agree: Agree = alone

    @property
    def path(self) -> tuple[int, ...]:
        """Key of this iteration's random numbers, different for each iteration, worker and rank."""
        of_rank = (self.rank, self.world) if self.world else ()
        return self.number, self.n_workers, self.worker, *of_rank
