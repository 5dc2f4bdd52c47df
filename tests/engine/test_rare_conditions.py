"""A draw by a remembered rare condition is the draw of a process that remembers nothing.

Whatever happens between the draws: each is compared with that of a buffer that has forgotten the
condition, with the same seed, and with the steps that match in plain Python.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sqlbuffer import LatestSampler, QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError, InsufficientDataError
from tests.support.sql import buffer_id, is_sqlite, run
from tests.support.statements import selects
from tests.support.storage_hooks import (
    forget_conditions,
    remembered_conditions,
    remembering_in_small_buffers,
)

pytestmark = pytest.mark.combinations

LIMIT, SHARE = 0.99, 100
RARE = QueryBuilder().gt("reward", LIMIT).build()
OTHER_RARE = QueryBuilder().gt("reward", LIMIT + 0.005).build()
FIELDS = {"chunks": {"obs": ("float32", (2,)), "grade": {"dtype": "int64", "column": True}}}


@pytest.fixture(autouse=True)
def _small_buffers() -> Iterator[None]:
    with remembering_in_small_buffers():
        yield


class World:
    """A buffer that remembers, a second writer, and the calls that change the buffer."""

    def __init__(self, url: str, layout: str, rng: np.random.Generator, **settings: Any) -> None:
        self.url, self.layout, self.rng = url, layout, rng
        fields = {"fields": FIELDS[layout]} if layout in FIELDS else {}
        self.buffer = ReplayBuffer(url, create=True, **fields, **settings)
        self.writer = ReplayBuffer(url)
        self._n_episodes, self._seed = 0, 0

    def columns(self, n: int) -> dict[str, Any]:
        rng = self.rng
        self._n_episodes += 1
        more = {"state": [{"x": i} for i in range(n)]}
        if self.layout == "chunks":
            more = {"obs": rng.random((n, 2)), "grade": rng.integers(0, SHARE, n)}
        name = str(self._n_episodes)
        return {"task_id": name, "episode_id": name, "reward": rng.random(n), **more}

    def steps(self) -> dict[int, float]:
        """Return the reward of each step, with what was given late."""
        return dict(run(self.url, "SELECT seq, reward FROM v_experiences"))

    def some(self, n: int) -> list[int]:
        """Return some steps, of which half match."""
        steps = self.steps()
        matching = [seq for seq, reward in steps.items() if reward > LIMIT]
        chosen = [*self.rng.choice(list(steps), n), *self.rng.choice(matching or [1], n)]
        return sorted({int(seq) for seq in chosen})

    # Changes.

    def store(self) -> None:
        self.buffer.extend(self.columns(int(self.rng.integers(1, 300))))
        self.buffer.flush()

    def store_by_another(self) -> None:
        self.writer.extend(self.columns(int(self.rng.integers(1, 300))))
        self.writer.flush()

    def annotate(self) -> None:
        seqs = self.some(3)
        self.writer.annotate(seqs, reward=self.rng.choice([0.0, 1.0], len(seqs)))

    def annotate_something_else(self) -> None:
        self.writer.annotate(self.some(3), adv_t=2.0)

    def delete(self) -> None:
        self.writer.delete(self.some(3))

    def delete_by_condition(self) -> None:
        task = str(self.rng.integers(1, self._n_episodes + 1))
        self.buffer.delete(QueryBuilder().eq("task_id", task).build())

    def delete_by_plain_sql(self) -> None:
        number = buffer_id(self.url)
        if self.layout == "chunks":
            choice = f"(SELECT max(first_seq) FROM chunks WHERE buffer_id = {number})"
            run(self.url, f"DELETE FROM chunks WHERE buffer_id = {number} AND first_seq = {choice}")
            return
        listed = ", ".join(map(str, self.some(2)))
        run(self.url, f"DELETE FROM experiences WHERE buffer_id = {number} AND seq IN ({listed})")

    def undo(self) -> None:
        def work(tx: Any) -> None:
            tx.annotate(self.some(2), reward=1.0)
            tx.sample(256, condition=RARE)
            raise KeyError

        with pytest.raises(KeyError):
            self.buffer.transaction(work)

    def quarantine(self) -> None:
        self.writer.quarantine(self.some(2))

    def release(self) -> None:
        self.writer.release(self.some(20))

    def resize(self) -> None:
        if self.buffer.max_capacity is not None:
            self.writer.resize(int(self.rng.integers(1_500, 2_500)))

    def clear(self) -> None:
        if self.rng.random() < 0.2:
            self.writer.clear()
            self.writer.extend(self.columns(1_500))
            self.writer.flush()

    # Draws.

    def drawn(self, buffer: ReplayBuffer, seed: int, condition: Any) -> list[int]:
        sampler = RandomSampler(replace=True, seed=seed)
        if self.layout == "rows":
            rows = buffer.sample(256, condition=condition, sampler=sampler)
            assert all(row.exp_data.reward_t > LIMIT for row in rows)
            return [row.seq for row in rows]
        batch = buffer.sample_arrays(256, condition=condition, sampler=sampler)
        assert (batch.reward > LIMIT).all()
        seqs: list[int] = batch.info["seq"].tolist()
        return seqs

    def transitions(self, buffer: ReplayBuffer, seed: int, condition: Any) -> list[int] | None:
        sampler = RandomSampler(replace=True, seed=seed)
        try:
            batch = buffer.sample_transitions(64, n_step=2, condition=condition, sampler=sampler)
        except InsufficientDataError:  # no step follows those that match
            return None
        seqs: list[int] = batch.info["seq"].tolist()
        return seqs

    def check(self, condition: Any = RARE, limit: float = LIMIT) -> None:
        """Compare draws with those of a buffer that remembers nothing, and with all steps."""
        self._seed += 1
        quarantined = {seq for (seq,) in run(self.url, "SELECT seq FROM quarantine")}
        matching = {seq for seq, reward in self.steps().items() if reward > limit} - quarantined
        if not matching:
            return
        drawn = self.drawn(self.buffer, self._seed, condition)
        forget_conditions(self.writer)
        assert self.drawn(self.writer, self._seed, condition) == drawn
        assert set(drawn) <= matching
        if self.layout == "chunks":
            transitions = self.transitions(self.buffer, self._seed, condition)
            assert self.transitions(self.writer, self._seed, condition) == transitions
            assert set(transitions or ()) <= matching
        rows = self.buffer.sample(3_000, condition=condition, strict=False)
        assert sorted(row.seq for row in rows) == sorted(matching)
        newest = self.buffer.sample(3, condition=condition, sampler=LatestSampler(), strict=False)
        assert [row.seq for row in newest] == sorted(matching, reverse=True)[:3]


CHANGES: list[Callable[[World], None]] = [
    World.store, World.store_by_another, World.annotate, World.annotate_something_else,
    World.delete, World.delete_by_condition, World.delete_by_plain_sql, World.undo,
    World.quarantine, World.release, World.resize, World.clear,
]  # fmt: skip


@pytest.mark.parametrize("evict_by", [None, "row", "task", "episode"])
@pytest.mark.parametrize("layout", ["rows", "chunks"])
def test_draws_are_those_of_a_process_that_remembers_nothing(schema_url, layout, evict_by):
    rng = np.random.default_rng([len(layout), len(evict_by or "")])
    settings = {} if evict_by is None else {"max_capacity": 2_000, "evict_by": evict_by}
    world = World(schema_url, layout, rng, **settings)
    for _ in range(8):
        world.buffer.extend(world.columns(250))
    world.buffer.flush()
    n_remembered = 0
    for _ in range(9):
        for change in rng.choice(len(CHANGES), rng.integers(0, 3)):
            CHANGES[change](world)
        world.check()
        world.check(OTHER_RARE, LIMIT + 0.005)
        n_remembered += remembered_conditions(world.buffer)
    assert n_remembered >= 9


@pytest.mark.parametrize("layout", ["rows", "chunks"])
def test_steps_are_drawn_that_another_writer_commits_late(buffer_url, layout):
    world = World(buffer_url, layout, np.random.default_rng(4))
    world.buffer.extend(world.columns(2_000))
    world.buffer.flush()
    stored, may_end = threading.Event(), threading.Event()

    def write(tx: Any) -> None:
        tx.extend(world.columns(50) | {"reward": np.ones(50)})
        stored.set()
        may_end.wait(60)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(world.writer.transaction, write)
        assert stored.wait(60)
        try:
            if not is_sqlite(buffer_url):  # later numbers, which are there first
                world.store()
            world.check()
            world.check()
            assert remembered_conditions(world.buffer)
        finally:
            may_end.set()
        writing.result(60)
    world.check()
    world.store()
    world.check()


def test_threads_remember_the_same_condition(buffer_url):
    world = World(buffer_url, "chunks", np.random.default_rng(5))
    for _ in range(8):
        world.store()
    world.writer.extend({"task_id": "t", **world.columns(30), "reward": np.ones(30)})
    world.writer.flush()
    ends = threading.Event()

    def draw(seed: int) -> int:
        n = 0
        while not ends.is_set() or not n:
            world.drawn(world.buffer, seed, RARE)
            n += 1
        return n

    with ThreadPoolExecutor(3) as pool:
        draws = [pool.submit(draw, seed) for seed in range(3)]
        try:
            for change in (World.store, World.annotate, World.delete, World.quarantine) * 3:
                change(world)
        finally:
            ends.set()
        assert all(draw.result(60) for draw in draws)
    world.check()


def test_conditions_on_the_clock_or_with_an_index_are_not_remembered(buffer_url):
    world = World(buffer_url, "chunks", np.random.default_rng(6))
    world.buffer.extend(world.columns(2_000))
    world.buffer.flush()
    for condition in (
        QueryBuilder().eq("status", "running"),
        QueryBuilder().nested(QueryBuilder().eq("task_id", "1")).and_().gt("reward", LIMIT),
        QueryBuilder().lt("reward", LIMIT),
    ):
        world.buffer.sample(300, condition=condition, sampler=RandomSampler(replace=True))
    assert remembered_conditions(world.buffer) == 0


def test_a_dropped_buffer_is_named_by_a_draw_with_a_condition(buffer_url):
    world = World(buffer_url, "chunks", np.random.default_rng(9))
    world.buffer.extend(world.columns(2_000))
    world.buffer.flush()
    world.check()
    ReplayBuffer.drop(buffer_url, world.buffer.name)
    for condition in (RARE, OTHER_RARE):
        with pytest.raises(BufferNotFoundError):
            world.buffer.sample_arrays(64, condition=condition)


def test_few_conditions_are_remembered_those_used_last(buffer_url):
    world = World(buffer_url, "chunks", np.random.default_rng(7))
    world.buffer.extend(world.columns(2_000))
    world.buffer.flush()
    for grade in range(8):
        rare = QueryBuilder().eq("grade", grade).build()
        world.buffer.sample_arrays(64, condition=rare)
    assert 1 < remembered_conditions(world.buffer) < 8


def test_a_step_that_does_not_match_any_more_is_never_drawn(buffer_url):
    """Plain SQL has annotated it, which the change log does not say."""
    world = World(buffer_url, "chunks", np.random.default_rng(8))
    world.buffer.extend(world.columns(2_000))
    world.buffer.flush()
    world.annotate()
    world.check()
    matching = [seq for seq, reward in world.steps().items() if reward > LIMIT]
    number = buffer_id(buffer_url)
    key, value = ("key, ", f"{number} << 40 | {{0}}, ") if is_sqlite(buffer_url) else ("", "")
    for seq in matching[::2]:
        run(buffer_url, f"DELETE FROM labels WHERE seq = {seq}")
        run(
            buffer_url,
            f"INSERT INTO labels ({key}buffer_id, seq, reward_t) "
            f"VALUES ({value.format(seq)}{number}, {seq}, 0.5)",
        )
    for seed in range(5):
        drawn = world.drawn(world.buffer, seed, RARE)
        assert len(drawn) == 256
        assert set(drawn) <= set(matching[1::2])


def test_the_keys_of_a_condition_with_too_many_steps_are_read_once(buffer_url):
    world = World(buffer_url, "chunks", np.random.default_rng(9))
    world.buffer.extend(world.columns(20_000))
    world.buffer.flush()
    noted = []
    with remembering_in_small_buffers(most=4):
        for _ in range(3):
            with selects(world.buffer) as statements:
                world.buffer.sample(64, condition=RARE, sampler=RandomSampler(replace=False))
            noted.append(any("random()" in statement for statement in statements))
    assert noted == [False, True, True]
    assert remembered_conditions(world.buffer) == 0
