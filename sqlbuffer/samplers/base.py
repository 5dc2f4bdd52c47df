"""The base classes of samplers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlbuffer.display.html import html_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sqlbuffer.storage.sampling.candidates import Candidates
    from sqlbuffer.storage.sampling.strategy import SelectOfSeqs


class Sampler(ABC):
    """Base class of samplers, which choose rows.

    Implement `choose`: in Python over keys, or as a SQLAlchemy select of keys. `batch_size` is
    always positive. The rows are read afterwards, in the chosen order.

    Example:
        >>> import numpy as np
        >>> from sqlbuffer import ReplayBuffer
        >>> class EveryOther(Sampler):
        ...     def choose(self, candidates, batch_size):
        ...         return candidates.keys()[::2][:batch_size]
        >>> class NewestFirst(Sampler):
        ...     n_batches = 0
        ...     def choose(self, candidates, batch_size):
        ...         keys = candidates.select()
        ...         return keys.order_by(keys.selected_columns.seq.desc()).limit(batch_size)
        ...     def columns(self, candidates, seqs):
        ...         return {"age": candidates.high - np.asarray(seqs)}
        ...     def finished(self, columns, alpha):
        ...         return {"age": columns["age"] / max(columns["age"])}
        ...     def handed_out(self):
        ...         self.n_batches += 1
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"})
        >>> _ = buffer.extend({"x": [0.0, 1.0, 2.0]})
        >>> newest = NewestFirst()
        >>> buffer.sample_arrays(2, sampler=newest).age.tolist(), newest.n_batches
        ([0.0, 1.0], 1)

    Attributes:
        reads_priorities: True if the sampler draws by priority; the sums of priorities are then
            updated before each draw.
    """

    reads_priorities = False

    def _repr_html_(self) -> str:
        """Return its repr, for notebooks."""
        return html_code(repr(self))

    @abstractmethod
    def choose(self, candidates: "Candidates", batch_size: int) -> "Sequence[int] | SelectOfSeqs":
        """Return the `seq` of up to `batch_size` rows of the candidates.

        Args:
            candidates: Rows that match, by key.
            batch_size: Number of rows to choose; at least 1.

        Returns:
            Keys in the order of the batch, or a SELECT of `seq`; fewer than `batch_size` if fewer
            match.
        """

    def columns(
        self, candidates: "Candidates", seqs: Sequence[int]
    ) -> Mapping[str, "NDArray[Any] | None"]:
        """Return extra arrays for a batch; none by default.

        The value of an array that is not known is None.

        Args:
            candidates: Rows that the sampler chose from.
            seqs: Numbers of the rows of the batch, in its order.
        """
        return {}

    def finished(
        self, columns: Mapping[str, "NDArray[Any] | None"], alpha: float
    ) -> Mapping[str, "NDArray[Any] | None"]:
        """Return new values for arrays of a complete batch; nothing by default.

        It is called once for each batch. In a buffer with a limit of uses, a batch may consist of
        several draws.

        Args:
            columns: Arrays of the batch.
            alpha: Exponent of the buffer's priorities.
        """
        return {}

    def handed_out(self) -> None:
        """Take note that a batch was handed out; does nothing by default.

        It is called once for each batch, even if the batch was drawn several times or from several
        sources.
        """
        return


class TaskSampler(ABC):
    """Base class of samplers that choose tasks: a batch is a list of tasks, each with all its rows.

    A condition restricts the tasks (one matching row is enough), not the rows that are returned.

    Example:
        >>> class OldestTasks(TaskSampler):
        ...     def choose_tasks(self, candidates, batch_size):
        ...         return candidates.tasks()[:batch_size]
    """

    def _repr_html_(self) -> str:
        """Return its repr, for notebooks."""
        return html_code(repr(self))

    @abstractmethod
    def choose_tasks(self, candidates: "Candidates", batch_size: int) -> Sequence[str]:
        """Return the ids of up to `batch_size` distinct tasks with a row in the candidates."""
