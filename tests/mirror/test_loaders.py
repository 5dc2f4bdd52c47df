"""A mirror's loader has the batches of the buffer's own loader."""

import asyncio
import json
import pickle
from itertools import islice

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.errors import BufferConfigError, ConditionError, FieldError, InsufficientDataError
from tests.support.episodes import FIELDS
from tests.support.mirrors import every_row, rows_of


def columns(n):
    t = np.arange(n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


@pytest.fixture
def buffer(tmp_path):
    with ReplayBuffer(tmp_path / "loaded.db", fields=FIELDS) as buffer:
        buffer.store_episode(columns(100))
        yield buffer


@pytest.fixture
def mirror(buffer):
    with buffer.mirror() as mirror:
        yield mirror


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("step", {}),
        ("step", {"fields": ["action"]}),
        ("transition", {"n_step": 3, "stack": {"obs": 2}}),
        ("n_step", {"n_step": 3, "sequence_fields": ["reward", "action"]}),
        ("window", {"length": 6, "burn_in": 3, "stride": 2, "stack": {"obs": 2}}),
    ],
)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_hold_what_those_of_the_buffer_do(buffer, mirror, mode, options, prefetch):
    expected = every_row(buffer, mode, **options)
    for batch in islice(mirror.loader(mode, 32, prefetch=prefetch, **options), 20):
        assert batch.n_rows == 32
        assert all(expected[seq] == row for seq, row in rows_of(batch).items())


def test_a_seed_repeats_batches_also_after_a_resume(mirror):
    def seqs(batches):
        return [batch.info["seq"].tolist() for batch in batches]

    first, second = mirror.loader("step", 8, seed=4), mirror.loader("step", 8, seed=4)
    whole = seqs(islice(first, 6))
    batches = iter(second)
    assert seqs(islice(batches, 3)) == whole[:3]
    resumed = mirror.loader("step", 8, seed=4)
    resumed.load_state_dict(second.state_dict())
    assert seqs(islice(resumed, 3)) == whole[3:]
    assert seqs(islice(mirror.loader("step", 8, seed=5), 1)) != whole[:1]


def test_samplers_are_those_of_a_mirror(mirror):
    loader = mirror.loader("step", 100, sampler=RandomSampler(replace=False))
    assert sorted(next(iter(loader)).action.tolist()) == list(range(100))


def test_new_steps_come_in(buffer, mirror):
    batches = iter(mirror.loader("step", 64))
    assert next(batches).action.max() < 100
    buffer.extend({**columns(500), "action": np.full(500, 900)})
    assert next(batches).action.max() == 900


def test_tensors_are_made_of_batches(mirror):
    torch = pytest.importorskip("torch")
    batch = next(iter(mirror.loader("transition", 16, device="cpu")))
    assert isinstance(batch.obs, torch.Tensor)
    assert batch.obs.shape == (16, 2)


def test_a_condition_says_what_batches_hold(buffer, mirror):
    condition = QueryBuilder().gt("exp_meta.step", 89).build()
    for options in ({"shuffle": True}, {"epochs": 1}):
        batch = next(iter(mirror.loader("step", 10, condition=condition, **options)))
        assert sorted(batch.action.tolist()) == list(range(90, 100))
    beyond = QueryBuilder().eq("exp_meta.extra", 1).build()
    with pytest.raises(ConditionError):
        mirror.loader("step", 10, condition=beyond)


def test_a_pass_has_the_steps_of_its_start(buffer, mirror):
    batches = iter(mirror.loader("step", 30, epochs=1, seed=1))
    seen = next(batches).info["seq"].tolist()
    buffer.extend({**columns(500), "action": np.full(500, 900)})
    buffer.delete(QueryBuilder().lt("exp_meta.step", 40).build())
    later = [seq for batch in batches for seq in batch.info["seq"].tolist()]
    assert sorted(later) == [seq for seq in range(41, 101) if seq not in seen]


def test_a_pass_that_is_resumed_goes_on_with_the_rest(buffer, mirror):
    def rest(batches):
        return [batch.info["seq"].tolist() for batch in batches]

    first = mirror.loader("step", 30, epochs=2, seed=1)
    batches = iter(first)
    next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    expected = rest(batches)
    # It is a state of the buffer's own loader as well.
    for loader in (mirror.loader("step", 30, epochs=2), buffer.loader("step", 30, epochs=2)):
        loader.load_state_dict(state)
        assert rest(loader) == expected


def test_going_on_at_another_head_says_so(buffer, mirror):
    first = mirror.loader("step", 8, seed=1)
    next(iter(first))
    state = first.state_dict()
    assert state["head"] == 100
    buffer.extend(columns(1))
    resumed = mirror.loader("step", 8, seed=1)
    resumed.load_state_dict(state)
    batches = iter(resumed)
    with pytest.warns(UserWarning, match="was 100, and now it is 101"):
        next(batches)
    assert next(batches).n_rows == 8
    with pytest.raises(ValueError, match="mirror=True, and here it is None"):
        buffer.loader("step", 8, seed=1).load_state_dict(state)


def test_the_buffers_loader_opens_a_mirror_and_closes_it(buffer):
    with buffer.loader("step", 40, epochs=1, shuffle=False, mirror=True) as loader:
        for _ in range(2):
            assert [batch.n_rows for batch in loader] == [40, 40, 20]
    with pytest.raises(BufferConfigError, match="the loader is closed"):
        next(iter(loader))


def test_the_buffers_loader_reads_from_a_mirror_that_is_open(buffer, mirror, tmp_path):
    with buffer.loader("trajectory", 1, shuffle=False, mirror=mirror) as loader:
        assert next(iter(loader)).lens.tolist() == [100]
    assert mirror.sample_arrays(8).n_rows == 8
    with (
        ReplayBuffer(tmp_path / "other.db", fields=FIELDS) as other,
        pytest.raises(BufferConfigError, match="is one of another buffer"),
    ):
        other.loader("step", mirror=mirror)
    with pytest.raises(TypeError, match=r"mirror is True, False or a Mirror, .* got 'yes'"):
        buffer.loader("step", mirror="yes")
    with pytest.raises(TypeError, match="num_workers=0"):
        pickle.dumps(loader)


def test_asyncio_reads_from_a_mirror(buffer):
    async def read():
        batches = AsyncReplayBuffer(buffer).loader("step", 60, epochs=1, mirror=True)
        return [batch.n_rows async for batch in batches]

    assert asyncio.run(read()) == [60, 40]


def test_named_tuples_are_made_of_batches(mirror):
    batch = next(iter(mirror.loader("step", 4, to_named_tuple=("action", "info"))))
    assert batch.action.tolist() == (batch.info["seq"] - 1).tolist()


def test_wrong_options_are_refused_at_the_door(mirror):
    with pytest.raises(ValueError, match="n_step"):
        mirror.loader("step", n_step=3)
    with pytest.raises(FieldError, match="unknown field 'nothing'"):
        mirror.loader("transition", fields=["nothing"])


def test_an_empty_buffer_says_so_in_the_loop(tmp_path):
    with (
        ReplayBuffer(tmp_path / "empty.db", fields=FIELDS) as buffer,
        buffer.mirror() as mirror,
        pytest.raises(InsufficientDataError, match="asked for 8, and 0 match"),
    ):
        next(iter(mirror.loader("step", 8)))
