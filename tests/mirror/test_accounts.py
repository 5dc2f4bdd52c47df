"""Draws from a mirror wait for the rate limiter, and are in the counts and in the sample log."""

import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from sqlbuffer import (
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    RateLimiter,
    RatioWindow,
    ReplayBuffer,
)
from sqlbuffer.errors import (
    BufferConfigError,
    FlowControlError,
    InsufficientDataError,
    StorageReadOnlyError,
    StorageUnreachableError,
)
from tests.support.episodes import FIELDS
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.sql import run

TIGHT = RateLimiter(samples_per_insert=4, min_size=10, error_buffer=64)


def columns(n):
    t = np.arange(n)
    return {"obs": np.zeros((n, 2)), "action": t}


def logged(url):
    """Return (sampler, seed, clock, seqs) of the batches in the sample log, in order."""
    found = run(
        url,
        "SELECT batch_id, sampler, seed, clock, seq FROM v_samples ORDER BY batch_id, position",
    )
    batches = {}
    for number, sampler, seed, clock, seq in found:
        batches.setdefault(number, (sampler, seed, clock, []))[-1].append(seq)
    return list(batches.values())


def draw_until(error, mirror, n):
    """Draw batches of n until one fails, and return how many steps were drawn."""
    for number in range(1_000):
        try:
            mirror.sample_arrays(n)
        except error:
            return number * n
    raise AssertionError(f"no {error.__name__}")


@pytest.fixture
def limited(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, rate_limiter=TIGHT, wait_s=0.1) as buffer:
        yield buffer


@pytest.fixture
def tracked(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, track_samples=True) as buffer:
        buffer.extend(columns(50))
        yield buffer


@pytest.mark.thorough
def test_draws_are_refused_when_those_of_the_buffer_are(limited):
    with limited.mirror(refresh_s=3_600) as mirror:
        limited.extend(columns(9))
        for own in (limited, mirror):
            with pytest.raises(FlowControlError, match=r"8 rows may not be sampled within 0\.1 s"):
                own.sample_arrays(8)
        limited.extend(columns(1))
        n_drawn = draw_until(FlowControlError, mirror, 8)
        # 10 * 4 inserted for, and 64 of tolerance around min_size * 4.
        assert n_drawn == 64
        with pytest.raises(FlowControlError):
            limited.sample_arrays(8)
        limited.extend(columns(2))
        assert mirror.sample_arrays(8).n_rows == 8
    assert limited.flow().sampled == n_drawn + 8


def test_a_ratio_window_is_obeyed(buffer_url):
    window = RatioWindow(min_ratio=0.5, window_s=600)
    with ReplayBuffer(buffer_url, fields=FIELDS, rate_limiter=window, wait_s=0) as buffer:
        buffer.extend(columns(40))
        with buffer.mirror(refresh_s=3_600) as mirror:
            n_drawn = draw_until(FlowControlError, mirror, 4)
            assert 72 <= n_drawn <= 80  # what was pushed decays
            with pytest.raises(FlowControlError):
                buffer.sample_arrays(4)
            buffer.extend(columns(8))
            n_more = draw_until(FlowControlError, mirror, 4)
            assert 12 <= n_more <= 24
        assert buffer.flow().sampled == n_drawn + n_more


def test_what_is_reserved_and_not_drawn_is_given_back(limited):
    limited.extend(columns(16))
    with limited.mirror(refresh_s=3_600) as mirror:
        for _ in range(3):
            mirror.sample_arrays(5)
        assert 15 <= limited.flow().sampled <= 60
        mirror.refresh()
        mirror.refresh()
        assert limited.flow().sampled == 15
        with pytest.raises(InsufficientDataError):
            mirror.sample_arrays(20, sampler=RandomSampler(replace=False))
        with pytest.raises(InsufficientDataError):
            mirror.sample_arrays(1, condition=QueryBuilder().eq("step", 99))
    assert limited.flow().sampled == 15


def test_idle_learners_keep_nothing_reserved(limited):
    limited.extend(columns(16))
    with limited.mirror(refresh_s=0.05) as mirror:
        for _ in range(3):
            mirror.sample_arrays(5)
        wait_until(lambda: limited.flow().sampled == 15, "credits are given back")


@pytest.mark.thorough
def test_draws_wait_for_collectors(limited, buffer_url):
    with (
        ReplayBuffer(buffer_url, wait_s=30) as learner,
        learner.mirror(refresh_s=0.05) as mirror,
        ReplayBuffer(buffer_url, wait_s=30) as collector,
    ):
        stop = threading.Event()

        def collect():
            while not stop.is_set():
                collector.extend(columns(4))

        thread = threading.Thread(target=collect)
        thread.start()
        try:
            for _ in range(40):
                mirror.sample_arrays(8)
        finally:
            stop.set()
            learner.set_rate_limiter(None)
            thread.join()
    # D = I * 4 - S stayed at 10 * 4 - 64 or above, but for what was in flight.
    assert limited.size() * 4 >= 320 - 24 - 16 * 8


def test_threads_together_draw_what_the_limiter_allows(limited):
    limited.extend(columns(20))
    drawn = Counter()
    with limited.mirror(refresh_s=3_600) as mirror:

        def draw(number):
            drawn[number] = draw_until(FlowControlError, mirror, 3)

        threads = [threading.Thread(target=draw, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    # D = 20 * 4 - S stays at 10 * 4 - 64 or above.
    # Those that ask at the same time may all pass.
    assert 104 - 12 < sum(drawn.values()) <= 104 + 4 * 3
    assert limited.flow().sampled == sum(drawn.values())


def test_a_limiter_that_is_set_or_removed_later_is_obeyed(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, wait_s=0) as buffer:
        buffer.extend(columns(10))
        with buffer.mirror(refresh_s=3_600) as mirror:
            mirror.sample_arrays(500)
            buffer.set_rate_limiter(RateLimiter(samples_per_insert=1, error_buffer=20))
            with pytest.raises(FlowControlError):
                mirror.sample_arrays(500)
            buffer.set_rate_limiter(None)
            assert mirror.sample_arrays(500).n_rows == 500
        assert buffer.flow().sampled == 1_000


def test_credits_last_while_the_database_is_away(make_database_url):
    url = make_database_url("postgresql", schema=True)
    limiter = RateLimiter(samples_per_insert=100, error_buffer=5_000)
    with (
        closing(Proxy(url)) as proxy,
        ReplayBuffer(proxy.url, fields=FIELDS, rate_limiter=limiter, retry_s=0) as buffer,
    ):
        buffer.extend(columns(10))
        mirror = buffer.mirror(refresh_s=3_600)
        for _ in range(3):
            mirror.sample_arrays(4)
        proxy.closed = True
        proxy.cut_all()
        draw_until(StorageUnreachableError, mirror, 4)
        proxy.closed = False
        assert mirror.sample_arrays(4).n_rows == 4
        mirror.close()


def test_the_log_has_exactly_what_was_drawn(tracked, buffer_url):
    with tracked.mirror(refresh_s=3_600) as mirror:
        expected = []

        def note(batch, sampler, seed=None, clock=None):
            expected.append((sampler, seed, clock, batch.info["seq"].tolist()))

        note(mirror.sample_arrays(5), "RandomSampler")
        sampler = RandomSampler(replace=False, seed=7)
        note(mirror.sample_arrays(9, sampler=sampler), "RandomSampler", "7")
        with pytest.raises(InsufficientDataError):
            mirror.sample_arrays(60, sampler=sampler)
        assert logged(buffer_url) == expected[:1]
        mirror.refresh()
        assert logged(buffer_url) == expected
        tracked.set_clock(4)
        mirror.refresh()
        late = QueryBuilder().gte("step", 40)
        note(mirror.sample_arrays(3, condition=late), "RandomSampler", clock=4)
        for batch in mirror.loader("step", 20, shuffle=False, epochs=1):
            note(batch, "pass", clock=4)
    assert logged(buffer_url) == expected


def test_transitions_are_logged_by_their_first_steps(tracked, buffer_url):
    tracked.store_episode(columns(20))
    with tracked.mirror() as mirror:
        drawn = mirror.sample_transitions(30, n_step=3, skip_single=True).info["seq"].tolist()
    assert logged(buffer_url) == [("RandomSampler", None, None, drawn)]


def test_priorities_are_logged_with_their_probabilities(buffer_url):
    with (
        ReplayBuffer(
            buffer_url, fields=FIELDS, priorities=True, alpha=1.0, track_samples=True
        ) as buffer,
        buffer.mirror(refresh_s=3_600) as mirror,
    ):
        buffer.extend({**columns(4), "priority": [1.0, 2.0, 3.0, 4.0]})
        drawn = mirror.sample_arrays(8, sampler=PrioritizedSampler(seed=3))
        mirror.refresh()
        found = run(buffer_url, "SELECT sampler, seed, seq, probability FROM v_samples")
    expected = [("PrioritizedSampler", "3", s, s / 10) for s in drawn.info["seq"].tolist()]
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    np.testing.assert_allclose([row[3] for row in found], [row[3] for row in expected])


def test_the_log_says_when_a_batch_was_drawn(tracked, buffer_url):
    with tracked.mirror(refresh_s=3_600) as mirror:
        mirror.sample_arrays(1)
        time.sleep(0.05)
        mirror.sample_arrays(2)
        mirror.refresh()
    found = run(buffer_url, "SELECT DISTINCT batch_id, sampled_at FROM v_samples ORDER BY batch_id")
    assert found[0][1] < found[1][1]


def test_a_thread_settles_the_log(tracked, buffer_url):
    with tracked.mirror(refresh_s=0.05) as mirror:
        drawn = [mirror.sample_arrays(6).info["seq"].tolist() for _ in range(3)]
        wait_until(lambda: len(logged(buffer_url)) == 3, "the batches are logged")
        assert [seqs for *_, seqs in logged(buffer_url)] == drawn


@pytest.mark.thorough
def test_a_process_that_ends_without_a_close_logs_its_last_batches(tracked, buffer_url):
    script = (
        "import sys; from sqlbuffer import ReplayBuffer; "
        "mirror = ReplayBuffer(sys.argv[1]).mirror(refresh_s=3600); "
        "print(mirror.sample_arrays(4).info['seq'].tolist())"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, buffer_url], check=True, capture_output=True, text=True
    )
    assert [str(seqs) for *_, seqs in logged(buffer_url)] == [told.stdout.strip()]


def test_a_log_that_cannot_be_written_waits(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with (
        closing(Proxy(url)) as proxy,
        ReplayBuffer(proxy.url, fields=FIELDS, track_samples=True, retry_s=0) as buffer,
    ):
        buffer.extend(columns(10))
        with buffer.mirror(refresh_s=3_600) as mirror:
            drawn = [mirror.sample_arrays(4).info["seq"].tolist()]
            proxy.closed = True
            proxy.cut_all()
            drawn += [mirror.sample_arrays(4).info["seq"].tolist() for _ in range(3)]
            with pytest.raises(StorageUnreachableError):
                mirror.refresh()
            proxy.closed = False
            mirror.refresh()
            assert [seqs for *_, seqs in logged(url)] == drawn


def test_a_role_that_only_reads_cannot_draw_what_is_logged(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, fields=FIELDS, track_samples=True) as buffer:
        buffer.extend(columns(10))
    setting = "options=-c%20default_transaction_read_only%3Don"
    with (
        ReplayBuffer(f"{url}{'&' if '?' in url else '?'}{setting}", create=False) as reader,
        reader.mirror(refresh_s=3_600) as mirror,
    ):
        for own in (reader, mirror):
            with pytest.raises(StorageReadOnlyError, match="track_samples"):
                own.sample_arrays(4)
    assert logged(url) == []


def test_a_closed_mirror_of_a_limited_buffer_says_so_at_once(limited):
    mirror = limited.mirror()
    mirror.close()
    with pytest.raises(BufferConfigError, match="the mirror is closed"):
        mirror.sample_arrays(4)


def test_shared_mirrors_count_and_log_their_own_draws(tracked, buffer_url):
    tracked.set_clock(3)
    with tracked.mirror(shared=True) as first, tracked.mirror(shared=True) as second:
        drawn = [own.sample_arrays(4).info["seq"].tolist() for own in (first, second)]
        for own in (first, second):
            own.refresh()
    assert [(clock, seqs) for _, _, clock, seqs in logged(buffer_url)] == [(3, s) for s in drawn]
