"""Work: rollouts to play, handed out to workers and finished with their episodes."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from sqlbuffer.arguments import LEASE_S
from sqlbuffer.checks import (
    checked_duration,
    checked_flag,
    checked_integer,
    checked_items,
    checked_seconds,
    checked_text,
    refused,
)
from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.encoding.records import encode_key
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import ArgumentError, EpisodeRefusedError, FieldError
from sqlbuffer.fields import Casting
from sqlbuffer.front.checkpoints import checked_name
from sqlbuffer.front.writing import StepWriter
from sqlbuffer.steps import DataRow
from sqlbuffer.storage import work
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.work import NewWork, TakenWork
from sqlbuffer.waits import pause

MAX_ATTEMPTS = 5
MOST_TASKS, MOST_SIBLINGS, MOST_ITEMS = 1_000_000, 100_000, 10_000
MAX_GROUP = 450  # bytes: the ids of its episodes have two numbers behind it
MAX_REASON = 1_000
MOST_ATTEMPTS = 2**30
# What an item decides about its episode.
_OF_ITEM = ("task_id", "group_id", "episode_id", "resume")
# Pause between two looks for work. If a look takes long, it is this many times as long.
PAUSE_S, PAUSE_PER_LOOK = 0.25, 10

# Returns the steps of an episode, by its id and its task.
ReadEpisode = Callable[[str, str], list[DataRow]]


class WorkItem:
    """A rollout to play, that one worker has for a time; `Work.take` returns it.

    Play it in a block of `episode`: a rollout that ends there is complete, and its item is done in
    the same transaction. If the block raises, the item waits to be taken again.

    Attributes:
        group_id: The group of rollouts that it belongs to.
        sibling: Its number in the group, from 0.
        task_id: The task.
        payload: What was put with the task; None for nothing.
        attempt: 1, and one more each time that the item is taken.
        max_attempts: Largest number of attempts; None for any number.
        worker: Who has taken it.
        episode_id: Id of the episode of this attempt.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> buffer.work.put([{"task_id": "maze", "payload": {"level": 3}}], group_size=2)
        2
        >>> first, second = buffer.work.take(2, worker="w0")
        >>> with first.episode() as episode:
        ...     episode.append(state=first.payload["level"], actions=[1], reward=1.0)
        >>> second.heartbeat(lease_s=60)
        >>> second.fail("the simulator crashed")
        >>> [(item.sibling, item.attempt) for item in buffer.work.take(2, worker="w1")]
        [(1, 2)]
    """

    def __init__(self, of: "Work", taken: TakenWork, deadline: float) -> None:
        self._work, self._taken, self._deadline = of, taken, deadline
        self._writer: EpisodeWriter | None = None
        self._pid = os.getpid()
        self.group_id, self.sibling, self.task_id = taken.group_id, taken.sibling, taken.task_id
        self.attempt, self.max_attempts = taken.attempt, taken.max_attempts
        self.worker, self.episode_id = taken.worker, taken.episode_id
        self.payload: Any = None if taken.payload is None else decode(taken.payload, None)

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease runs out; 0 if it has run out."""
        return max(0.0, self._deadline - time.monotonic())

    def episode(
        self,
        /,
        agent_id: str | None = None,
        *,
        model_version: int | None = None,
        session_id: str | None = None,
        parent_id: str | None = None,
        casting: Casting = "same_kind",
        **meta: Any,
    ) -> EpisodeWriter:
        """Begin the episode of the item, with its task, its group and its attempt.

        Its end finishes the item: `end` makes it done, and `abort` lets it wait to be taken again
        while it has attempts left, and so does an end without a step. Both happen in the
        transaction that stores the end. A worker that has lost the item stores nothing more.

        Args:
            agent_id: Agent that acts; `default` if omitted.
            model_version: Version of the model that acts.
            session_id: Training session.
            parent_id: Id of the episode that it came from.
            casting: See `ReplayBuffer.extend`.
            **meta: See `ReplayBuffer.store_episode`.

        Raises:
            EpisodeExistsError: This attempt has begun its episode before.
            FieldError: A key is not text, meta does not fit its declared fields, or it has a name
                of what the item decides, such as `group_id`.
            LeaseLostError: Another worker has taken the item, or it has ended.
        """
        own = [name for name in _OF_ITEM if name in meta]
        if own:
            raise FieldError(
                f"{own[0]}: the item decides; take it out of the call, or give meta another name"
            )
        self._writer = self._work.begin(
            self._taken, agent_id, model_version, session_id, parent_id, casting, meta
        )
        return self._writer

    def heartbeat(self, lease_s: float | None = None) -> None:
        """Extend the lease: it runs out `lease_s` seconds from now.

        A lease that has run out can be extended until another worker takes the item.

        Args:
            lease_s: Seconds until it runs out; by default the same as at the start.

        Raises:
            ArgumentError: `lease_s` is not a number of seconds above 0.
            LeaseLostError: Another worker has taken the item, or it has ended.
        """
        lease_s = self._taken.lease_s if lease_s is None else checked_duration(lease_s, "lease_s")
        deadline = time.monotonic() + lease_s
        work.prolong(self._work.store, self._taken, lease_s)
        self._deadline = deadline

    def fail(self, reason: str = "it failed", retry: bool = True) -> None:
        """End this attempt without a rollout; its episode is aborted. A second call does nothing.

        Args:
            reason: Why, as `v_work` shows it; of more than 1,000 letters, the first ones.
            retry: Let the item wait to be taken again, unless it has no attempts left. With False
                it has failed for good.

        Raises:
            ArgumentError: `reason` is not text, or `retry` not True or False.
            LeaseLostError: Another worker has taken the item, or it is done.
        """
        reason, retry = checked_text(reason, "reason"), checked_flag(retry, "retry")
        text = reason[:MAX_REASON].encode(errors="replace").decode().replace("\0", " ")
        writer = self._writer
        if writer is not None and writer.is_open and self._pid == os.getpid():
            with suppress(EpisodeRefusedError):  # the call below says whose it is
                writer.leave()
        work.fail(self._work.store, self._taken, text, retry=retry)

    def __reduce__(self) -> Any:
        return _again, (self._work, self._taken, self.remaining_s)

    def __repr__(self) -> str:
        return (
            f"WorkItem(group_id={self.group_id!r}, sibling={self.sibling}, "
            f"task_id={self.task_id!r}, attempt={self.attempt})"
        )


def _again(of: "Work", taken: TakenWork, remaining_s: float) -> WorkItem:
    """Return an item that another process has sent."""
    return WorkItem(of, taken, time.monotonic() + remaining_s)


class Work:
    """The work of a buffer: rollouts to play, as rows; `ReplayBuffer.work` returns it.

    A scheduler puts tasks, and workers take items and play them. All of it is in the database, so
    it goes on after any process has died, and needs no other service. `v_work` shows it.

    Args:
        store: The buffer.
        writer: Stores its steps.
        read: Function that reads an episode.
        owner: The buffer's public object.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> buffer.work.put(["maze-1", "maze-2"], group_size=4)
        8
        >>> buffer.work.put(["maze-1"], group_size=4)
        0
        >>> for item in buffer.work.take(8, worker="w0", lease_s=60):
        ...     with item.episode() as episode:
        ...         episode.append(state=item.task_id, actions=[0], reward=1.0, terminated=True)
        >>> buffer.work.take(1, timeout_s=0)
        []
    """

    def __init__(
        self, store: BufferStore, writer: StepWriter, read: ReadEpisode, owner: Any
    ) -> None:
        self.store, self._step_writer, self._read, self._owner = store, writer, read, owner

    def put(
        self,
        tasks: Iterable[str | Mapping[str, Any]],
        group_size: int = 1,
        *,
        max_attempts: int | None = MAX_ATTEMPTS,
        retry_failed: bool = False,
    ) -> int:
        """Add rollouts to play; return how many are new.

        Each task is a group of `group_size` siblings. Those that were put before stay as they are,
        whichever state they have, so a scheduler can repeat the call after it has died. A call with
        a greater `group_size` adds the siblings that are missing.

        Args:
            tasks: Ids of tasks, or dicts with `task_id` and optionally `group_id` (the task, if
                omitted) and `payload` (a JSON value that the worker gets).
            group_size: Rollouts of each task.
            max_attempts: How often an item is taken at most, if its leases run out or it fails;
                None for any number.
            retry_failed: Let the items of these groups that have failed wait again, with
                `max_attempts` further attempts. They count as new.

        Raises:
            ArgumentError: `tasks` is not a list of such tasks, a group has two tasks or payloads,
                or another argument is not what it should be; nothing is added.
            FieldError: An id is not text or too long, or a payload is not JSON.
        """
        group_size = checked_integer(group_size, "group_size", 1, MOST_SIBLINGS)
        if max_attempts is not None:
            max_attempts = checked_integer(
                max_attempts, "max_attempts", 1, MOST_ATTEMPTS, more=", or None"
            )
        retry_failed = checked_flag(retry_failed, "retry_failed")
        what = "a list of task ids, or of dicts with task_id"
        by_group: dict[str, NewWork] = {}
        for i, task in enumerate(checked_items(tasks, "tasks", what, MOST_TASKS)):
            new = _new_work(task, f"tasks[{i}]")
            known = by_group.setdefault(new.group_id, new)
            if known.task_id != new.task_id:
                raise ArgumentError(
                    f"tasks[{i}]: group {new.group_id!r} has task {known.task_id!r} as well; the "
                    f"rollouts of a group have one task, so give another group_id"
                )
            if known.payload != new.payload:
                raise ArgumentError(
                    f"tasks[{i}]: group {new.group_id!r} has two payloads; the rollouts of a group "
                    f"have one, so give another group_id"
                )
        if not by_group:
            return 0
        return work.put(
            self.store, list(by_group.values()), group_size, max_attempts, retry_failed=retry_failed
        )

    def take(
        self,
        n: int = 1,
        *,
        worker: str | None = None,
        lease_s: float = LEASE_S,
        timeout_s: float = 0.0,
        max_ahead: int | None = None,
    ) -> list[WorkItem]:
        """Take up to n items; no other worker gets them while the leases run.

        Items whose lease ran out come first, then those that wait, the oldest first. The open
        episode of a worker that has lost an item is aborted in the same transaction.

        Args:
            n: Largest number of items.
            worker: Name of who takes them, for `v_work`; host and process if omitted.
            lease_s: Seconds after which another worker may take an item, unless its `heartbeat`
                extends the lease.
            timeout_s: Longest wait for an item, in seconds; 0 for none.
            max_ahead: Take a new item only while fewer than this many rollouts are taken, or
                complete and not consumed. A rollout is consumed when a lease with steps of it was
                acknowledged, or when its steps have left the buffer. It is counted from the rows,
                so all takers that give it are bounded together.

        Returns:
            The items, n of them at most; none if there were none in time.

        Raises:
            ArgumentError: An argument is not what it should be.
        """
        n = checked_integer(n, "n", 1, MOST_ITEMS)
        worker = work.default_worker() if worker is None else checked_name(worker, "worker")
        lease_s = checked_duration(lease_s, "lease_s")
        deadline = time.monotonic() + checked_seconds(timeout_s, "timeout_s")
        if max_ahead is not None:
            max_ahead = checked_integer(max_ahead, "max_ahead", 1, more=", or None")
        while True:
            began = time.monotonic()
            if work.may_take(self.store, max_ahead):
                leased_until = time.monotonic() + lease_s
                if taken := work.take(self.store, n, worker, lease_s, max_ahead):
                    return [WorkItem(self, item, leased_until) for item in taken]
            now = time.monotonic()
            if now >= deadline:
                return []
            pause(min(max(PAUSE_S, PAUSE_PER_LOOK * (now - began)), deadline - now))

    def give_back(self, items: Iterable[WorkItem]) -> None:
        """Let others take items of a call that was cancelled; their attempts do not count.

        :meta private:
        """
        work.give_back(self.store, [item._taken for item in items])

    def begin(
        self,
        item: TakenWork,
        agent_id: str | None,
        model_version: int | None,
        session_id: str | None,
        parent_id: str | None,
        casting: Casting,
        meta: Mapping[str, Any],
    ) -> EpisodeWriter:
        """Begin the episode of an item; see `WorkItem.episode`.

        :meta private:
        """
        made = self._step_writer.beginning(
            item.task_id, agent_id, item.episode_id, model_version, session_id, item.group_id,
            parent_id, casting, meta,
        )  # fmt: skip
        beginning = made._replace(attempt=item.attempt, writer=str(uuid4()), item_id=item.id)
        work.begin_episode(self.store, item, beginning)
        read = partial(self._read, beginning.key, beginning.task_id)
        return self._step_writer.begun(beginning, casting, read)

    def __reduce__(self) -> Any:
        return _work_of, (self._owner,)

    def __repr__(self) -> str:
        return f"Work({self.store.info.name!r})"


def _work_of(owner: Any) -> Work:
    """Return the work of a buffer that another process has sent."""
    of: Work = owner.work
    return of


_KEYS = ("task_id", "group_id", "payload")


def _new_work(task: Any, name: str) -> NewWork:
    """Return a task that is given by its id or as a dict, checked."""
    values = {"task_id": task} if isinstance(task, str) else task
    if not isinstance(values, Mapping) or "task_id" not in values:
        raise refused(task, name, "a task id, or a dict with task_id")
    unknown = [key for key in values if key not in _KEYS]
    if unknown:
        raise ArgumentError(f"{name}: unknown {unknown[0]!r}; a task has {', '.join(_KEYS)}")
    task_id = encode_key(values["task_id"], f"{name}: task_id")
    group = values.get("group_id")
    group_id = encode_key(task_id if group is None else group, f"{name}: group_id", MAX_GROUP)
    payload = values.get("payload")
    if payload is None:
        return NewWork(group_id, task_id, None)
    encoder = Encoder()
    text = encoder.json(payload, f"{name}: payload")
    if encoder.blob:
        raise FieldError(f"{name}: payload has arrays or bytes; give a JSON value")
    return NewWork(group_id, task_id, text)
