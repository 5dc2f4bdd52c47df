"""A buffer in memory, in plain Python: what the state machine compares the real one with."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

ALPHA = 0.6


@dataclass
class Step:
    """A step as it is given; its number decides its reward, its payload and its typed fields.

    The id is None where plain SQL gave none, and where the library makes it, until it was read.
    """

    id: str | None = field(compare=False)
    task: str
    step: int
    number: int
    episode: str | None = None
    version: int | None = None
    session: str | None = None
    terminated: bool | None = None
    adv: float | None = None
    by_hand: bool = False
    seq: int = field(default=0, compare=False)

    @property
    def reward(self) -> float | None:
        if self.adv is not None and self.number % 5 == 4:  # a column of rewards has no None
            return None
        is_nan = self.episode is None and self.number % 7 == 6
        return math.nan if is_nan else self.number % 9 / 4

    @property
    def extra(self) -> dict[str, Any] | None:
        return {"own": self.number} if self.number % 3 == 0 else None

    def state(self, is_typed: bool) -> dict[str, Any] | None:
        """Return the state; of steps with typed fields only some have one."""
        return None if is_typed and self.number % 4 else {"x": self.number}

    @property
    def actions(self) -> list[Any] | None:
        return None if self.by_hand else [np.full(self.number % 3, self.number, np.int16)]

    @property
    def arrays(self) -> dict[str, Any]:
        """Return the typed fields: NaN, -0.0, the greatest integers, and a length that varies."""
        odd = [math.nan, -0.0, math.inf, 1e-45][self.number % 4]
        return {
            "obs": np.array([self.number, odd], np.float32),
            "big": np.uint64(2**64 - 1 - self.number),
            "tokens": np.arange(self.number % 4, dtype=np.int16),
            "level": np.int64(self.number % 10),
        }


@dataclass
class Episode:
    """An episode, also when its steps have left; `final` is what its final observation shows."""

    task: str
    status: str = "open"
    length: int | None = None
    returned: float | None = None
    reward: float | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    version: int | None = None
    final: int | None = None


class Model:
    """What a buffer holds.

    Attributes:
        rows: The steps that it holds, by number.
        next_seq: The number of the next step.
        episodes: All that are listed, in the order in which they began.
        labels: Of each step {version: {name: value}}.
        chunks: Of each step what tells its chunk from others; in a buffer of JSON, its own number.
        last_seqs: The last number of each chunk.
    """

    def __init__(
        self,
        unit: str,
        capacity: int | None,
        max_episodes: int | None,
        *,
        is_typed: bool,
        **limits: Any,
    ):
        self.unit, self.capacity, self.max_episodes = unit, capacity, max_episodes
        self.is_typed, self.n_writes = is_typed, 0
        self.chunks: dict[int, object] = {}
        self.last_seqs: dict[object, int] = {}
        self.max_use = limits.get("max_use")
        self.max_staleness = limits.get("max_staleness")
        self.session_only = limits.get("current_session_only", False)
        self.rows: dict[int, Step] = {}
        self.low, self.next_seq, self.last_write = 0, 1, {}
        self.episodes: dict[str, Episode] = {}
        self.labels, self.priorities, self.uses = {}, {}, {}
        self.quarantined: set[int] = set()
        self.max_priority: float | None = None
        self.sessions: dict[str, int | None] = {}
        self.session = self.clock = None

    def split(self, steps: list[Step]) -> tuple[list[Step], list[Step], list[Step]]:
        """Return the steps that are new, those that are held already, and those that differ."""
        known = {row.id: row for row in self.rows.values() if row.id is not None}
        new, duplicates, conflicts = [], [], []
        for step in steps:
            if step.id is None or step.id not in known:
                new.append(step)
                known[step.id] = step
            else:
                (duplicates if step == known[step.id] else conflicts).append(step)
        return new, duplicates, conflicts

    def add(self, steps: list[Step], seqs: list[int], priority: float | None = None) -> None:
        """Take new steps of one write under their numbers, and evict."""
        self.n_writes += 1
        if priority is not None and steps:
            self.set_priorities([], priority)
        for seq, step in sorted(zip(seqs, steps, strict=True), key=lambda pair: pair[0]):
            self.rows[seq] = replace(step, seq=seq)
            self.last_write[step.task] = seq
            largest = 1.0 if self.max_priority is None else self.max_priority
            self.priorities[seq] = largest if priority is None else priority
            self.next_seq = seq + 1
            chunk = (self.n_writes, step.episode or step.task) if self.is_typed else seq
            self.chunks[seq] = chunk
            self.last_seqs[chunk] = seq
            if step.session is not None:
                self.sessions.setdefault(step.session, None)
        self.evict()

    def set_priorities(self, seqs: list[int], priority: float) -> None:
        self.priorities |= dict.fromkeys(seqs, priority)
        known = priority if self.max_priority is None else self.max_priority
        self.max_priority = max(known, priority)

    def evict(self) -> None:
        if self.unit == "row" and self.capacity is not None:
            # A chunk keeps its numbers, those of deleted steps too.
            ends = [self.last_seqs[self.chunks[seq]] for seq in self.rows]
            self.low = max([self.low, *(end - self.capacity for end in ends)])
            self.remove([seq for seq in self.rows if seq <= self.low])
        while self.unit == "episode" and self.max_episodes is not None:
            held = {row.episode for row in self.rows.values()} - {None}
            ended = [key for key in self.episodes if key in held and self.is_ended(key)]
            if len(held) <= self.max_episodes or not ended:
                break
            self.remove([seq for seq, row in self.rows.items() if row.episode == ended[0]])
        while self.capacity is not None and len(self.rows) > self.capacity:
            tasks = {row.task for row in self.rows.values()}
            if self.unit != "task" or len(tasks) == 1:
                self.remove(sorted(self.rows)[: -self.capacity])
            else:
                oldest = min(tasks, key=self.last_write.__getitem__)
                self.remove([seq for seq, row in self.rows.items() if row.task == oldest])

    def remove(self, seqs: list[int]) -> int:
        for seq in seqs:
            del self.rows[seq]
            for kept in (self.labels, self.priorities, self.uses):
                kept.pop(seq, None)
            self.quarantined.discard(seq)
        return len(seqs)

    def is_ended(self, key: str) -> bool:
        return self.episodes[key].status != "open"

    def steps_of(self, key: str) -> list[Step]:
        return [row for row in self.rows.values() if row.episode == key]

    def free(self, key: str) -> bool:
        """Forget an episode that has ended and whose steps have left; return if the id is free."""
        if key in self.episodes and self.is_ended(key) and not self.steps_of(key):
            del self.episodes[key]
        return key not in self.episodes

    def label(self, seqs: list[int], version: int | None, given: dict[str, Any]) -> None:
        if version is None:
            known = [v for seq in seqs for v in self.labels.get(seq, {})]
            version = max(known, default=0) + 1
        for seq in seqs:
            row, before = self.rows[seq], self.value(self.rows[seq], "reward")
            said = self.labels.setdefault(seq, {}).setdefault(version, {})
            extra = {**said.get("extra", {}), **given.get("extra", {})}
            said |= given
            if extra:
                said["extra"] = extra
            after = self.value(row, "reward")
            if row.episode is not None and after != before:
                episode = self.episodes[row.episode]
                episode.returned = (episode.returned or 0.0) + after - before

    def value(self, row: Step, name: str) -> Any:
        """Return a value as it is now: the label of the highest version, or the step's own."""
        said = [said for _, said in sorted(self.labels.get(row.seq, {}).items()) if name in said]
        if name == "extra":
            late = {key: value for one in said for key, value in one["extra"].items()}
            return {**(row.extra or {}), **late} if late else row.extra
        return said[-1][name] if said else {"value": None}.get(name, getattr(row, name, None))

    def may_be_sampled(self, row: Step) -> bool:
        return row.seq not in self.quarantined and not self.is_expired(row)

    def is_expired(self, row: Step) -> bool:
        """Return True if the step is too old, of another session, or used up."""
        clocks = (self.clock, self.max_staleness, row.version)
        if None not in clocks and self.clock - row.version > self.max_staleness:
            return True
        keys = (self.session, row.session)
        if self.session_only and None not in keys and row.session != self.session:
            return True
        return self.max_use is not None and self.uses.get(row.seq, 0) >= self.max_use

    def expired(self) -> list[int]:
        """Return the steps that `expire` removes: none whose task or episode is still of use."""
        useful = [row for row in self.rows.values() if not self.is_expired(row)]
        tasks = {row.task for row in useful} if self.unit == "task" else set()
        episodes = {row.episode for row in useful} if self.unit != "task" else set()
        episodes |= {key for key in self.episodes if not self.is_ended(key)}
        return [
            seq
            for seq, row in self.rows.items()
            if self.is_expired(row)
            and seq not in self.quarantined
            and row.task not in tasks
            and (self.unit == "task" or row.episode is None or row.episode not in episodes)
        ]

    def eligible(self) -> list[Step]:
        return [row for row in self.rows.values() if self.may_be_sampled(row)]

    def whole_episodes(self) -> dict[str, list[Step]]:
        """Return the episodes that are drawn whole: complete, and all of their steps eligible."""
        found = {}
        for key, episode in self.episodes.items():
            steps = self.steps_of(key)
            is_whole = episode.status == "complete" and len(steps) == episode.length != 0
            if is_whole and all(map(self.may_be_sampled, steps)):
                found[key] = steps
        return found
