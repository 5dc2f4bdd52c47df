"""Episodes that were read whole are kept in memory, and never shown when they are not so now."""

import pickle
from contextlib import contextmanager

import numpy as np
import pytest

import sqlbuffer
from sqlbuffer.compat.memmap import slots
from sqlbuffer.compat.memmap.slots import CacheKey, EpisodeCache
from tests.support.processes import run_at_once
from tests.support.statements import selects

pytest.importorskip("torch")

STEPS = 40
ROW_BYTES = 4


@pytest.fixture
def buffer(make):
    buffer = make(fields={"x": "float"}, meta_fields={"m": "int"}, max_timesteps=STEPS)
    for first in (0, 100, 200):
        store(buffer, first)
    return buffer


def store(buffer, first, n=STEPS):
    buffer.store_episode(x=np.arange(first, first + n, dtype="f4"))


def episodes_of(buffer):
    """Return the episodes that a data loader reads, as lists, by slot."""
    return [item[: int(n)].tolist() for batch in buffer.dataloader(3) for item, n in
            zip(batch["x"], batch["_lens"], strict=True)]  # fmt: skip


def steps(first, n=STEPS):
    return list(map(float, range(first, first + n)))


@contextmanager
def runs_read():
    """Note which runs of steps the database is asked for."""
    original, noted = slots.ReplaceableSteps.spans, []

    def spans(steps, runs):
        noted.extend(runs)
        return original(steps, runs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots.ReplaceableSteps, "spans", spans)
        yield noted


def test_an_episode_is_read_once(buffer):
    with runs_read() as noted:
        first = episodes_of(buffer)
        assert len({episode for episode, *_ in noted}) == 3
        assert [run[1:] for run in noted] == [(0, STEPS - 1)] * 3
        assert episodes_of(buffer) == episodes_of(buffer) == first
        assert len(noted) == 3
    assert first == [steps(0), steps(100), steps(200)]


def test_a_batch_of_kept_episodes_is_one_question(make):
    buffer = make(fields={"x": "float"}, meta_fields=None, max_timesteps=STEPS)
    for first in (0, 100, 200):
        store(buffer, first)
    loader = buffer.dataloader(3, shuffle=True)
    next(iter(loader))
    with selects(buffer._core) as noted:
        next(iter(loader))
    (question,) = noted
    assert "documents" in question


def test_however_many_slots_may_be_looked_at(make, monkeypatch):
    buffer = make(fields={"x": "float"}, meta_fields=None, max_timesteps=STEPS)
    for first in (0, 100, 200):
        store(buffer, first)
    monkeypatch.setattr(slots, "MOST_AHEAD", 1)
    assert episodes_of(buffer) == episodes_of(buffer) == [steps(0), steps(100), steps(200)]


def test_what_is_kept_is_not_what_a_batch_is_made_of(buffer):
    (batch,) = buffer.dataloader(3)
    batch["x"][...] = -1
    (batch,) = buffer.dataloader(3)
    batch["x"][...] = -1
    assert episodes_of(buffer) == [steps(0), steps(100), steps(200)]


@pytest.mark.thorough
def test_values_that_were_changed_are_read_again(buffer, reopen):
    episodes_of(buffer)
    other = reopen()
    other.data["x"][1, 7] = -7.0
    expected = steps(100)
    expected[7] = -7.0
    assert episodes_of(buffer)[1] == expected
    buffer.update(1, x=np.array([-1.0, -2.0], "f4"))
    expected[:2] = [-1.0, -2.0]
    assert episodes_of(buffer)[1] == episodes_of(other)[1] == expected


@pytest.mark.thorough
def test_another_process_may_change_them(buffer, buffer_url):
    episodes_of(buffer)
    run_at_once([(change_in_process, buffer_url)])
    assert episodes_of(buffer)[2][:2] == [-3.0, 201.0]


def change_in_process(url):
    from sqlbuffer.compat.memmap import ReplayBuffer

    other = ReplayBuffer.from_folder(url)
    other.data["x"][2, 0] = -3.0
    other.close()


def test_an_episode_that_is_longer_by_hand_is_read_with_its_tail(make):
    buffer = make(fields={"x": "float"}, meta_fields=None, max_timesteps=STEPS)
    store(buffer, 0, 20)
    assert episodes_of(buffer) == [steps(0, 20)]
    buffer.episode_lens[0] = 22
    assert episodes_of(buffer) == [[*steps(0, 20), 0.0, 0.0]]
    buffer.data["x"][0, 21] = 9.0
    assert episodes_of(buffer) == [[*steps(0, 20), 0.0, 9.0]]
    buffer.episode_lens[0] = 20
    assert episodes_of(buffer) == [steps(0, 20)]


def test_steps_that_the_core_deletes_are_gone(buffer, buffer_url):
    episodes_of(buffer)
    with sqlbuffer.ReplayBuffer(buffer_url, name="memmap") as core:
        assert core.delete({"field": "exp_meta.step", "op": "eq", "value": 7}) == 3
    expected = steps(100)
    expected[7] = 0.0
    assert episodes_of(buffer)[1] == expected


def test_a_slot_shows_its_new_episode(make):
    buffer = make(
        fields={"x": "float"}, meta_fields=None, max_timesteps=STEPS, max_episodes=2, circular=True
    )
    store(buffer, 0)
    for first in range(100, 700, 100):
        store(buffer, first)
        assert sorted(episodes_of(buffer)) == [steps(first - 100), steps(first)]


def test_episodes_that_stay_are_not_read_again_as_others_are_stored(make):
    buffer = make(
        fields={"x": "float"}, meta_fields=None, max_timesteps=STEPS, max_episodes=3, circular=True
    )
    for first in (0, 100, 200):
        store(buffer, first)
    episodes_of(buffer)
    with runs_read() as noted:
        store(buffer, 300)
        assert episodes_of(buffer) == [steps(300), steps(100), steps(200)]
        assert [run[1:] for run in noted] == [(0, STEPS - 1)]


def test_an_open_episode_that_was_dropped_is_not_shown_as_the_next_one(make):
    buffer = make(fields={"x": "float"}, meta_fields=None, max_timesteps=STEPS)
    for first in (0, 100):
        for x in steps(first, 20):
            buffer.store(x=x)
        assert episodes_of(buffer) == [steps(first, 20)]
        buffer.timestep_index = 0
    store(buffer, 200, 20)
    assert episodes_of(buffer) == [steps(200, 20)]


def test_after_clear_the_new_episodes_are_read(buffer):
    episodes_of(buffer)
    buffer.clear()
    store(buffer, 500)
    assert episodes_of(buffer) == [steps(500)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cache_bytes", "n_read"), [(0, 6), (STEPS * ROW_BYTES - 1, 6), (2**20, 3)]
)
def test_as_much_is_kept_as_may_be(make, buffer, reopen, cache_bytes, n_read):
    other = reopen(cache_bytes=cache_bytes)
    with runs_read() as noted:
        assert episodes_of(other) == episodes_of(other) == [steps(0), steps(100), steps(200)]
        assert len(noted) == n_read


def test_a_copy_keeps_as_much(buffer, reopen):
    copy = pickle.loads(pickle.dumps(reopen(cache_bytes=7)))
    assert copy._cells_.kept.max_bytes == 7
    assert episodes_of(copy) == episodes_of(buffer)


@pytest.mark.thorough
@pytest.mark.parametrize("cache_bytes", [-1, 1.5, None, True, "1"])
def test_another_size_is_refused(make, reopen, buffer, cache_bytes):
    with pytest.raises(TypeError, match="cache_bytes is a number of bytes, 0 for none, got"):
        reopen(cache_bytes=cache_bytes)
    with pytest.raises(TypeError, match="cache_bytes is a number"):
        make(overwrite=False, cache_bytes=cache_bytes)


def test_what_was_read_longest_ago_is_forgotten_first():
    kept = EpisodeCache(30)
    of = {n: {"x": np.full(6, n, np.uint8), "y": np.zeros(4, np.uint8)} for n in range(5)}
    for n in range(3):
        kept.put(CacheKey(n, 9, (0, -1)), of[n])
    assert kept.get(CacheKey(0, 9, (0, -1))) is of[0]
    kept.put(CacheKey(3, 9, (0, -1)), of[3])
    assert [kept.get(CacheKey(n, 9, (0, -1))) for n in range(4)] == [of[0], None, of[2], of[3]]
    later = {"x": np.zeros(25, np.uint8)}
    kept.put(CacheKey(0, 9, (1, -1)), later)
    assert [kept.get(CacheKey(n, 9, (0, -1))) for n in range(4)] == [None] * 4
    assert kept.get(CacheKey(0, 9, (1, -1))) is later
    assert kept.get(CacheKey(0, 8, (1, -1))) is None
