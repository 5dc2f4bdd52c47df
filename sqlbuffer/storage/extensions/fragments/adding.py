"""Add fragments: each waits for its neighbours, and the last one completes a group."""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert

from sqlbuffer.storage.extensions.fragments.leaving import evict, oldest_allowed
from sqlbuffer.storage.extensions.fragments.pool import Pool, PoolCounts, Rules, read
from sqlbuffer.storage.extensions.participants import note_seen, state_of
from sqlbuffer.storage.extensions.tables import WORKER, item_groups
from sqlbuffer.storage.store import BufferStore


class NotInOrderError(Exception):
    """A worker numbered a fragment no higher than its last one, whose number this error carries."""

    def __init__(self, last_fid: int) -> None:
        super().__init__(last_fid)
        self.last_fid = last_fid


class SentBeforeError(Exception):
    """A worker has sent its last fragment again, which was stored before and has left."""


@dataclass(frozen=True)
class Fragment:
    """A fragment that was stored.

    Attributes:
        worker: Worker that made it.
        fid: Its number at the worker.
        session: Training session in which it was made.
        version: Version of the model that made it.
        seq: Its row.
        n_bytes: Size of its payload in bytes.
    """

    worker: str
    fid: int
    session: str
    version: int
    seq: int
    n_bytes: int


@dataclass(frozen=True)
class Added:
    """The result of adding a fragment.

    Attributes:
        n_missing: Numbers that the worker left out before it.
        n_dropped: Fragments dropped with it, or the fragment itself: too old, of another session,
            or before a gap.
        is_reported: It is the last of `fragments_per_report`.
        pool: State after it; None if it was stored before.
    """

    n_missing: int = 0
    n_dropped: int = 0
    is_reported: bool = False
    pool: Pool | None = None


@dataclass(frozen=True)
class WaitingFragment:
    """A fragment that waits for its neighbours."""

    seq: int
    version: int
    n_bytes: int


class Origin(NamedTuple):
    """The worker and session of consecutive fragments, and the number of the first one."""

    worker: str
    session: str
    first_fid: int


@dataclass(frozen=True)
class Worker:
    """The last fragment of a worker, and its fragments that wait, all of one session."""

    last_fid: int
    last_seq: int
    session: str
    waiting: list[WaitingFragment]

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Worker":
        """Return the worker with a stored state."""
        waiting = [WaitingFragment(*each) for each in state["waiting"]]
        return cls(**{**state, "waiting": waiting})

    def state(self) -> dict[str, Any]:
        """Return the state to store."""
        waiting = [(each.seq, each.version, each.n_bytes) for each in self.waiting]
        return {**vars(self), "waiting": waiting}

    @property
    def oldest_version(self) -> int | None:
        """The oldest version among the waiting fragments."""
        return min((each.version for each in self.waiting), default=None)

    def origin(self, name: str) -> Origin:
        """Return the origin of the waiting fragments."""
        return Origin(name, self.session, self.last_fid - len(self.waiting) + 1)


def add(connection: Connection, store: BufferStore, new: Fragment) -> Added:
    """Add a fragment, in the transaction that stores it.

    Raises:
        NotInOrderError: The worker has sent a later one.
        SentBeforeError: The worker has sent this one before, and it has left.
    """
    pool = read(connection, store, locked=True)
    state = state_of(connection, store.info.id, WORKER, new.worker)
    worker = None if state is None else Worker.of(state)
    if worker is not None and new.seq <= worker.last_seq and new.fid <= worker.last_fid:
        return Added()
    if worker is not None and (new.fid, new.session) == (worker.last_fid, worker.session):
        raise SentBeforeError
    if worker is not None and new.fid <= worker.last_fid:
        raise NotInOrderError(worker.last_fid)
    n_missing = 0 if worker is None else new.fid - worker.last_fid - 1
    before = [] if worker is None else worker.waiting
    own = WaitingFragment(new.seq, new.version, new.n_bytes)
    kept = _kept([] if n_missing else before, own, new.session, pool)
    dropped = [each for each in (*before, own) if each not in kept]
    pool.counts.fragments += 1
    pool.counts.gaps += n_missing > 0
    pool.counts.missing += n_missing
    is_reported = _report(pool.counts, pool.rules)
    origin = Origin(new.worker, new.session, new.fid)
    if worker is not None and before:
        origin = worker.origin(new.worker)
    drop(connection, store.info.id, pool, origin, dropped)
    if len(kept) >= pool.rules.fragments_per_chunk:
        _make_group(connection, store.info.id, pool, new, kept)
        kept = []
        evict(connection, store, pool)
    # If two processes send as one worker, a row may have a lower number than the one before.
    last_seq = new.seq if worker is None else max(new.seq, worker.last_seq)
    now = Worker(new.fid, last_seq, new.session, kept)
    note_seen(connection, store.info.id, WORKER, new.worker, now.state(), now.oldest_version)
    pool.save(connection, store.info.id)
    return Added(n_missing, len(dropped), is_reported, pool)


def _report(counts: PoolCounts, rules: Rules) -> bool:
    """Measure the rate every `fragments_per_report` fragments; return True if it was measured."""
    if rules.fragments_per_report is None or counts.fragments % rules.fragments_per_report:
        return False
    now = time.time()
    if counts.reported_at is not None and now > counts.reported_at:
        counts.per_second = (counts.fragments - counts.reported) / (now - counts.reported_at)
    counts.reported, counts.reported_at = counts.fragments, now
    return True


def _kept(
    before: list[WaitingFragment], own: WaitingFragment, session: str, pool: Pool
) -> list[WaitingFragment]:
    """Return the fragments that may still join a group: those after the last unfit one."""
    if session != pool.session:
        return []
    allowed = oldest_allowed(pool)
    kept = [*before, own]
    for i in reversed(range(len(kept))):
        if kept[i].version < allowed:
            return kept[i + 1 :]
    return kept


def drop(
    connection: Connection,
    buffer_id: int,
    pool: Pool,
    origin: Origin,
    dropped: list[WaitingFragment],
) -> None:
    """Drop fragments that belong to no group, by making them a group that has left.

    Groups that have left are deleted later, while no call waits.
    """
    if dropped:
        pool.counts.dropped += len(dropped)
        pool.counts.left_weight += len(dropped)
        _insert_group(connection, buffer_id, pool, None, origin, dropped)


def _make_group(
    connection: Connection,
    buffer_id: int,
    pool: Pool,
    last: Fragment,
    fragments: list[WaitingFragment],
) -> None:
    origin = Origin(last.worker, last.session, last.fid - len(fragments) + 1)
    _insert_group(connection, buffer_id, pool, pool.n_groups, origin, fragments)
    pool.n_groups += 1
    pool.n_bytes += sum(each.n_bytes for each in fragments)
    pool.counts.groups += 1


def _insert_group(
    connection: Connection,
    buffer_id: int,
    pool: Pool,
    place: int | None,
    origin: Origin,
    fragments: list[WaitingFragment],
) -> None:
    values = {
        "buffer_id": buffer_id,
        "number": pool.next_group,
        "place": place,
        "task_id": origin.worker,
        "first_step": origin.first_fid,
        "session": origin.session,
        "model_version": fragments[0].version,
        "oldest_version": min(each.version for each in fragments),
        "n_bytes": sum(each.n_bytes for each in fragments),
        "seqs": [each.seq for each in fragments],
    }
    connection.execute(insert(item_groups), values)
    pool.next_group += 1
