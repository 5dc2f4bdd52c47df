"""What a sampler chooses, taken where a custom sampler stands: at the candidates of a call."""

from typing import Any

from sqlbuffer import Candidates, ReplayBuffer, Sampler, TaskSampler


class _Rows(Sampler):
    """Asks a sampler for several batches of the same candidates."""

    def __init__(self, sampler: Sampler, n_batches: int) -> None:
        self._sampler, self._n_batches = sampler, n_batches
        self.reads_priorities = sampler.reads_priorities
        self.batches: list[list[int]] = []

    def choose(self, candidates: Candidates, batch_size: int) -> list[int]:
        chosen: Any = (self._sampler.choose(candidates, batch_size) for _ in range(self._n_batches))
        self.batches = [list(batch) for batch in chosen]
        return []


class _Tasks(TaskSampler):
    def __init__(self, sampler: TaskSampler, n_batches: int) -> None:
        self._sampler, self._n_batches = sampler, n_batches
        self.batches: list[list[str]] = []

    def choose_tasks(self, candidates: Candidates, batch_size: int) -> list[str]:
        self.batches = [
            list(self._sampler.choose_tasks(candidates, batch_size)) for _ in range(self._n_batches)
        ]
        return []


def chosen_batches(
    buffer: ReplayBuffer,
    sampler: Sampler | TaskSampler,
    n_batches: int,
    batch_size: int,
    condition: Any = None,
) -> list[list[Any]]:
    """Return the keys of batches that a sampler chooses, without reading their rows."""
    probe = _Tasks if isinstance(sampler, TaskSampler) else _Rows
    asked: Any = probe(sampler, n_batches)  # type: ignore[arg-type]
    buffer.sample(batch_size, sampler=asked, condition=condition)
    batches: list[list[Any]] = asked.batches
    return batches
