"""Draws after `close` are refused, with what to do; other calls of the buffer go on."""

import asyncio
import pickle

import numpy as np
import pytest

from sqlbuffer import RandomTaskSample, ReplayBuffer, mix
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.errors import ArgumentError, BufferConfigError
from sqlbuffer.torch import Dataset
from tests.support.processes import FRESH, run_at_once

FIELDS = {"obs": ("float32", (2,))}


@pytest.fixture
def buffer(buffer_url):
    """Yield a buffer of three episodes, open."""
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        for _ in range(3):
            obs = np.ones((4, 2))
            buffer.store_episode({"obs": obs, "reward": np.ones(4)}, final={"obs": obs[0]})
        yield buffer


def draws_of(source):
    """Return the draws that buffers, mirrors and mixtures have."""
    return [
        source.sample_arrays,
        source.sample_transitions,
        lambda n: next(iter(source.loader("transition", n))),
        lambda n: next(iter(source.loader("window", n, length=2))),
    ]


def all_draws(buffer, mirror):
    return [
        *draws_of(buffer),
        *draws_of(mirror),
        *draws_of(mix({buffer: 1.0})),
        buffer.sample,
        buffer.sample_tasks,
        lambda n: buffer.sample_tasks(n, sampler=RandomTaskSample(seed=1)),
        buffer.peek,
        lambda n: next(iter(buffer.loader("step", n, epochs=1))),
        lambda n: next(iter(mirror.loader("step", n, epochs=1))),
        lambda n: next(iter(buffer.loader("step", n, epochs=1, shard=(0, 1)))),
    ]


def test_no_draw_takes_0(buffer):
    with buffer.mirror() as mirror:
        for draw in all_draws(buffer, mirror):
            with pytest.raises(ArgumentError, match=r"(batch_size|n) is an integer from 1 "):
                draw(0)


def test_no_draw_works_after_close_until_the_buffer_is_opened_again(buffer):
    with buffer.mirror() as mirror:
        dataset = Dataset(buffer)
        draws = [*all_draws(buffer, mirror), lambda n: dataset.__getitems__([0] * n)]
        begun = iter(buffer.loader("step", 2))
        next(begun)
        buffer.close()
        for draw in [*draws, lambda n: next(begun)]:
            with pytest.raises(BufferConfigError, match=r"buffer 'default' is closed.*open it aga"):
                draw(2)
        # What is stored and read is stored and read.
        buffer.store_episode({"obs": np.ones((1, 2))}, final={"obs": np.ones(2)})
        assert len(buffer) == len(list(buffer)) == 13
    with ReplayBuffer(buffer.url) as again, again.mirror() as mirror:
        for draw in all_draws(again, mirror):
            draw(2)


def test_no_lease_is_taken_after_close_and_one_that_was_taken_ends(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, leases=True) as buffer:
        buffer.extend({"obs": np.ones((3, 2))})
        batch = buffer.lease(2, timeout_s=0).take()
        made = buffer.lease(1, timeout_s=0)
    batch.ack()
    for lease in (made, buffer.lease(1, timeout_s=0)):
        with pytest.raises(BufferConfigError, match="buffer 'default' is closed"):
            lease.take()


def test_the_message_says_what_to_type(buffer_url):
    with ReplayBuffer(buffer_url, "run-1", fields=FIELDS) as buffer:
        buffer.extend({"obs": np.ones((3, 2))})
    with pytest.raises(BufferConfigError, match=r"open it again: ReplayBuffer\('.*', 'run-1'\)"):
        buffer.sample(1)


def test_a_loader_that_was_closed_has_no_batches(buffer):
    with buffer.mirror() as mirror:
        for source in (buffer, mirror, mix({buffer: 1.0})):
            with source.loader("step", 2) as loader:
                begun, not_begun = iter(loader), iter(loader)
                next(begun)
            for call, argument in ((iter, loader), (next, begun), (next, not_begun)):
                with pytest.raises(BufferConfigError, match="the loader is closed"):
                    call(argument)
    assert buffer.sample_arrays(2).n_rows == 2


def test_a_buffer_for_asyncio_is_closed_too(buffer):
    async def draw() -> None:
        async with AsyncReplayBuffer(buffer) as opened:
            assert (await opened.sample_arrays(2)).n_rows == 2
        for call in (opened.sample_arrays, opened.sample_transitions, opened.sample, opened.peek):
            with pytest.raises(BufferConfigError, match="buffer 'default' is closed"):
                await call(2)
        with pytest.raises(BufferConfigError, match="buffer 'default' is closed"):
            async for _ in opened.loader("step", 2):
                pass

    asyncio.run(draw())


def n_drawn(buffer):
    return buffer.sample_arrays(2).n_rows


def closes_and_draws(buffer):
    with buffer:
        return n_drawn(buffer)


@pytest.mark.parametrize("how", ["fork", FRESH])
def test_copies_in_other_processes_are_open_or_closed_on_their_own(buffer, how):
    assert run_at_once([(closes_and_draws, buffer)] * 2, how) == [2, 2]
    assert n_drawn(buffer) == 2
    buffer.close()
    copy = pickle.loads(pickle.dumps(buffer))
    assert n_drawn(copy) == 2
    copy.close()
