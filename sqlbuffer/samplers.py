"""Samplers decide which experiences, or tasks, a batch holds."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import (
    checked_choice,
    checked_flag,
    checked_integer,
    checked_number,
    refused,
)
from sqlbuffer.display import html_code
from sqlbuffer.errors import ArgumentError
from sqlbuffer.weighted_sampling import (
    MOST_ROUNDS,
    draw_stratified,
    importance_weights,
    key_of,
    race_of_all,
    race_of_blocks,
    strata_of_all,
    subkey,
    weights_of,
)

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates, RowPriorities, SelectOfSeqs


__all__ = [
    "FifoSampler",
    "LatestSampler",
    "PrioritizedSampler",
    "RandomSampler",
    "RandomTaskSample",
    "Sampler",
    "TaskSampler",
]


class _Resumable:
    """The state of a sampler: how many batches it has drawn. A custom sampler with more overrides
    both calls.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return where the sampler is in the sequence of its seed and in its annealing, as JSON."""
        seeding, annealing = vars(self).get("_seeding"), vars(self).get("_annealing")
        return {
            "sampler": type(self).__name__,
            "seed": None if seeding is None else seeding.seed,
            "path": [] if seeding is None else list(seeding.path),
            "n_calls": 0 if seeding is None else seeding.n_calls,
            "n_annealed": 0 if annealing is None else annealing.n_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called: over the same rows the next batches are the same.

        Raises:
            ArgumentError: It is not a state, or is of another sampler or seed.
        """
        own = self.state_dict()
        if not isinstance(state, Mapping) or set(state) != set(own):
            raise refused(state, "state", "the result of state_dict() of a sampler")
        for name in ("sampler", "seed"):
            if state[name] != own[name]:
                raise ArgumentError(
                    f"the state is of a sampler with {name}={state[name]!r}, and here it is "
                    f"{own[name]!r}"
                )
        seeding, annealing = vars(self).get("_seeding"), vars(self).get("_annealing")
        if seeding is not None:
            seeding.path = tuple(state["path"])
            seeding.n_calls = checked_integer(state["n_calls"], "n_calls", 0)
        if annealing is not None:
            annealing.n_done = checked_integer(state["n_annealed"], "n_annealed", 0)


class Sampler(_Resumable, ABC):
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
        reads_encoded: True if the sampler reads its rows with `Candidates.encoded` and returns no
            `seq`, which `sample` then refuses. Of the fields of a call that names some, only those
            of `EncodedRow` are read.
    """

    reads_priorities = False
    reads_encoded = False

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


class TaskSampler(_Resumable, ABC):
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


class FifoSampler(Sampler):
    """Takes the oldest rows that match, oldest first; it does not remove them.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> _ = buffer.extend({"x": [1, 2, 3]})
        >>> buffer.sample_arrays(2, sampler=FifoSampler()).x.tolist()
        [1, 2]
    """

    def __repr__(self) -> str:
        return "FifoSampler()"

    def choose(self, candidates: "Candidates", batch_size: int) -> list[int]:
        """Return the `batch_size` least seq, ascending."""
        return candidates.oldest(batch_size)


class LatestSampler(Sampler):
    """Takes the newest rows that match, newest first.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> _ = buffer.extend({"x": [1, 2, 3]})
        >>> buffer.sample_arrays(2, sampler=LatestSampler()).x.tolist()
        [3, 2]
    """

    def __repr__(self) -> str:
        return "LatestSampler()"

    def choose(self, candidates: "Candidates", batch_size: int) -> list[int]:
        """Return the `batch_size` greatest seq, descending."""
        return candidates.newest(batch_size)


T = TypeVar("T")
MAX_SEED = 2**128 - 1  # as many bits as numpy makes of it


def checked_seed(seed: Any) -> int | None:
    """Return a seed, or None.

    Raises:
        ArgumentError: Something else.
    """
    return None if seed is None else checked_integer(seed, "seed", 0, MAX_SEED, more=", or None")


class Seeding:
    """Gives each call its own generator: the same sequence for the same seed, or fresh entropy
    without one.

    Each call's numbers depend on the seed and the number of the call alone, not on how many an
    earlier call drew.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = checked_seed(seed)
        self.path: tuple[int, ...] = ()
        self.n_calls = 0

    def restart(self, path: Sequence[int]) -> None:
        """Begin the sequence that belongs to a seed and a path of numbers, such as those of a
        worker and of its batch; sequences of different paths are independent.
        """
        self.path, self.n_calls = tuple(path), 0

    def generator(self) -> np.random.Generator:
        """Return the generator of the next call."""
        if self.seed is None:
            return np.random.default_rng()
        call, self.n_calls = self.n_calls, self.n_calls + 1
        if not self.path:
            return np.random.default_rng([self.seed, call])
        return generator_of(self.seed, *self.path, call)


def generator_of(seed: int, *path: int) -> np.random.Generator:
    """Return the generator of a seed and a path of numbers."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=path))


def own_copy(sampler: T) -> T:
    """Return a sampler to restart without touching the sequence of the given one: a copy where it
    is seeded, the sampler itself where it is not.
    """
    seedings = _seedings(sampler)
    if not seedings:
        return sampler
    copied = copy.copy(sampler)
    for name, seeding in seedings.items():
        setattr(copied, name, copy.copy(seeding))
    return copied


def restart(sampler: Any, path: Sequence[int]) -> None:
    """Make a sampler begin the sequence of its seed and a path of numbers."""
    for seeding in _seedings(sampler).values():
        seeding.restart(path)


def _seedings(sampler: Any) -> dict[str, Seeding]:
    attributes = getattr(sampler, "__dict__", {})
    return {name: value for name, value in attributes.items() if isinstance(value, Seeding)}


# In a window of at most this many numbers, they are drawn without replacement if rows are.
ROW_SMALL_SPAN = 1024
LARGEST_SHUFFLED = 2**24
ROW_PROBE_ROUNDS = 4
# Below this share of hits, one scan over the keys is cheaper than the probes.
ROW_LOWEST_HIT_RATE = 1 / 32
# Fewer numbers are not enough: of 24, none is a hit once in twelve times where one in ten would be.
ROW_FEWEST_TO_JUDGE = 256


class RandomSampler(Sampler):
    """Draws rows uniformly.

    FIFO eviction keeps `seq` dense, so it draws numbers of the window and keeps those of rows that
    match. This is uniform by rejection, at a cost that does not grow with the table. If few rows
    match, it draws among their keys, which the buffer remembers for later draws.

    Args:
        replace: Draw with replacement: exactly `batch_size` rows if any match.
        seed: Seed that repeats the same sequence of batches over the same live rows.

    Raises:
        ArgumentError: An argument is invalid.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> _ = buffer.extend({"x": [1, 2, 3]})
        >>> sorted(buffer.sample_arrays(3, sampler=RandomSampler(seed=7)).x.tolist())
        [1, 2, 3]
    """

    def __init__(self, *, replace: bool = False, seed: int | None = None) -> None:
        self.replace = checked_flag(replace, "replace")
        self._seeding = Seeding(seed)

    def __repr__(self) -> str:
        return f"RandomSampler(replace={self.replace}, seed={self._seeding.seed})"

    def generator(self) -> np.random.Generator:
        """Return the random generator of the next batch, for draws from something other than
        candidates.

        :meta private:
        """
        return self._seeding.generator()

    def choose(self, candidates: "Candidates", batch_size: int) -> Sequence[int]:
        """Return up to `batch_size` seq, uniform over the rows that match."""
        rng = self.generator()
        if candidates.span and not candidates.selective and not candidates.picks_first:
            seqs = self._probe(candidates, batch_size, rng)
            if seqs is not None:
                return seqs
        return self._order(candidates, batch_size, rng)

    def _probe(
        self, candidates: "Candidates", batch_size: int, rng: np.random.Generator
    ) -> Sequence[int] | None:
        """Return a batch by rejection, or None where too few numbers are hits."""
        span = candidates.span
        is_narrow = not self.replace and span <= max(ROW_SMALL_SPAN, 4 * batch_size)
        if is_narrow and span > LARGEST_SHUFFLED:
            return None
        shuffled = rng.permutation(span) if is_narrow else None
        # A few more than wanted: some are drawn twice, or left the buffer.
        n_twice = 0 if self.replace or is_narrow else batch_size**2 // span
        matching: list[int] = []
        drawn, size = 0, batch_size + n_twice + 8
        for _ in range(ROW_PROBE_ROUNDS):
            if shuffled is not None:
                numbers = shuffled[drawn : drawn + size]
            else:
                # One double for each number: drawing more of them in one call does not change their
                # values.
                numbers = (rng.random(size) * span).astype(np.int64)
            seqs: list[int] = (candidates.low + 1 + numbers).tolist()
            hits = candidates.probe(seqs)
            matching.extend(filter(hits.__contains__, seqs))
            drawn += len(seqs)
            kept = matching if self.replace else list(dict.fromkeys(matching))
            if len(kept) >= batch_size or (is_narrow and drawn == span):
                return kept[:batch_size]
            hit_rate = len(matching) / drawn
            if hit_rate < ROW_LOWEST_HIT_RATE:
                if drawn >= ROW_FEWEST_TO_JUDGE:
                    return None
                hit_rate = ROW_LOWEST_HIT_RATE
            size = math.ceil(1.2 * (batch_size - len(kept)) / hit_rate) + 16
        return None

    def _order(
        self, candidates: "Candidates", batch_size: int, rng: np.random.Generator
    ) -> Sequence[int]:
        is_read_whole = candidates.rare is not None and candidates.rare.may_be_known
        if self._seeding.seed is None and not self.replace and not is_read_whole:
            return candidates.random(batch_size)
        picked = candidates.pick(rng, batch_size, replace=self.replace)
        if picked is not None:
            return picked
        chosen = self._of_keys(candidates, batch_size, rng)
        if candidates.remembered is not None and len(candidates.probe(chosen)) < len(set(chosen)):
            # One of the remembered keys does not match: they are forgotten now.
            chosen = self._of_keys(candidates, batch_size, rng)
        return chosen

    def _of_keys(
        self, candidates: "Candidates", batch_size: int, rng: np.random.Generator
    ) -> list[int]:
        """Return a batch of all keys."""
        keys: NDArray[np.int64] = candidates.keys()
        if not keys.size:
            return []
        size = batch_size if self.replace else min(batch_size, keys.size)
        chosen: list[int] = rng.choice(keys, size, replace=self.replace).tolist()
        return chosen


TASK_SMALL_SPAN = 4096
# Most batches take one or two; a scan over the keys costs more than all of them.
TASK_PROBE_ROUNDS = 8
TASK_LOWEST_HIT_RATE = 1 / 256
# Fewer numbers are not enough: of 320, one or none is a hit in 300 batches where one in 40 is.
TASK_FEWEST_TO_JUDGE = 1024
# Where hits are rarer, tasks are long: the batch has about as many rows as numbers are looked up,
# and each row takes longer to read. A number takes about as long as 36 rows of a scan, so that this
# share of the window is a quarter of one: the cost if few tasks match.
MOST_PROBED_SHARE = 1 / 128
MOST_AT_ONCE = 32_768


class RandomTaskSample(TaskSampler):
    """Draws distinct tasks uniformly, independent of their numbers of rows.

    It draws numbers of the window and keeps those that are the first matching row of their task.
    Every task has one such row, so all tasks are equally likely. If few tasks match, or if tasks
    have a large share of the buffer, it reads the keys of all rows and puts the matching tasks into
    random order.

    Args:
        seed: Seed that repeats the same sequence of batches over the same live rows.

    Raises:
        ArgumentError: The seed is not an integer from 0 on.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> _ = [buffer.add(state=step, task_id="walk") for step in range(3)]
        >>> [len(task) for task in buffer.sample_tasks(1, sampler=RandomTaskSample(seed=7))]
        [3]
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self._seeding = Seeding(seed)

    def __repr__(self) -> str:
        return f"RandomTaskSample(seed={self._seeding.seed})"

    def choose_tasks(self, candidates: "Candidates", batch_size: int) -> Sequence[str]:
        """Return up to `batch_size` task ids, uniform over the tasks with a row that matches."""
        rng = self._seeding.generator()
        if candidates.span > max(TASK_SMALL_SPAN, 16 * batch_size) and not candidates.selective:
            chosen = self._probe(candidates, batch_size, rng)
            if chosen is not None:
                return chosen
        if self._seeding.seed is None:
            return candidates.random_tasks(batch_size)
        tasks = candidates.tasks()
        order = rng.permutation(len(tasks))[:batch_size]
        return [tasks[i] for i in order]

    @staticmethod
    def _probe(
        candidates: "Candidates", batch_size: int, rng: np.random.Generator
    ) -> Sequence[str] | None:
        chosen: dict[str, None] = {}
        drawn, hits, size = 0, 0, 8 * batch_size + 256
        most = max(TASK_FEWEST_TO_JUDGE, int(MOST_PROBED_SHARE * candidates.span))
        for _ in range(TASK_PROBE_ROUNDS):
            numbers = candidates.low + 1 + (rng.random(size) * candidates.span).astype(np.int64)
            seqs: list[int] = numbers.tolist()
            tasks = candidates.first_of_tasks(list(dict.fromkeys(seqs)))
            hits += sum(seq in tasks for seq in seqs)
            drawn += size
            chosen.update((tasks[seq], None) for seq in seqs if seq in tasks)
            if len(chosen) >= batch_size:
                return list(chosen)[:batch_size]
            hit_rate = max(hits, 1) / drawn
            size = math.ceil(1.2 * (batch_size - len(chosen)) / hit_rate) + 64
            if hit_rate < TASK_LOWEST_HIT_RATE:
                if drawn >= most:
                    return None
                size = min(size, max(most - drawn, TASK_FEWEST_TO_JUDGE), MOST_AT_ONCE)
        return None


Normalize = Literal["batch", "buffer"]
NORMALIZE = get_args(Normalize)


class PrioritizedSampler(Sampler):
    """Draws rows with probability p^alpha / sum for prioritized replay (Schaul et al. 2016).

    The buffer needs `priorities=True`; rows of priority 0 are never drawn. The probabilities are
    exact. The cost does not grow with the buffer, except in four cases that read the priorities of
    all rows for each batch: a condition that few rows match; `exact` or `stratified` with a
    condition; `stratified` windows; an `alpha` that is not the stored one.

    Batches have four extra arrays of shape (batch_size,), and lists of rows four extra attributes.
    `weights` (float32) is (N P)^-beta divided by the largest weight. `probabilities` (float64) is
    the probability of a row in one draw, None with a condition. The others are `priorities`
    (float64) and `seq` (int64). The priority of a transition or window is that of its first step;
    the probabilities include steps at which no transition or window can start.

    Args:
        beta: Exponent of the importance weights, from 0 (no correction) to 1 (full correction).
        beta_anneal_steps: Number of batches over which `beta` rises to 1 in equal steps. Each
            process counts its own batches.
        normalize: Rows over which the largest weight is taken: the `batch`, or the whole `buffer`,
            where it is the weight of the least positive priority.
        replace: Draw with replacement.
        stratified: Draw one row from each of batch_size equal parts of the sum of all priorities ^
            alpha, in insert order (Schaul et al. 2016, appendix B.2.1). Blocks of at least 256 rows
            are used; parts that share a block draw distinct rows of it, as far as weights allow.
        exact: With a condition: read all rows that match, and return the probabilities among them.
        seed: Seed that repeats the same sequence of batches over the same live rows and priorities.

    Raises:
        ArgumentError: An argument is invalid.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"}, priorities=True)
        >>> buffer.extend({"x": [0.0, 1.0, 2.0, 3.0]}).inserted
        4
        >>> batch = buffer.sample_arrays(2, sampler=PrioritizedSampler(seed=1))
        >>> batch.priorities.tolist(), batch.probabilities.tolist(), batch.weights.tolist()
        ([1.0, 1.0], [0.25, 0.25], [1.0, 1.0])
    """

    reads_priorities = True

    def __init__(
        self,
        *,
        beta: float = 0.4,
        beta_anneal_steps: int | None = None,
        normalize: Normalize = "batch",
        replace: bool = True,
        stratified: bool = False,
        exact: bool = False,
        seed: int | None = None,
    ) -> None:
        self.normalize = checked_choice(normalize, "normalize", NORMALIZE)
        self.replace = checked_flag(replace, "replace")
        self.stratified = checked_flag(stratified, "stratified")
        self.exact = checked_flag(exact, "exact")
        if self.stratified and not self.replace:
            raise ArgumentError("stratified=True draws with replacement; leave replace=False out")
        self._annealing = _Annealing(beta, beta_anneal_steps)
        self._seeding = Seeding(seed)

    def __repr__(self) -> str:
        return (
            f"PrioritizedSampler(beta={self.beta:g}, "
            f"beta_anneal_steps={self._annealing.n_steps}, normalize={self.normalize!r}, "
            f"replace={self.replace}, stratified={self.stratified}, exact={self.exact}, "
            f"seed={self._seeding.seed})"
        )

    @property
    def seed(self) -> int | None:
        """The seed; without one, None, each batch is different."""
        return self._seeding.seed

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        return self._annealing.beta

    def generator(self) -> np.random.Generator:
        """Return the random generator of the next batch, for draws from something other than
        candidates.

        :meta private:
        """
        return self._seeding.generator()

    def choose(self, candidates: "Candidates", batch_size: int) -> Sequence[int]:
        """Return up to `batch_size` seq by their priorities.

        Raises:
            BufferConfigError: The buffer has no priorities.
        """
        priorities = candidates.priorities
        key = key_of(self.generator())
        is_read_whole = candidates.is_filtered and (self.exact or self.stratified)
        if not priorities.has_blocks or candidates.picks_keys or is_read_whole:
            return self._of_all(key, candidates, priorities, batch_size)
        if self.stratified:
            draw = draw_stratified(key, priorities.weights, batch_size)
            if not draw.is_complete:  # the sums do not fit together
                return self._of_all(key, candidates, priorities, batch_size)
            return _listed(draw.seqs)
        draw = race_of_blocks(key, priorities.weights, batch_size, replace=self.replace)
        if draw.is_complete:
            return _listed(draw.seqs)
        return self._with_others(key, candidates, draw.seqs, batch_size)

    def _with_others(
        self, key: int, candidates: "Candidates", drawn: NDArray[np.int64], n: int
    ) -> list[int]:
        """Add the rows that an incomplete race has not decided, by a race of all rows."""
        seqs, values = candidates.priorities.all(candidates)
        weights = weights_of(values, candidates.priorities.alpha)
        if not self.replace:
            weights[np.isin(seqs, drawn)] = 0.0
        rest = subkey(key, MOST_ROUNDS)
        others = race_of_all(rest, seqs, weights, n - drawn.size, replace=self.replace)
        return [*_listed(drawn), *_listed(others)]

    def _of_all(
        self, key: int, candidates: "Candidates", priorities: "RowPriorities", n: int
    ) -> list[int]:
        seqs, values = priorities.all(candidates)
        weights = weights_of(values, priorities.alpha)
        if self.exact or not candidates.has_condition:
            priorities.total = float(weights.sum())
        if self.stratified:
            return _listed(strata_of_all(key, seqs, weights, n))
        return _listed(race_of_all(key, seqs, weights, n, replace=self.replace))

    def columns(
        self, candidates: "Candidates", seqs: Sequence[int]
    ) -> Mapping[str, NDArray[Any] | None]:
        """Return `probabilities`, `priorities` and `seq` of the rows of a batch, and perhaps
        `weights`.

        `weights` are left out if they depend on the whole batch, which may consist of several
        draws.
        """
        priorities = candidates.priorities
        return self.columns_of(
            np.asarray(seqs, np.int64),
            priorities.of(seqs),
            alpha=priorities.alpha,
            total=priorities.total,
            least=priorities.least,
        )

    def columns_of(
        self,
        seqs: NDArray[np.int64],
        priorities: NDArray[np.float64],
        *,
        alpha: float,
        total: float | None,
        least: Callable[[], float],
    ) -> Mapping[str, NDArray[Any] | None]:
        """Return the same of rows whose priorities are known.

        Args:
            seqs: The rows.
            priorities: Their priorities.
            alpha: The weight of a row is its priority ^ alpha.
            total: Sum of the weights that rows are drawn by; None: it is not known.
            least: Returns the least positive priority of the whole buffer.

        :meta private:
        """
        weights = probabilities = None
        if self.normalize == "buffer":
            weights = self._weights(priorities, alpha, least())
        if total is not None:
            probabilities = weights_of(priorities, alpha) / total
        return {
            "weights": weights,
            "probabilities": probabilities,
            "priorities": priorities,
            "seq": seqs,
        }

    def finished(
        self, columns: Mapping[str, NDArray[Any] | None], alpha: float
    ) -> Mapping[str, NDArray[Any] | None]:
        """Return the `weights` of a batch by its own largest."""
        priorities = columns["priorities"]
        if self.normalize != "batch" or priorities is None:
            return {}
        return {"weights": self._weights(priorities, alpha, float(priorities.min(initial=np.inf)))}

    def _weights(
        self, priorities: NDArray[np.float64], alpha: float, least: float
    ) -> NDArray[np.float32]:
        return importance_weights(priorities, alpha, self.beta, least).astype(np.float32)

    def handed_out(self) -> None:
        """Raise `beta` for the next batch."""
        self._annealing.step()


class _Annealing:
    """A number that is raised to 1 in equal steps; copies of a sampler share it."""

    def __init__(self, first: float, n_steps: int | None) -> None:
        self._first = checked_number(first, "beta", 0, 1)
        what = "a number of batches"
        if n_steps is not None:
            n_steps = checked_integer(n_steps, "beta_anneal_steps", 1, what=what, more=", or None")
        self.n_steps, self.n_done = n_steps, 0

    @property
    def beta(self) -> float:
        if self.n_steps is None:
            return self._first
        return self._first + (1.0 - self._first) * min(1.0, self.n_done / self.n_steps)

    def step(self) -> None:
        """Go to the next number."""
        self.n_done += 1


def _listed(seqs: NDArray[np.int64]) -> list[int]:
    listed: list[int] = seqs.tolist()
    return listed
