"""The interface of samplers for storage; `sqlbuffer.samplers` implements it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray
from sqlalchemy import Select

from sqlbuffer.storage.sampling.candidates import Candidates

# A select of one column, `seq`.
SelectOfSeqs = Select[Any]
Arrays = Mapping[str, "NDArray[Any] | None"]


class RowStrategy(Protocol):
    """Chooses experiences; see `sqlbuffer.Sampler`."""

    reads_priorities: bool

    def choose(self, candidates: Candidates, batch_size: int) -> Sequence[int] | SelectOfSeqs:
        """Return the numbers of a batch, or a select of them."""

    def columns(self, candidates: Candidates, seqs: Sequence[int]) -> Arrays:
        """Return arrays for a batch that are not read from its rows."""

    def finished(self, columns: Arrays, alpha: float) -> Arrays:
        """Return the arrays that change when the batch is complete."""

    def handed_out(self) -> None:
        """Note that a batch is returned."""


class TaskStrategy(Protocol):
    """Chooses tasks; see `sqlbuffer.TaskSampler`."""

    def choose_tasks(self, candidates: Candidates, batch_size: int) -> Sequence[str]:
        """Return the ids of distinct tasks."""
