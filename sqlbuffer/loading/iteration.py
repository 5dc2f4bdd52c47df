"""One iteration over a loader."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Agree = Callable[[str, Callable[[], Any]], Any]


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
        agree: `agree(name, make)` returns the JSON value that all workers share: the result of
            `make` in the worker that calls it first.
    """

    seed: int
    number: int = 0
    worker: int = 0
    n_workers: int = 0
    agree: Agree = alone

    @property
    def path(self) -> tuple[int, int, int]:
        """Key of this iteration's random numbers, different for each iteration and worker."""
        return self.number, self.n_workers, self.worker
