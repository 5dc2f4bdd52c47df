"""By priority."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_choice, checked_flag, checked_integer, checked_number
from sqlbuffer.errors import ArgumentError
from sqlbuffer.samplers.base import Sampler
from sqlbuffer.samplers.seeding import Seeding
from sqlbuffer.weighted_sampling import race
from sqlbuffer.weighted_sampling.block_weights import importance_weights, weights_of
from sqlbuffer.weighted_sampling.random_streams import key_of, subkey
from sqlbuffer.weighted_sampling.stratified import draw_stratified, strata_of_all

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates
    from sqlbuffer.storage.sampling.row_priorities import RowPriorities

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
            found = draw_stratified(key, priorities.weights, batch_size)
            if not found.is_complete:  # the sums do not fit together
                return self._of_all(key, candidates, priorities, batch_size)
            return _listed(found.seqs)
        found = race.draw(key, priorities.weights, batch_size, replace=self.replace)
        if found.is_complete:
            return _listed(found.seqs)
        return self._with_others(key, candidates, found.seqs, batch_size)

    def _with_others(
        self, key: int, candidates: "Candidates", drawn: NDArray[np.int64], n: int
    ) -> list[int]:
        """Go on where a race leaves off that was decided in part."""
        seqs, own = candidates.priorities.all(candidates)
        weights = weights_of(own, candidates.priorities.alpha)
        if not self.replace:
            weights[np.isin(seqs, drawn)] = 0.0
        rest = subkey(key, race.MOST_ROUNDS)
        others = race.draw_of_all(rest, seqs, weights, n - drawn.size, replace=self.replace)
        return [*_listed(drawn), *_listed(others)]

    def _of_all(
        self, key: int, candidates: "Candidates", priorities: "RowPriorities", n: int
    ) -> list[int]:
        seqs, own = priorities.all(candidates)
        weights = weights_of(own, priorities.alpha)
        if self.exact or not candidates.has_condition:
            priorities.total = float(weights.sum())
        if self.stratified:
            return _listed(strata_of_all(key, seqs, weights, n))
        return _listed(race.draw_of_all(key, seqs, weights, n, replace=self.replace))

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
        own = columns["priorities"]
        if self.normalize != "batch" or own is None:
            return {}
        return {"weights": self._weights(own, alpha, float(own.min(initial=np.inf)))}

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
        self.n_steps, self._n_done = n_steps, 0

    @property
    def beta(self) -> float:
        if self.n_steps is None:
            return self._first
        return self._first + (1.0 - self._first) * min(1.0, self._n_done / self.n_steps)

    def step(self) -> None:
        """Go to the next number."""
        self._n_done += 1


def _listed(seqs: NDArray[np.int64]) -> list[int]:
    found: list[int] = seqs.tolist()
    return found
