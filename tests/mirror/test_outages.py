"""A look of a mirror that dies half-way leaves the state before it."""

from contextlib import ExitStack, closing, contextmanager
from itertools import count

import numpy as np
import pytest

from sqlbuffer import PrioritizedSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import StorageError
from tests.support.episodes import FIELDS
from tests.support.mirrors import assert_same_batches
from tests.support.proxy import Proxy, assert_one_line_each
from tests.support.sql import is_sqlite, run
from tests.support.statements import interrupted

EVEN = QueryBuilder().in_("exp_meta.step", list(range(0, 1_000, 2)))
# Options of a mirror, and how far apart the places are at which its looks are ended on SQLite.
MIRRORS = [({}, 37), ({"condition": EVEN}, 401), ({"shared": True}, 53)]


def columns(n, first=0):
    t = np.arange(first, first + n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


def fill(url):
    with ReplayBuffer(url, fields=FIELDS, priorities=True, max_capacity=120) as buffer:
        buffer.store_episode(columns(60), episode_id="first")
        buffer.quarantine(range(40, 44))


def change(buffer, url, episode, *, from_start):
    """Change all that a look reads: steps, late values, quarantine, priorities, ends, evictions."""
    buffer.annotate(range(50, 56), reward=99.0)
    buffer.quarantine(range(56, 60))
    buffer.release(range(40, 42))
    buffer.delete(QueryBuilder().in_("seq", [46, 47]).build())
    buffer.update_priorities(range(50, 60), np.arange(1.0, 11.0))
    buffer.store_episode(columns(70, 100), episode_id="new", session_id="later")
    episode.end()
    if from_start:  # plain SQL does not log what it deletes
        run(url, "DELETE FROM chunks WHERE first_seq = 61")


def state_of(mirror):
    """Return all that is drawn: steps, transitions, trajectories and, if it has any, priorities."""
    options = {"shuffle": False, "epochs": 1}
    batches = [
        batch
        for mode in ("step", "transition", "trajectory")
        for batch in mirror.loader(mode, 500, **options)
    ]
    if mirror.path is not None:
        return batches, None
    drawn = mirror.sample_arrays(len(batches[0].obs), sampler=PrioritizedSampler(replace=False))
    return batches, dict(zip(drawn.seq.tolist(), drawn.priorities.tolist(), strict=True))


def assert_same(expected, found):
    assert_same_batches(expected[0], found[0])
    assert found[1] == expected[1]


class Outages:
    """Ends a look anywhere: before each message to a server and within its answers, or after some
    steps of SQLite's machine.
    """

    def __init__(self, url):
        self._proxy = None if is_sqlite(url) else Proxy(url)
        self.url = url if self._proxy is None else self._proxy.url
        self.ways = ["steps"] if self._proxy is None else ["sends_left", "bytes_left"]

    @contextmanager
    def after(self, buffer, way, n, n_steps):
        if self._proxy is None:
            with interrupted(buffer, n * n_steps):
                yield
            return
        setattr(self._proxy, way, 977 * n if way == "bytes_left" else n)
        yield
        self._proxy.end_outage()

    def close(self):
        if self._proxy is not None:
            self._proxy.close()


@pytest.mark.parametrize("from_start", [False, True])
def test_a_look_that_dies_anywhere_leaves_the_state_before_it(buffer_url, from_start, caplog):
    fill(buffer_url)
    with (
        closing(Outages(buffer_url)) as outages,
        ReplayBuffer(outages.url, retry_s=0) as buffer,
        ReplayBuffer(buffer_url) as others,
        ExitStack() as stack,
    ):
        episode = others.episode(episode_id="open")
        for t in range(5):
            episode.append(obs=[t, t], action=t, reward=1.0)
        others.flush()
        mirrors = [
            (way, options, n_steps, stack.enter_context(buffer.mirror(refresh_s=3_600, **options)))
            for options, n_steps in MIRRORS
            for way in (outages.ways[:1] if options else outages.ways)
        ]
        before = [state_of(mirror) for *_, mirror in mirrors]
        change(others, buffer_url, episode, from_start=from_start)
        for (way, options, n_steps, mirror), state in zip(mirrors, before, strict=True):
            for n in count():
                with outages.after(buffer, way, n, n_steps):
                    try:
                        mirror.refresh()
                        break
                    except StorageError as error:
                        why = str(error)
                    assert mirror.lag().error == why
                    assert_same(state, state_of(mirror))
            assert n > 5
            with buffer.mirror(**options) as fresh:
                assert_same(state_of(fresh), state_of(mirror))
        assert_one_line_each(caplog.records)
