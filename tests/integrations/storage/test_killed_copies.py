"""Copies that are killed again and again, next to writers, are exact once they are complete."""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.copies import source as source_of_copies
from tests.conftest import KINDS, MakeDatabaseUrl
from tests.support.processes import TIMEOUT_S, wait_until
from tests.support.sql import buffer_id, run, scalar
from tests.support.views import shown

pytestmark = pytest.mark.combinations

KILLS = 5
EPISODES, STEPS = 100, 40
FIELDS = {"obs": ("float32", (3,)), "tokens": ("int64", (-1,))}
OF_STEPS = ("v_experiences", "v_priorities", "v_labels", "v_quarantine")
# Each database once as the source and once as the target.
WAYS = [(here, there) for here in KINDS for there in KINDS if here != there]


@pytest.fixture(params=WAYS, ids=["-".join(way) for way in WAYS])
def urls(request: pytest.FixtureRequest, make_database_url: MakeDatabaseUrl) -> tuple[str, str]:
    here, there = request.param
    return make_database_url(here, schema=True), make_database_url(there, schema=True)


@pytest.fixture(params=[None, FIELDS], ids=["rows", "chunks"])
def fields(request: pytest.FixtureRequest) -> Any:
    return request.param


def filled(url: str, fields: Any, capacity: int) -> ReplayBuffer:
    buffer = ReplayBuffer(
        url, "source", create=True, fields=fields, priorities=True, max_capacity=capacity
    )
    for i in range(EPISODES):
        store(buffer, "first", i)
    seqs = [row.seq for row in buffer]
    buffer.annotate(seqs[::9], reward=-1.0, version=2)
    buffer.update_priorities(seqs[::2], [float(seq) for seq in seqs[::2]])
    buffer.quarantine(seqs[5:50], reason="why")
    return buffer


def store(buffer: ReplayBuffer, writer: str, i: int) -> None:
    """Store an episode; its values say which one it is."""
    rng = np.random.default_rng(i)
    values: dict[str, Any] = {"reward": rng.normal(size=STEPS)}
    if buffer.fields:
        values["obs"] = rng.normal(size=(STEPS, 3)).astype(np.float32)
        values["tokens"] = [np.arange(n % 4) for n in range(STEPS)]
    else:
        values["state"] = [{"of": f"{writer}-{i}-{n}", "text": "ß" * (n % 7)} for n in range(STEPS)]
    buffer.store_episode(values, episode_id=f"{writer}-{i}", task_id=f"{writer}-{i % 10}")


def write(url: str, writer: str, stop: Event) -> None:
    """Store episodes, whole ones and ones that grow, until told to stop."""
    with ReplayBuffer(url, "source", create=False) as buffer:
        i = 0
        while not stop.is_set():
            store(buffer, writer, i)
            grow(buffer, f"{writer}-grown-{i}")
            i += 1


def grow(buffer: ReplayBuffer, name: str) -> None:
    episode = buffer.episode("grown", episode_id=name)
    for n in range(6):
        values = {"obs": np.full(3, n), "tokens": np.arange(n)} if buffer.fields else {"state": n}
        episode.append(**values, reward=float(n))
        if n == 3:
            buffer.flush()
    episode.finish()


def copy(source: str, target: str) -> None:
    """Copy in many small batches."""
    source_of_copies.MOST_ROWS, source_of_copies.MOST_CHUNKS = 40, 1
    here = ReplayBuffer(source, "source", create=False)
    here.copy_to(ReplayBuffer(target, "copy", create=False))


@contextmanager
def writers(url: str) -> Iterator[None]:
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    processes = [context.Process(target=write, args=(url, f"w{i}", stop)) for i in range(2)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(TIMEOUT_S)
    assert [process.exitcode for process in processes] == [0, 0]


def begin(source: str, target: str) -> None:
    """Kill a copy that has just begun."""
    assert _copy_until(source, target, -1)


def copied_seq(target: str) -> int:
    found = run(target, "SELECT copied_seq FROM copies WHERE finished_at IS NULL")
    return -1 if not found else int(found[0][0])


def _copy_until(source: str, target: str, seq: int) -> bool:
    """Copy in another process, and kill it once it is beyond a number; return True if it was not
    complete then.
    """
    process = multiprocessing.get_context("fork").Process(target=copy, args=(source, target))
    process.start()
    wait_until(lambda: copied_seq(target) > seq or not process.is_alive(), "the copy goes on")
    process.kill()
    process.join(TIMEOUT_S)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def kill_copies(source: str, target: str) -> None:
    n_killed = 0
    # Some before they have copied anything. On a busy machine one gets far before it is killed.
    while n_killed < KILLS and _copy_until(
        source, target, -2 if n_killed % 5 == 4 else copied_seq(target)
    ):
        n_killed += 1
    assert n_killed >= KILLS // 4


def finish(source: str, target: str) -> None:
    process = multiprocessing.get_context("fork").Process(target=copy, args=(source, target))
    process.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 0


@pytest.mark.each_value
def test_a_ring_that_wraps_while_its_copy_is_killed_is_copied_as_it_was(
    urls: tuple[str, str], fields: Any
) -> None:
    source, target = urls
    buffer = filled(source, fields, capacity=3_000)
    ReplayBuffer(target, "copy", create=True, config=buffer.config).close()
    before = shown(source, "source")
    buffer.close()
    begin(source, target)

    with writers(source):
        kill_copies(source, target)
        newest = "SELECT high_seq FROM v_windows WHERE buffer = 'source'"
        wait_until(lambda: scalar(source, newest) > 8_000, "the ring has wrapped")
        finish(source, target)

    assert shown(target, "copy") == before
    with ReplayBuffer(source, "source", create=False) as wrapped:
        held = "SELECT count(*) FROM step_numbers WHERE buffer_id = :id"
        numbers = count()

        def has_left() -> bool:
            # An eviction removes a limited number of rows at a time.
            store(wrapped, "last", next(numbers))
            n_held = scalar(source, held, id=buffer_id(source, "source"))
            assert n_held >= len(wrapped)
            return n_held <= len(wrapped) + 256 + STEPS

        wait_until(has_left, "what was held for the copy has left")


@pytest.mark.each_value
def test_a_copy_that_begins_and_is_killed_next_to_writers_has_a_range_of_its_source(
    urls: tuple[str, str], fields: Any
) -> None:
    source, target = urls
    buffer = filled(source, fields, capacity=1_000_000)
    ReplayBuffer(target, "copy", create=True, config=buffer.config).close()
    buffer.close()

    with writers(source):
        kill_copies(source, target)
        finish(source, target)

    ((low, high),) = run(target, "SELECT low_seq, high_seq FROM copies")
    assert high >= EPISODES * STEPS
    theirs, ours = shown(source, "source"), shown(target, "copy")
    for view in OF_STEPS:
        assert ours[view] == [row for row in theirs[view] if low < row["seq"] <= high]
    steps = sorted(theirs["v_experiences"], key=lambda row: row["seq"])
    last = {row["episode_id"]: row["seq"] for row in steps}
    copied = {row["episode_id"] for row in steps if row["seq"] <= high}
    expected = {row["episode_id"]: row for row in theirs["v_episodes"]}
    assert {row["episode_id"] for row in ours["v_episodes"]} >= copied
    for row in ours["v_episodes"]:
        if last.get(row["episode_id"], 0) > high:
            assert (row["status"], row["length"], row["last_seq"]) == ("open", None, None)
        elif row["status"] != "open":
            assert row == expected[row["episode_id"]]
    next_seqs = run(source, "SELECT max(seq) FROM v_experiences WHERE buffer = 'source'")
    assert next_seqs[0][0] > high
