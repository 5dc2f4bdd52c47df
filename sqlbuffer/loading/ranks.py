"""The ranks of a training run, and how the rows of a pass are divided between them."""

import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4
from weakref import finalize

import numpy as np

from sqlbuffer.batches.hindsight import Rng
from sqlbuffer.checks import integer_of, refused
from sqlbuffer.errors import ArgumentError, InsufficientDataError, StorageError
from sqlbuffer.loading.plans import (
    SLICE,
    Intervals,
    LoaderRun,
    Numbers,
    Order,
    PassSource,
    Place,
    Progress,
    is_count,
)
from sqlbuffer.samplers import generator_of
from sqlbuffer.steps import Batch
from sqlbuffer.storage.agreements import JOIN_S, Joined, Member, RankAgreements, pass_name

_BEGIN = "begin"


class Meeting:
    """A folder of small files that are written once, by the first worker that needs them.

    The parent process runs no code when torch forks its workers or restarts them, and the workers
    read the database at different moments. Therefore the first worker that begins an iteration
    fixes its range for all. A meeting pickles as its path. The folder is made by a worker, and
    removed by the process that made the meeting.

    Example:
        >>> meeting = Meeting()
        >>> meeting.agree("range", lambda: [0, 10]), meeting.agree("range", lambda: [5, 20])
        ([0, 10], [0, 10])
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"sqlbuffer-{uuid4().hex}"
        finalize(self, _remove, self._folder, os.getpid())

    def agree(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the JSON value of a name: what `make` returned to the first who asked."""
        path = self._folder / name
        if not path.exists():
            self._write_once(path, json.dumps(make()))
        return json.loads(path.read_text(encoding="utf-8"))

    def join(self, token: str, worker: int, first: int) -> int:
        """Return the number of the iteration that a worker takes part in.

        Args:
            token: Text that the workers of one iteration share, and perhaps those of another one.
            worker: Number of the worker; it joins an iteration once.
            first: Smallest possible number.
        """
        begin = self._folder / _BEGIN
        if begin.exists():
            first = max(first, int(begin.read_text(encoding="utf-8")))
        for number in count(first):
            if self.agree(f"run-{number}", lambda: token) != token:
                continue
            if self._write_once(self._folder / f"run-{number}-worker-{worker}", ""):
                return number
        raise AssertionError  # count() has no end

    def begin_at(self, number: int) -> None:
        """Let the next iteration that workers join have at least this number."""
        self.agree(_BEGIN, lambda: number)

    def _write_once(self, path: Path, text: str) -> bool:
        """Write a whole file; return False if it exists already."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        written = path.with_name(f"{path.name}.{uuid4().hex}")
        written.write_text(text, encoding="utf-8")
        try:
            os.link(written, path)
        except FileExistsError:
            return False
        finally:
            written.unlink()
        return True


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)


MAX_WORLD = 2**20
Shard = tuple[int, int] | Literal["torch"] | None
# torchrun sets these; together they are another text for each launch and each restart.
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Rank:
    """One of the processes that train together.

    Attributes:
        rank: Its number, from 0.
        world: Number of processes.
        launch: Text that the processes of one launch share; empty if it is not known.
    """

    rank: int
    world: int
    launch: str = ""


def rank_of(shard: Any) -> Rank | None:
    """Return the rank that `shard` names; None for a loader that is not divided.

    Raises:
        ArgumentError: It is neither `(rank, world)` nor `torch`, or there is no such rank.
    """
    if shard is None:
        return None
    if isinstance(shard, str) and shard == "torch":
        return _torch_rank()
    is_pair = isinstance(shard, Sequence) and not isinstance(shard, str) and len(shard) == 2
    rank, world = map(integer_of, shard) if is_pair else (None, None)
    if rank is None or world is None or not 0 <= rank < world <= MAX_WORLD:
        what = f"(rank, world) or 'torch', two integers with 0 <= rank < world <= {MAX_WORLD}"
        raise refused(shard, "shard", what)
    return Rank(rank, world)


def _torch_rank() -> Rank:
    """Return the rank of torch.distributed where it runs, else that of torchrun's variables."""
    launch = "/".join(os.environ.get(name, "") for name in _LAUNCH)
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(int(distributed.get_rank()), int(distributed.get_world_size()), launch)
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise ArgumentError(
            f"shard='torch' reads RANK and WORLD_SIZE, which torchrun sets; they are {rank!r} and "
            f"{world!r}. Start the script with torchrun, or give shard=(rank, world), for one "
            f"process shard=(0, 1)"
        )
    return Rank(int(rank), int(world), launch)


def group_of(identity: Any, launch: str) -> str:
    """Return the text under which the loaders of all ranks meet."""
    return hashlib.sha256(repr((identity, launch)).encode()).hexdigest()[:32]


class PartOfPass:
    """A part of the rows of a pass, in its order; used in place of an `Order`.

    Part p of n has every n-th row of the order, from the p-th on.

    Args:
        keys: Numbers of the rows of the pass, the same for all parts.
        rng: Generator that shuffles them, the same for all parts; None: ascending.
        part: Number of this part.
        n_parts: Number of parts.
        even: A part that would be empty, since there are fewer rows than parts, has a row of
            another part.

    Attributes:
        n_rows: Number of rows of this part.
        end: Place at which `after` stops. Places from `n_rows` on are the rows once more.

    Example:
        >>> part = PartOfPass(Intervals((11, 15)), None, 1, 2)
        >>> part.after(0, 10, 0)[0].tolist(), part.n_batches(1, drop_last=False)
        ([12, 14], 3)
    """

    is_restricted = True  # all its rows existed when the pass began

    def __init__(
        self,
        keys: Intervals,
        rng: np.random.Generator | None,
        part: int,
        n_parts: int,
        *,
        even: bool = False,
    ) -> None:
        self._keys, self._n_all, self._n_parts = keys, len(keys), n_parts
        if even and self._n_all:
            part = part if part < self._n_all else part % self._n_all
        self._order = Order(0, self._n_all, rng, part, n_parts)
        self.n_rows = len(range(part, self._n_all, n_parts))
        self.end = self.n_rows

    def restrict(self, keys: Numbers) -> None:
        """Do nothing: the rows of the pass are known."""

    def after(self, place: int, n: int, above: int) -> tuple[Numbers, Numbers]:
        """Return the next numbers from a place on, and their places; see `Order.after`."""
        while place < self.end and n > 0 and self.n_rows:
            lap = place // self.n_rows * self.n_rows
            size = min(max(n, SLICE), self.end - place)
            indices, places = self._order.after(place - lap, size, 0)
            keys, places = self._keys[indices - 1], places + lap
            live = np.flatnonzero(keys > above)[:n]
            if live.size:
                return keys[live], places[live]
            place = int(places[-1]) + 1
        return np.empty(0, np.int64), np.empty(0, np.int64)

    def n_batches(self, batch_size: int, *, drop_last: bool) -> int:
        """Return the number of batches that each part has, if all have the same number."""
        if drop_last:
            return self._n_all // self._n_parts // batch_size
        return math.ceil(math.ceil(self._n_all / self._n_parts) / batch_size)

    def rows_of_batch(self, number: int, batch_size: int, *, drop_last: bool) -> int:
        """Return the number of rows of a batch, if all parts have the same number of batches.

        A part with a row less has smaller batches at its end, so that none of them is empty.
        """
        if drop_last:
            return batch_size
        n_batches = self.n_batches(batch_size, drop_last=False)

        def up_to(count: int) -> int:
            return min(batch_size * count, max(self.n_rows - (n_batches - count), count))

        return up_to(number + 1) - up_to(number)


KEEP_EVERY_S = JOIN_S / 10


class ShardSource(PassSource, Protocol):
    """Reads things in the order of a pass, and lists them; see `BatchSource`."""

    def numbers(self) -> Intervals:
        """Return the keys of all items that exist now."""

    def possible_keys(self) -> Intervals:
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
            # The rest of a pass that other ranks have begun may be nothing.
            is_empty = not progress.get("batch") and "later" not in progress
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
        ranks, later = progress.get("ranks"), progress.get("later", {})
        names = {"pass", "place", "batch", "ranks"}
        if not names <= set(progress) <= {*names, "later"}:
            return False
        if not isinstance(ranks, dict) or not isinstance(later, dict):
            return False
        counts = [progress[name] for name in ("pass", "place", "batch")]
        counts += [ranks.get(name) for name in ("turn", "number", "seed")]
        rows = [ranks.get("rows"), *later.values()]
        texts = [ranks.get("token"), *rows]
        if not (all(map(is_count, counts)) and all(isinstance(text, str) for text in texts)):
            return False
        try:
            for text in rows:
                Intervals.of_text(text)
        except ValueError:
            return False
        return all(name.isdecimal() for name in later)

    def divided_again(self, positions: Sequence[Progress | None]) -> Progress:
        """Return the progress from which any number of ranks go on: the rows that are left of the
        passes that other ranks had begun, for all of them.

        Args:
            positions: The progress of each of the other ranks, in their order; None: it had
                finished the iteration.

        Raises:
            ArgumentError: They are of several iterations, or one had not begun a pass that another
                had behind.
        """
        begun = [progress for progress in positions if progress]
        if not begun and None not in positions:
            return {}
        if len({progress["ranks"]["token"] for progress in begun}) > 1:
            raise ArgumentError("the states are of ranks that did not read the same pass")
        rows: dict[int, str] = {}
        for progress in begun:
            rows |= {int(number): text for number, text in progress.get("later", {}).items()}
            rows[progress["pass"]] = progress["ranks"]["rows"]
        first = min(progress.get("pass", 0) for progress in positions if progress is not None)
        last = max(rows, default=first)
        if None in positions and self.epochs is not None:
            last = max(last, self.epochs - 1)
        if begun:  # those of passes that some have behind, and others have not begun
            known = self.agreements.passes(begun[0]["ranks"]["token"])
            rows = {n: known[n] for n in known if first <= n <= last} | rows
        if sum(number >= first for number in rows) != last - first + 1:
            raise ArgumentError(
                "a rank had not begun a pass that the others had behind, and its rows are not "
                "known any more; begin anew, or save the states of all ranks after the same batch"
            )
        ranks, world = begun[0]["ranks"], self.rank.world
        rests = {
            number: self._rest(positions, number, text, ranks)
            for number, text in sorted(rows.items())
            if number >= first
        }
        places = [progress and [progress["pass"], progress["place"]] for progress in positions]
        token = hashlib.sha256(repr((ranks["token"], places, world)).encode()).hexdigest()[:32]
        later = {str(number): rest for number, rest in rests.items() if number > first}
        rest = {**ranks, "token": token, "rows": rests[first]}
        return {"pass": first, "place": 0, "batch": 0, "ranks": rest, "later": later}

    def _rest(
        self, positions: Sequence[Progress | None], number: int, rows: str, ranks: Progress
    ) -> str:
        """Return the rows of a pass that no rank has had."""
        keys, parts = Intervals.of_text(rows), [np.empty(0, np.int64)]
        for rank, progress in enumerate(positions):
            at = None if progress is None else progress.get("pass", 0)
            if at is None or at > number:
                continue
            rng = generator_of(ranks["seed"], ranks["number"], number) if self.shuffle else None
            part = PartOfPass(keys, rng, rank, len(positions), even=self.even)
            place = progress.get("place", 0) if progress and at == number else 0
            while (left := part.after(place, part.n_rows, 0))[0].size:
                parts.append(left[0])
                place = int(left[1][-1]) + 1
        return Intervals(np.unique(np.concatenate(parts))).to_text()

    def n_batches(self) -> int | None:
        """Return the number of batches of this rank for the rows stored now; None: no end."""
        if self.epochs is None:
            return None
        part = PartOfPass(self.rows(), None, self.rank.rank, self.rank.world, even=self.even)
        if self.even:
            return self.epochs * part.n_batches(self.batch_size, drop_last=self.drop_last)
        n_batches = part.n_rows // self.batch_size
        if not self.drop_last:
            n_batches = -(-part.n_rows // self.batch_size)
        return self.epochs * n_batches

    def rows(self) -> Intervals:
        """Return the keys of a pass that begins now."""
        # Items that cannot be made would make one rank's part smaller.
        return self.source.possible_keys() if self.even else self.source.numbers()

    def _one(
        self, taking: "_Taking", run: LoaderRun, number: int, progress: Progress
    ) -> Iterator[tuple[Batch, Progress]]:
        agreed = taking.rows_of(number)
        keys = Intervals.of_text(agreed["rows"])
        if not len(keys):
            return
        self.source.catch_up(keys.last)
        rng = generator_of(agreed["seed"], agreed["number"], number) if self.shuffle else None
        part = PartOfPass(keys, rng, *taking.part, even=self.even)
        place, done = Place(progress.get("place", 0)), progress.get("batch", 0)
        while True:
            path = (agreed["number"], number, *taking.part, place.place)
            goals = partial(generator_of, agreed["seed"], *path)
            batch, place = self._next(part, place, done, goals)
            if batch is None or (self.drop_last and batch.n_rows < self.batch_size):
                return
            done += 1
            behind = {"pass": number, "place": place.place, "batch": done, "ranks": agreed}
            yield batch, {**behind, **taking.later(number)}

    def _next(
        self, part: PartOfPass, place: Place, done: int, rng: Rng
    ) -> tuple[Batch | None, Place]:
        if not self.even:
            return self.source.next(part, place, self.batch_size, rng)
        if done >= part.n_batches(self.batch_size, drop_last=self.drop_last):
            return None, place
        # Rows that have left are made up for by those of the beginning.
        part.end = place.place + part.n_rows
        n = part.rows_of_batch(done, self.batch_size, drop_last=self.drop_last)
        batch, behind = self.source.next(part, place, n, rng)
        if batch is None or (self.drop_last and batch.n_rows < n):
            n_read = 0 if batch is None else batch.n_rows
            raise InsufficientDataError(
                f"{_named(self.rank)} needs {n} of its {part.n_rows} rows of this pass, and "
                f"{n_read} are there: the others were evicted or deleted since the pass began; use "
                f"a larger capacity, smaller batches or shorter passes"
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
        self._later: dict[str, str] = progress.get("later", {})
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
        elif str(number) in self._later:
            rows = self._later[str(number)]
        else:
            token = self._agreed["token"]
            rows = agreements.agree(token, pass_name(number), lambda: self._plan.rows().to_text())
        agreements.begin_pass(self._agreed["token"], *self.part, number)
        return {**self._agreed, "rows": rows}

    def later(self, number: int) -> Progress:
        """Return the part of a progress that says which rows are left of passes after this one,
        which other ranks had begun.
        """
        later = {name: rows for name, rows in self._later.items() if int(name) > number}
        return {"later": later} if later else {}

    def _begun(self) -> Progress:
        plan, run = self._plan, self._run
        if self._resumed is not None:
            known = {name: value for name, value in self._resumed.items() if name != "rows"}
            joined = Joined(known["token"], known, known["turn"])
            plan.agreements.rejoin(plan.group, joined, self._member)
            return known

        def join() -> Progress:
            terms = {"seed": run.seed, "number": run.number, "workers": run.n_workers}
            joined = plan.agreements.join(plan.group, self._member, terms)
            return {"token": joined.token, "turn": joined.turn, **joined.value}

        progress: Progress = run.agree(f"ranks-{run.number}", join)
        n_workers = progress.pop("workers")
        if n_workers != run.n_workers:
            raise ValueError(
                f"{_named(plan.rank)} reads with num_workers={run.n_workers}, and another rank "
                f"with {n_workers}: give all ranks the same number"
            )
        return progress

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
