"""`Loader`: batches, one after the other."""

import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from sqlbuffer.checks import checked_integer, refused
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import ArgumentError
from sqlbuffer.loading.iteration import Agree, LoaderRun, alone, this_process
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.plans import BatchPlan, Progress, is_count
from sqlbuffer.loading.prefetch import prefetched
from sqlbuffer.loading.ranks import Rank
from sqlbuffer.steps.batches import Batch

T = TypeVar("T", default=Batch)
_VERSION = 1
_KEYS = ("version", "loader", "seed", "run")


class Loader(Generic[T]):
    """An iterable of batches, made by `ReplayBuffer.loader` or `Mixture.loader`.

    Each `iter` starts an iteration with its own random numbers. The first one after
    `load_state_dict` continues where the state was taken. A loader pickles without data; a loader
    of a mirror cannot be pickled.

    Attributes:
        on_close: Function that `close` calls; None: nothing.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> buffer.extend({"x": range(6)}).inserted
        6
        >>> loader = buffer.loader("step", 4, epochs=1, shuffle=False)
        >>> [batch.x.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
        >>> first = next(iter(loader))
        >>> again = buffer.loader("step", 4, epochs=1, shuffle=False)
        >>> again.load_state_dict(loader.state_dict())
        >>> [batch.x.tolist() for batch in again]
        [[4, 5]]
    """

    def __init__(
        self,
        plan: BatchPlan,
        identity: Mapping[str, Any],
        *,
        seed: int | None,
        output: Output,
        prefetch: int,
        rank: Rank | None = None,
    ) -> None:
        self._plan, self._identity = plan, dict(identity)
        self._output, self._prefetch = output, checked_integer(prefetch, "prefetch", 0)
        self._rank, self._process = rank, this_process()
        self._is_seeded = seed is not None
        self.seed = secrets.randbits(53) if seed is None else int(seed)
        self._run, self._progress = 0, Progress()
        self._next_run, self._is_resumed = 0, False
        self.on_close: Callable[[], None] | None = None

    def close(self) -> None:
        """Close the mirror that the loader opened, if it did; it has no batches afterwards."""
        if self.on_close is not None:
            self.on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Generator[T, None, None]:
        """Begin an iteration; the generator may be closed before its end."""
        if self._is_resumed:
            run, progress, self._is_resumed = self._run, self._progress, False
        else:
            run, progress = self._next_run, Progress()
        self._run, self._progress, self._next_run = run, progress, run + 1
        return self._noted(self.run_of(run), progress)

    def __len__(self) -> int:
        """Return the number of batches of an iteration over passes, for the rows stored now.

        In modes other than `step` it reads the steps, about as long as a pass does, since some of
        them are the first of nothing: that of a transition whose next observation is missing.

        Raises:
            TypeError: The iteration has no end.
        """
        found = self._plan.n_batches()
        if found is None:
            raise TypeError("the loader has no end, and so no len; give epochs=... for passes")
        return found

    def __bool__(self) -> bool:
        return True  # also if it is empty or has no length

    @property
    def next_run(self) -> int:
        """Number of the next iteration.

        Raises:
            ValueError: A state was loaded, and the next iteration must continue from it.

        :meta private:
        """
        if self._is_resumed:
            raise ValueError(
                "a state was loaded, and worker processes cannot continue from it: iterate in this "
                "process (num_workers=0), or save and load the state of torchdata's "
                "StatefulDataLoader, which has one for each worker"
            )
        return self._next_run

    def run_of(
        self, number: int, worker: int = 0, n_workers: int = 0, agree: Agree = alone
    ) -> LoaderRun:
        """Return an iteration; see `LoaderRun`.

        :meta private:
        """
        rank, world = (self._rank.rank, self._rank.world) if self._rank is not None else (0, 0)
        return LoaderRun(self.seed, number, worker, n_workers, rank, world, self._process, agree)

    def part(self, run: LoaderRun, progress: Progress) -> Generator[tuple[T, Progress], None, None]:
        """Begin or continue a worker's part of an iteration; `state_dict` does not know of it.

        Each batch comes with the progress after it.

        :meta private:
        """
        return self._batches(run, progress)

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress of an iteration before its first batch.

        :meta private:
        """
        return self._plan.begin(run)

    def state_of(self, number: int, progress: Progress) -> dict[str, Any]:
        """Return the position of an iteration as JSON.

        :meta private:
        """
        return {
            "version": _VERSION,
            "loader": dict(self._identity),
            "seed": self.seed,
            "run": number,
            **progress,
        }

    def resumed(self, state: Mapping[str, Any]) -> tuple[int, Progress]:
        """Return the iteration and the progress of a state, and take over its seed.

        Raises:
            ArgumentError: See `load_state_dict`.

        :meta private:
        """
        self._check_state(state)
        self.seed = state["seed"]
        return state["run"], _progress_in(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest iteration as JSON.

        The position is after the last batch that was handed out; batches fetched ahead do not
        count.
        """
        return self.state_of(self._run, self._progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter` continue where a state was taken, perhaps by another process. It
        gives the batches that would have come next, if the buffer has not changed.

        Raises:
            ArgumentError: It is not a state, or its loader has other rows, batches or seed; the
                message names the difference.
        """
        self._run, self._progress = self.resumed(state)
        self._next_run, self._is_resumed = self._run + 1, True

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise refused(state, "state", "the result of state_dict() of a loader")
        theirs, seed = state.get("loader"), state.get("seed")
        if not isinstance(theirs, Mapping) or not is_count(seed) or not is_count(state.get("run")):
            raise ArgumentError(f"the state is damaged: {shown(state)}")
        differing = [
            f"{name}={shown(theirs.get(name))}, and here it is {shown(self._identity.get(name))}"
            for name in dict.fromkeys((*self._identity, *theirs))
            if theirs.get(name) != self._identity.get(name)
        ]
        if self._is_seeded and seed != self.seed:
            differing.append(f"seed={seed}, and here it is {self.seed}")
        if differing:
            raise ArgumentError(f"the state is of a loader with {'; '.join(differing)}")
        if not self._plan.knows(_progress_in(state)):
            raise ArgumentError(f"the state is damaged: {shown(_progress_in(state))}")

    def _noted(self, run: LoaderRun, progress: Progress) -> Generator[T, None, None]:
        with closing(self._batches(run, progress)) as batches:
            for batch, behind in batches:
                self._run, self._progress = run.number, behind
                yield batch
        self._run, self._progress = run.number + 1, Progress()

    def _batches(
        self, run: LoaderRun, progress: Progress
    ) -> Generator[tuple[T, Progress], None, None]:
        plan, output = self._plan, self._output

        def make() -> Generator[tuple[T, Progress], None, None]:
            for batch, behind in plan.batches(run, progress):
                yield output(batch), behind

        return prefetched(make, self._prefetch) if self._prefetch else make()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._identity.items() if value)
        return f"Loader({shown}, seed={self.seed})"


def _progress_in(state: Mapping[str, Any]) -> Progress:
    return {name: value for name, value in state.items() if name not in _KEYS}
