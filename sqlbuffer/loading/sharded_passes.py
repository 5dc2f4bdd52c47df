"""Passes that several ranks divide between them."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from sqlbuffer.errors import InsufficientDataError, StorageError
from sqlbuffer.loading.intervals import Intervals
from sqlbuffer.loading.iteration import LoaderRun
from sqlbuffer.loading.order import Place
from sqlbuffer.loading.plans import PassSource, Progress, is_count
from sqlbuffer.loading.ranks import PartOfPass, Rank
from sqlbuffer.samplers.seeding import generator_of
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.agreements.rank_agreements import (
    JOIN_S,
    Joined,
    Member,
    RankAgreements,
    pass_name,
)

KEEP_EVERY_S = JOIN_S / 10


class ShardSource(PassSource, Protocol):
    """Reads things in the order of a pass, and lists them; see `BatchSource`."""

    def numbers(self) -> Intervals:
        """Return the keys of all items that exist now."""

    def made(self) -> Intervals:
        """Return the keys of all things that can be made at this moment."""

    def catch_up(self, seq: int) -> None:
        """Make steps up to a number readable."""


@dataclass(frozen=True)
class ShardedPasses:
    """The part of one rank of each thing that a buffer holds at the start of a pass.

    The rank that begins a pass first lists its rows, for all ranks. Rows that are stored later
    belong to the next pass.

    Attributes:
        source: Where they are.
        agreements: What ranks agree on.
        rank: This rank.
        group: Text that the loaders of all ranks share.
        batch_size: Number of rows in a batch.
        epochs: Number of passes; None: without end.
        shuffle: In random order, another one in each pass.
        drop_last: Leave out a last batch that is smaller.
        even: All ranks have the same number of batches.
    """

    source: ShardSource
    agreements: RankAgreements
    rank: Rank
    group: str
    batch_size: int
    epochs: int | None
    shuffle: bool
    drop_last: bool
    even: bool

    def batches(self, run: LoaderRun, progress: Progress) -> Iterator[tuple[Batch, Progress]]:
        """Yield the batches of this rank."""
        taking = _Taking(self, run, progress)
        try:
            yield from self._all(taking, run, progress)
        except GeneratorExit:
            taking.end(early=True)
            raise
        taking.end(early=False)

    def _all(
        self, taking: "_Taking", run: LoaderRun, progress: Progress
    ) -> Iterator[tuple[Batch, Progress]]:
        number = progress.get("pass", 0)
        while self.epochs is None or number < self.epochs:
            is_empty = not progress.get("batch")
            for batch, behind in self._one(taking, run, number, progress):
                is_empty = False
                taking.keep()
                yield batch, behind
            if is_empty and self.epochs is None:  # or it would look forever
                of = self.source.shortage()
                raise InsufficientDataError(
                    f"a pass has no batch of {self.batch_size} for {_named(self.rank)}{of.reason}; "
                    f"wait for more data or lower the batch size{of.causes}"
                )
            number, progress = number + 1, {}

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch."""
        taking = _Taking(self, run, {})
        return {"pass": 0, "place": 0, "batch": 0, "ranks": taking.rows_of(0)}

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is the progress of divided passes."""
        if not progress:
            return True
        ranks = progress.get("ranks")
        if set(progress) != {"pass", "place", "batch", "ranks"} or not isinstance(ranks, dict):
            return False
        counts = [progress[name] for name in ("pass", "place", "batch")]
        counts += [ranks.get(name) for name in ("turn", "number", "seed")]
        texts = [ranks.get(name) for name in ("token", "rows")]
        if not (all(map(is_count, counts)) and all(isinstance(each, str) for each in texts)):
            return False
        try:
            Intervals.of_text(ranks["rows"])
        except ValueError:
            return False
        return True

    def n_batches(self) -> int | None:
        """Return the number of batches of this rank for the rows stored now; None: no end."""
        if self.epochs is None:
            return None
        part = PartOfPass(self.rows(), None, self.rank.rank, self.rank.world, even=self.even)
        if self.even:
            return self.epochs * part.n_batches(self.batch_size, drop_last=self.drop_last)
        own = part.n_rows // self.batch_size
        if not self.drop_last:
            own = -(-part.n_rows // self.batch_size)
        return self.epochs * own

    def rows(self) -> Intervals:
        """Return the keys of a pass that begins now."""
        # Items that cannot be made would make one rank's part smaller.
        return self.source.made() if self.even else self.source.numbers()

    def _one(
        self, taking: "_Taking", run: LoaderRun, number: int, progress: Progress
    ) -> Iterator[tuple[Batch, Progress]]:
        agreed = taking.rows_of(number)
        keys = Intervals.of_text(agreed["rows"])
        if not len(keys):
            return
        self.source.catch_up(keys.last)
        rng = generator_of(agreed["seed"], agreed["number"], number) if self.shuffle else None
        own = PartOfPass(keys, rng, *taking.part, even=self.even)
        at, done = Place(progress.get("place", 0)), progress.get("batch", 0)
        while True:
            batch, at = self._next(own, at, done)
            if batch is None or (self.drop_last and batch.n_rows < self.batch_size):
                return
            done += 1
            yield batch, {"pass": number, "place": at.place, "batch": done, "ranks": agreed}

    def _next(self, own: PartOfPass, at: Place, done: int) -> tuple[Batch | None, Place]:
        if not self.even:
            return self.source.next(own, at, self.batch_size)
        if done >= own.n_batches(self.batch_size, drop_last=self.drop_last):
            return None, at
        # Rows that have left are made up for by those of the beginning.
        own.end = at.place + own.n_rows
        n = own.rows_of_batch(done, self.batch_size, drop_last=self.drop_last)
        batch, behind = self.source.next(own, at, n)
        if batch is None or (self.drop_last and batch.n_rows < n):
            found = 0 if batch is None else batch.n_rows
            raise InsufficientDataError(
                f"{_named(self.rank)} needs {n} of its {own.n_rows} rows of this pass, and {found} "
                f"are there: the others were evicted or deleted since the pass began; use a larger "
                f"capacity, smaller batches or shorter passes"
            )
        return batch, behind


class _Taking:
    """The part that a rank takes in an iteration, as the database knows it.

    Args:
        plan: The plan of the rank.
        run: The iteration.
        progress: Where it goes on; empty at its start.
    """

    def __init__(self, plan: ShardedPasses, run: LoaderRun, progress: Progress) -> None:
        self._plan, self._run = plan, run
        self._member = Member(plan.rank.rank, run.process)
        self._resumed: Progress | None = progress.get("ranks")
        self._agreed: Progress | None = None
        self._kept_at = time.monotonic()

    @property
    def part(self) -> tuple[int, int]:
        """The number of this worker's part of a pass, and the number of parts."""
        rank, run = self._plan.rank, self._run
        return rank.rank + rank.world * run.worker, rank.world * max(run.n_workers, 1)

    def rows_of(self, number: int) -> Progress:
        """Return the rows of a pass as text, with what identifies the iteration."""
        agreements = self._plan.agreements
        if self._agreed is None:
            self._agreed = self._begun()
        if self._resumed is not None:
            rows, self._resumed = self._resumed["rows"], None
        else:
            token = self._agreed["token"]
            rows = agreements.agree(token, pass_name(number), lambda: self._plan.rows().to_text())
        agreements.begin_pass(self._agreed["token"], *self.part, number)
        return {**self._agreed, "rows": rows}

    def _begun(self) -> Progress:
        plan, run = self._plan, self._run
        if self._resumed is not None:
            known = {name: value for name, value in self._resumed.items() if name != "rows"}
            joined = Joined(known["token"], known, known["turn"])
            plan.agreements.rejoin(plan.group, joined, self._member)
            return known

        def join() -> Progress:
            own = {"seed": run.seed, "number": run.number, "workers": run.n_workers}
            joined = plan.agreements.join(plan.group, self._member, own)
            return {"token": joined.token, "turn": joined.turn, **joined.value}

        found: Progress = run.agree(f"ranks-{run.number}", join)
        n_workers = found.pop("workers")
        if n_workers != run.n_workers:
            raise ValueError(
                f"{_named(plan.rank)} reads with num_workers={run.n_workers}, and another rank "
                f"with {n_workers}: give all ranks the same number"
            )
        return found

    def keep(self) -> None:
        """Tell late ranks from time to time that this iteration goes on."""
        if self._agreed is None or time.monotonic() - self._kept_at < KEEP_EVERY_S:
            return
        self._kept_at = time.monotonic()
        with suppress(StorageError):
            self._plan.agreements.keep(self._plan.group, self._agreed["turn"], self._member.rank)

    def end(self, *, early: bool) -> None:
        """Note that this rank has had all its batches, or that it leaves early."""
        if self._agreed is None or sys.is_finalizing():
            return
        with suppress(StorageError):
            agreements, group = self._plan.agreements, self._plan.group
            agreements.end(group, self._agreed["turn"], self._member, early=early)


def _named(rank: Rank) -> str:
    return f"rank {rank.rank} of {rank.world}"
