"""What storage asks of a sampler; `sqlbuffer.samplers` implements it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from sqlbuffer.storage.sampling.candidates import Candidates

Arrays = Mapping[str, "NDArray[Any] | None"]


class RowStrategy(Protocol):
    """Chooses experiences; see `sqlbuffer.Sampler`."""

    reads_priorities: bool

    def choose(self, candidates: Candidates, batch_size: int) -> Any:
        """Return the numbers of a batch, or a select of them."""

    def columns(self, candidates: Candidates, seqs: Sequence[int]) -> Arrays:
        """Return arrays for a batch that are not read from its rows."""

    def finished(self, columns: Arrays, alpha: float) -> Arrays:
        """Return the arrays that change when the batch is complete."""

    def handed_out(self) -> None:
        """Note that a batch is handed out."""


class TaskStrategy(Protocol):
    """Chooses tasks; see `sqlbuffer.TaskSampler`."""

    def choose_tasks(self, candidates: Candidates, batch_size: int) -> Sequence[str]:
        """Return the ids of distinct tasks."""
