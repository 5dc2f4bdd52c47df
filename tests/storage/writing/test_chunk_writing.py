"""Steps of chunks are stored exactly once: sent again, by a second writer, under ids of users."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.encoding.column_chunks import StepPacker, pack_steps
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.errors import EpisodeExistsError, OutOfOrderError, StorageError
from sqlbuffer.storage.writing.chunks import ChunkBatch
from tests.support.sql import STEPS, run, scalar

FIELDS = {"obs": ("float32", (2,)), "action": "int64"}
NEVER_S = 1_000.0


@pytest.fixture
def make(buffer_url):
    opened = []

    def open_(**settings):
        buffer = ReplayBuffer(buffer_url, fields=FIELDS, flush_s=NEVER_S, **settings)
        opened.append(buffer)
        return buffer

    yield open_
    for buffer in opened:
        buffer.close()


def step(t, **more):
    return {"obs": np.full(2, t, np.float32), "action": t, "reward": 0.5, **more}


def columns(*actions):
    return {
        "obs": [[a, a] for a in actions],
        "action": list(actions),
        "reward": [0.5] * len(actions),
    }


def send(buffer, first_t, after_t, key="e", plus=0):
    """Store steps of an episode as one packed chunk."""
    store = buffer._store
    packer = StepPacker(store.layout, EpisodeStart(key, "t", "a"), "same_kind", False)
    steps = [packer.encode(t, step(t + plus)) for t in range(first_t, after_t)]
    packed = pack_steps(store.layout, steps)
    return store.chunk_writer.store(ChunkBatch(packed.chunks, packed.order))


def counts(result):
    return result.inserted, result.duplicates, result.conflicts


def chunks(url):
    return run(url, "SELECT t, n_steps FROM chunks ORDER BY first_seq")


def test_a_batch_whose_acknowledgement_is_lost_is_sent_again_as_it_was(buffer_url, make):
    buffer = make()
    queue = buffer._writer._queue
    write, sent = queue._write, []

    def losing(batch, once):
        sent.append((batch, once))
        result = write(batch, once)
        if len(sent) == 1:
            raise StorageError("no answer")
        return result

    queue._write = losing
    episode = buffer.episode(episode_id="e")
    for t in range(3):
        episode.append(**step(t))
    with pytest.raises(StorageError, match="no answer"):
        buffer.flush()
    assert (queue.n_waiting, queue.is_empty) == (3, False)
    episode.append(**step(3))
    episode.end()
    assert all(first is again for first, again in zip(*sent[:2], strict=True))
    assert len(sent) == 3
    assert chunks(buffer_url) == [(0, 3), (3, 1)]
    assert [row.exp_meta.step for row in buffer] == [0, 1, 2, 3]
    found = run(buffer_url, "SELECT status, length, first_seq, last_seq FROM v_episodes")
    assert found == [("complete", 4, 1, 4)]


def test_of_an_overlap_the_rest_is_stored(buffer_url, make):
    buffer = make()
    assert counts(send(buffer, 0, 4)) == (4, 0, 0)
    again = send(buffer, 2, 7)
    assert counts(again) == (3, 2, 0)
    assert again.seqs.tolist() == [3, 4, 5, 6, 7]
    assert counts(send(buffer, 0, 7)) == (0, 7, 0)
    assert chunks(buffer_url) == [(0, 4), (4, 3)]
    assert scalar(buffer_url, "SELECT next_t FROM episodes") == 7
    assert [row.exp_meta.step for row in buffer] == list(range(7))


def test_other_steps_of_an_episode_that_is_stored_are_conflicts(make):
    buffer = make()
    send(buffer, 0, 3)
    result = send(buffer, 1, 5, plus=1)
    assert counts(result) == (2, 0, 2)
    assert result.conflicting_ids == ("e/1", "e/2")
    assert result.seqs.tolist() == [2, 3, 4, 5]


def test_steps_behind_a_gap_are_conflicts(buffer_url, make):
    buffer = make()
    send(buffer, 0, 3)
    result = send(buffer, 4, 6)
    assert counts(result) == (0, 0, 2)
    assert result.conflicting_ids == ("e/4", "e/5")
    assert scalar(buffer_url, "SELECT next_t FROM episodes") == 3


def test_steps_that_have_left_or_were_deleted_are_stored_once(make):
    buffer = make(max_capacity=3)
    send(buffer, 0, 6)
    result = send(buffer, 0, 6)
    assert counts(result) == (0, 6, 0)
    assert result.seqs.tolist() == [-1, -1, -1, 4, 5, 6]
    assert buffer.delete(QueryBuilder().eq("seq", 5).build()) == 1
    assert send(buffer, 3, 7).seqs.tolist() == [4, -1, 6, 7]


def test_an_episode_goes_on_after_the_buffer_was_cleared(buffer_url, make):
    buffer = make()
    episode = buffer.episode(episode_id="e")
    for t in range(3):
        episode.append(**step(t))
    buffer.flush()
    buffer.clear()
    episode.append(**step(3))
    episode.end()
    assert [row.exp_meta.step for row in buffer] == [3]
    assert run(buffer_url, "SELECT status, length FROM v_episodes") == [("complete", 4)]


def test_a_writer_is_told_of_another_one_with_its_episode(make):
    buffer = make()
    episode = buffer.episode("t", episode_id="e")
    episode.append(**step(0))
    buffer.flush()
    send(buffer, 1, 3, plus=5)
    episode.append(**step(1))
    with pytest.raises(EpisodeExistsError, match=r"1 steps are not stored, .*: e/1; another wri"):
        buffer.flush()


def test_ids_of_users_make_steps_duplicates_or_conflicts(buffer_url, make):
    buffer = make()
    first = buffer.extend(columns(1, 2, 2), step=0, id=["a", "b", "b"])
    assert counts(first) == (2, 1, 0)
    assert first.seqs.tolist() == [1, 2, 2]
    again = buffer.extend(columns(9, 3, 2), step=0, id=["a", "c", "b"])
    assert counts(again) == (1, 1, 1)
    assert (again.conflicting_ids, again.seqs.tolist()) == (("a",), [1, 3, 2])
    assert run(buffer_url, f"SELECT seq, id FROM {STEPS} e ORDER BY seq") == [
        (1, "a"), (2, "b"), (3, "c"),
    ]  # fmt: skip


def test_the_ids_of_steps_that_have_left_or_were_deleted_are_free(make):
    buffer = make(max_capacity=3)
    buffer.extend(columns(1, 2, 3, 4), step=0, id=list("abcd"))
    assert buffer.delete(QueryBuilder().eq("seq", 3).build()) == 1
    result = buffer.extend(columns(1, 2, 3, 4), step=0, id=list("abcd"))
    assert counts(result) == (2, 2, 0)
    assert result.seqs.tolist() == [5, 2, 6, 4]


def test_ids_that_the_library_made_are_known(make):
    buffer = make()
    send(buffer, 0, 3)
    buffer.extend(columns(7, 8), step=0)
    ids = [row.id for row in buffer]
    result = buffer.extend(columns(7, 8, 9), step=0, id=[ids[3], ids[4], ids[1]])
    assert counts(result) == (0, 2, 1)
    assert result.seqs.tolist() == [4, 5, 2]


def test_a_step_before_a_stored_one_of_its_episode_is_refused(buffer_url, make):
    buffer, of_episode = make(), {"task_id": "t", "episode_id": "e"}
    buffer.extend(columns(1, 2), step=[1, 4], **of_episode)
    buffer.extend(columns(3), step=[9], task_id="t", episode_id="other")
    message = "episode 'e' of task 't': step {} comes after step {}"
    late = {
        (3, 5): message.format(3, "4, which is stored;"),
        (5, 7, 6): message.format(6, "7;"),
    }
    for steps, expected in late.items():
        with pytest.raises(OutOfOrderError, match=expected):
            buffer.extend(columns(*steps), step=steps, **of_episode)
    with pytest.raises(OutOfOrderError, match=late[3, 5]):
        buffer.extend(columns(3, 5), step=[5, 3], agent_id=["a", "b"], **of_episode)
    with pytest.raises(OutOfOrderError, match="step 1 comes after step 3;"):
        buffer.store_episode({**columns(1, 2), "step": [3, 1]}, episode_id="new")
    assert len(buffer) == 3
    assert scalar(buffer_url, "SELECT count(*) FROM episodes") == 2
    # Agents take turns, and may repeat a step.
    agents = {"agent_id": ["x", "y", "x", "y"], "step": [4, 4, 5, 5]}
    assert buffer.extend(columns(4, 4, 5, 5), **agents, **of_episode).seqs.tolist() == [4, 5, 6, 7]
    steps = [(r.exp_meta.agent_id, r.exp_meta.step) for r in buffer if r.seq > 3]
    assert steps == [("x", 4), ("y", 4), ("x", 5), ("y", 5)]
    assert make(name="copy").store_batch(list(buffer)).inserted == 7
    # A deleted step is not stored any more.
    assert buffer.delete(QueryBuilder().eq("exp_meta.step", 5).build()) == 2
    assert buffer.extend(columns(4), step=[4], **of_episode).inserted == 1


def test_rows_of_an_episode_come_in_any_order(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for step in (2, 1):
            assert buffer.add(step=step, episode_id="e").inserted == 1


@pytest.mark.thorough
def test_writers_of_the_same_steps_of_an_episode_store_each_once(make):
    buffers = [make() for _ in range(3)]

    def store(buffer):
        return [
            buffer.extend(
                columns(*range(n, n + 8)), step=list(range(n, n + 8)), task_id="t", episode_id="e",
                id=[f"e/{i}" for i in range(n, n + 8)],
            )
            for n in range(0, 33, 4)
        ]  # fmt: skip

    with ThreadPoolExecutor(3) as pool:
        results = [result for own in pool.map(store, buffers) for result in own]
    assert (sum(r.inserted for r in results), sum(r.conflicts for r in results)) == (40, 0)
    assert [row.exp_meta.step for row in buffers[0]] == list(range(40))


def test_writers_of_the_same_ids_store_each_step_once(buffer_url, make):
    buffers = [make() for _ in range(3)]
    ids = [f"i{n}" for n in range(40)]

    def store(buffer):
        return [
            buffer.extend(columns(*range(n, n + 8)), step=0, id=ids[n : n + 8])
            for n in range(0, 33, 4)
        ]

    with ThreadPoolExecutor(3) as pool:
        results = [result for own in pool.map(store, buffers) for result in own]
    assert sum(result.inserted for result in results) == 40
    assert sum(result.conflicts for result in results) == 0
    assert len(buffers[0]) == 40
    assert run(buffer_url, f"SELECT count(DISTINCT id), count(*) FROM {STEPS} e") == [(40, 40)]


@pytest.mark.thorough
def test_writers_of_the_same_episode_store_it_once(buffer_url, make):
    buffers = [make() for _ in range(3)]

    def store(buffer):
        return [
            buffer.store_episode(columns(*range(n, n + 5)), episode_id=f"e{n}") for n in range(20)
        ]

    with ThreadPoolExecutor(3) as pool:
        results = [result for own in pool.map(store, buffers) for result in own]
    assert sum(result.inserted for result in results) == 100
    assert sum(result.duplicates for result in results) == 200
    found = run(buffer_url, "SELECT DISTINCT length, last_seq - first_seq FROM v_episodes")
    assert found == [(5, 4)]
