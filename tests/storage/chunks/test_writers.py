"""Writers of one buffer: what numbers steps are given, and which values are taken."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from threading import Barrier, Event

import numpy as np
import pytest
from sqlalchemy import make_url

from sqlbuffer import LatestSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.storage.buffers.catalog import disagreements
from tests.support.processes import wait_until
from tests.support.sql import connected, run, scalar

FIELDS = {"obs": ("float32", (2,))}
TURNS, N_WRITERS = 3, 8
SIZES = (1, 300, 7)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
SPANS = "SELECT first_seq, first_seq + n_steps - 1 FROM chunks ORDER BY first_seq"


def obs(n, start=0):
    return {"obs": np.arange(2.0 * start, 2 * (start + n)).reshape(n, 2), "reward": np.ones(n)}


def extend(buffer, name):
    """Store batches of two tasks; return the number of each id."""
    numbers = {}
    for turn in range(TURNS):
        n = SIZES[turn % 3]
        ids = [f"{name}_{turn}_{i}" for i in range(n)]
        tasks = [f"{name}_{i % 2}" for i in range(n)]
        numbers |= dict(zip(ids, buffer.extend(obs(n), id=ids, task_id=tasks).seqs, strict=True))
    return numbers


def write_episodes(buffer, name):
    """Write an episode step by step and one as columns, each turn; return the numbers."""
    numbers = {}
    for turn in range(TURNS):
        with buffer.episode(episode_id=f"{name}_{turn}") as episode:
            for own in obs(SIZES[turn % 3])["obs"]:
                episode.append(obs=own)
        columns = obs(SIZES[turn % 3])
        key = f"{name}_whole_{turn}"
        seqs = buffer.store_episode(columns, episode_id=key).seqs
        numbers |= {(key, t): seq for t, seq in enumerate(seqs)}
    return numbers


def add(buffer):
    """Store steps one at a time; return the number of each id."""
    ids = [f"single_{turn}_{step}" for turn in range(TURNS) for step in range(5)]
    return {id_: int(buffer.add(**step_of(i), id=id_).seqs[0]) for i, id_ in enumerate(ids)}


def step_of(i):
    return {"obs": obs(1, i)["obs"][0], "task_id": "single", "step": i}


@pytest.mark.thorough
def test_no_step_has_the_number_of_another_among_8_writers(buffer_url):
    barrier = Barrier(N_WRITERS)

    def work(number):
        with ReplayBuffer(buffer_url) as own:
            barrier.wait(60)
            if not number:
                return add(own)
            return (extend if number % 2 else write_episodes)(own, f"w{number}")

    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=1_000.0) as buffer:
        with ThreadPoolExecutor(N_WRITERS) as threads:
            found = list(threads.map(work, range(N_WRITERS)))
        given = {id_: seq for numbers in found for id_, seq in numbers.items()}
        spans = run(buffer_url, SPANS)
        assert all(last < first for (_, last), (first, _) in pairwise(spans))
        n_steps = sum(last - first + 1 for first, last in spans)
        of_writer = sum(SIZES[turn % 3] for turn in range(TURNS))
        assert n_steps == len(buffer) == 4 * of_writer + 3 * 2 * of_writer + 5 * TURNS
        rows = list(buffer)
        assert len({row.id for row in rows}) == n_steps
        stored = {row.id: row.seq for row in rows}
        stored |= {(row.exp_meta.episode_id, row.exp_meta.step): row.seq for row in rows}
        assert {id_: stored[id_] for id_ in given} == given
        assert run(buffer_url, "SELECT count(*) FROM experiences") == [(0,)]


def test_steps_are_grouped_and_their_numbers_are_in_the_order_of_the_input(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        keys = {"task_id": [*"abacab"], "agent_id": [*"xxxxyx"], "id": [*"012345"]}
        result = buffer.extend(obs(6), **keys)
        # By task and agent: a x, b x, c x, a y.
        assert result.seqs.tolist() == [1, 3, 2, 5, 6, 4]
        assert [row.id for row in buffer] == [*"021534"]
        assert run(buffer_url, "SELECT n_steps FROM chunks ORDER BY first_seq") == [
            (2,), (2,), (1,), (1,),
        ]  # fmt: skip
        drawn = buffer.sample_arrays(64)
        by_seq = dict(zip(drawn.info["seq"].tolist(), drawn["obs"][:, 0].tolist(), strict=True))
        assert by_seq == {1: 0.0, 2: 4.0, 3: 2.0, 4: 10.0, 5: 6.0, 6: 8.0}
        again = buffer.extend(obs(6), **keys)
        assert (again.duplicates, again.seqs.tolist()) == (6, result.seqs.tolist())


def test_300_tasks_in_one_batch_are_300_chunks(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=400) as buffer:
        tasks = [f"t{i % 300}" for i in range(600)]
        assert buffer.extend(obs(600), task_id=tasks).seqs[:2].tolist() == [1, 3]
        assert len(buffer) == 400
        assert len(buffer.get_by_task_id("t0")) == 0
        assert [row.seq for row in buffer.get_by_task_id("t299")] == [599, 600]


def test_a_collector_that_is_started_again_stores_each_step_once(buffer_url):
    """It writes its episode again from the beginning, with other cuts between its chunks."""
    columns = obs(500)["obs"]
    first = ReplayBuffer(buffer_url, fields=FIELDS, flush_s=1_000.0)
    episode = first.episode("t", episode_id="e")
    for own in columns[:300]:
        episode.append(obs=own)
    first.flush()
    seqs = [row.seq for row in first]
    with ReplayBuffer(buffer_url) as second:
        result = second.store_batch(list(second))
        assert (result.inserted, result.duplicates) == (0, 300)
        with pytest.raises(SQLBufferError):
            second.episode("t", episode_id="e")
    for own in columns[300:]:
        episode.append(obs=own)
    episode.end(obs=columns[-1])
    again = first.store_episode({"obs": columns}, episode_id="e", task_id="t")
    assert (again.inserted, again.duplicates, again.conflicts) == (0, 500, 0)
    assert again.seqs.tolist()[:300] == seqs
    assert len(first) == 500
    first.close()


def test_what_a_stranger_gives_is_refused_and_nothing_is_written(buffer_url):
    given = {"obs": np.zeros((2, 2))}
    refused = [
        ({"obs": [[0, 0], None]}, {}),
        ({"obs": np.zeros((2, 3))}, {}),
        ({"obs": [["a", "b"]]}, {}),
        ({"obs": [[1e300, 0.0]]}, {}),
        ({"obs": [[1, 2], [1]]}, {}),
        ({**given, "reward": [None, 1.0]}, {}),
        ({**given, "state": [1]}, {}),
        (given, {"task_id": "a\0b"}),
        (given, {"id": ["a", "b\0"]}),
        (given, {"id": [None, "b"]}),
        (given, {"session_id": "\ud800"}),
        (given, {"step": [1.5, 2]}),
        (given, {"step": [2**63, 1]}),
        (given, {"task_id": [*"abc"]}),
    ]
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        for arrays, keys in refused:
            with pytest.raises(SQLBufferError):
                buffer.extend(arrays, **keys)
        assert buffer.extend({"obs": []}).inserted == 0
        assert run(buffer_url, "SELECT count(*) FROM chunks") == [(0,)]


def test_values_at_the_limits_come_back(buffer_url):
    odd = [np.nan, np.inf, -np.inf, -0.0]
    steps = [2**63 - 1, -(2**63), 0, 1]
    ids = ["ä", "🎉", "e/0", "'; --"]
    with ReplayBuffer(buffer_url, fields={"x": "float64"}) as buffer:
        result = buffer.extend({"x": odd, "reward": odd}, id=ids, step=steps, task_id="täsk🎉")
        assert result.seqs.tolist() == [1, 2, 3, 4]
        rows = list(buffer)
        assert [row.id for row in rows] == ids
        assert [row.exp_meta.step for row in rows] == steps
        assert np.array(odd).tobytes() == np.array([r.exp_data.reward_t for r in rows]).tobytes()
        drawn = buffer.sample_arrays(64)
        places = drawn.info["seq"] - 1
        assert drawn["x"].tobytes() == np.array(odd)[places].tobytes()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_step_larger_than_a_chunk_is_stored(buffer_url, compression):
    frames = np.random.default_rng(0).integers(0, 255, (3, 700_000), dtype=np.uint8)
    fields = {"frame": ("uint8", (700_000,)), "obs": ("float32", (2,))}
    with ReplayBuffer(buffer_url, fields=fields, compression=compression) as buffer:
        columns = {"frame": frames, **obs(3)}
        assert buffer.store_episode(columns, episode_id="e", final={"obs": [0, 0]}).inserted == 3
        assert buffer.store_episode(columns, episode_id="e").duplicates == 3
        drawn = buffer.sample_transitions(8, n_step=2, fields=["frame", "obs"])
        assert all((drawn["frame"] == frames[drawn.info["seq"] - 1]).all(axis=1))


# A buffer keeps its layout from the day it is made.


def test_a_change_of_settings_leaves_the_layout(buffer_url):
    obs = np.arange(20, dtype=np.float32).reshape(10, 2)
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=50) as buffer:
        buffer.extend({"obs": obs})
    with ReplayBuffer(buffer_url) as buffer:
        buffer.resize(40)
        assert len(buffer) == 10
    with ReplayBuffer(buffer_url, fields=FIELDS) as again:
        again.extend({"obs": obs})
        assert len(again) == again.size() == 20
        found = again.sample_arrays(20, sampler=LatestSampler())["obs"]
        np.testing.assert_array_equal(found[::-1], np.concatenate([obs, obs]))
    with connected(buffer_url) as connection:
        assert disagreements(connection) == {"default": []}


def test_a_copy_of_a_file_goes_on_as_the_original(tmp_path, sqlite_url):
    settings = {"fields": FIELDS, "max_capacity": 50, "priorities": True}
    with ReplayBuffer(sqlite_url, create=True, **settings) as original:
        for start in (0, 30):
            original.extend(
                {"obs": np.full((30, 2), start)}, id=[f"{start}_{i}" for i in range(30)]
            )
        original.annotate([59], reward=2.0)
        original.delete(QueryBuilder().eq("seq", 58))
        copied = tmp_path / "copy.db"
        with (
            closing(sqlite3.connect(make_url(sqlite_url).database)) as source,
            closing(sqlite3.connect(copied)) as target,
        ):
            source.backup(target)
        with ReplayBuffer(f"sqlite:///{copied}") as copy:
            assert list(copy) == list(original)
            for buffer in (original, copy):
                again = buffer.extend({"obs": np.full((2, 2), 30.0)}, id=["30_0", "new"], step=0)
                assert (again.duplicates, again.seqs.tolist()) == (1, [31, 61])
            assert [row.id for row in copy] == [row.id for row in original]
            assert len(copy) == len(original) == 49
            drawn = copy.sample_arrays(64)
            assert (drawn["obs"][:, 0] == np.where(drawn.info["seq"] > 30, 30, 0)).all()


@pytest.mark.parametrize("gives_steps", [False, True], ids=["made", "given"])
def test_steps_follow_those_of_a_writer_that_was_waited_for(postgres_url, gives_steps):
    """Both append to one episode: the second sees the first one's chunk only after the wait."""
    begun = Event()

    def append(target, n, first):
        steps = {"step": np.arange(first, first + n)} if gives_steps else {}
        return target.extend(obs(n, first), episode_id="e", task_id="t", **steps)

    with (
        ReplayBuffer(postgres_url, fields=FIELDS, create=True) as buffer,
        ReplayBuffer(postgres_url) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        append(buffer, 2, 0)

        def work(tx):
            append(tx, 3, 2)
            begun.set()
            wait_until(lambda: scalar(postgres_url, WAITING), "the second writer waits")

        first = pool.submit(buffer.transaction, work)
        assert begun.wait(60)
        second = pool.submit(append, other, 2, 5)
        first.result(60)
        assert second.result(60).inserted == 2
        rows = buffer.get_by_task_id("t")
        assert [row.exp_meta.step for row in rows] == list(range(7))
        assert [row.fields["obs"][0] for row in rows] == [2.0 * i for i in range(7)]
        assert run(postgres_url, "SELECT t, n_steps FROM chunks ORDER BY t") == [
            (0, 2),
            (2, 3),
            (5, 2),
        ]
