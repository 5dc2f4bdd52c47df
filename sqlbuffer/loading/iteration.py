"""One iteration over a loader."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Agree = Callable[[str, Callable[[], Any]], Any]


def alone(_name: str, make: Callable[[], Any]) -> Any:
    """Settle a value where there is nobody to agree with."""
    return make()


@dataclass(frozen=True)
class LoaderRun:
    """One iteration over a loader, in this process alone or in one of several workers.

    Attributes:
        seed: Seed of the loader.
        number: Which iteration it is, from 0.
        worker: Which of the workers.
        n_workers: How many there are; 0: the process itself iterates.
        agree: `agree(name, make)` returns the JSON value that the workers go by: of `make` in the
            one that asks first.
    """

    seed: int
    number: int = 0
    worker: int = 0
    n_workers: int = 0
    agree: Agree = alone

    @property
    def path(self) -> tuple[int, int, int]:
        """What tells its random numbers from those of other iterations and workers."""
        return self.number, self.n_workers, self.worker
