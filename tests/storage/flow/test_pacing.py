"""What all processes of a buffer obey."""

import _thread
import os
import pickle
import re
import signal
import threading
from contextlib import contextmanager, suppress

import gymnasium
import numpy as np
import pytest

from sqlbuffer import (
    DataRow,
    Experience,
    ExpMeta,
    RandomSampler,
    RateLimiter,
    RatioWindow,
    ReplayBuffer,
    Sampler,
    fields_from_env,
)
from sqlbuffer.errors import (
    BufferConfigError,
    BufferNotFoundError,
    FlowControlError,
    InsufficientDataError,
)
from sqlbuffer.storage import flow
from sqlbuffer.storage.dialects import writing
from tests.support.processes import run_at_once, running, wait_until
from tests.support.sql import buffer_id, run, scalar

LIMITER = RateLimiter(samples_per_insert=2, min_size=10, error_buffer=20)
FIELDS = {"obs": ("float32", (2,))}


def rows(n, start=0):
    return [
        DataRow(ExpMeta("t", None, "a", start + i, 0.0), Experience(reward_t=1.0)) for i in range(n)
    ]


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, rate_limiter=LIMITER, wait_s=0) as buffer:
        yield buffer


def ago(url, time):
    """Return the SQL of a time in the past."""
    if url.startswith("sqlite"):
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{time}')"
    return f"now() - interval '{time}'"


def counts(buffer):
    found = buffer.flow()
    return found.inserted, found.sampled


@contextmanager
def in_thread(call):
    """Run a call beside; yield the list of what it returned or raised."""
    found = []

    def work():
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield found
    thread.join(30)
    assert not thread.is_alive()


def test_the_policy_is_stored_with_the_buffer_and_obeyed_by_who_names_none(buffer, buffer_url):
    assert buffer.flow().policy == LIMITER
    with ReplayBuffer(buffer_url, wait_s=0) as other:
        assert other.flow().policy == LIMITER
        other.store_batch(rows(20))
        with pytest.raises(FlowControlError):
            other.add(step=1)
    with ReplayBuffer(buffer_url, rate_limiter=RateLimiter(2.0, 10, 20.0)) as same:
        assert same.flow().inserted == 20
    with pytest.raises(BufferConfigError, match=r"samples_per_insert=2.0.*set_rate_limiter"):
        ReplayBuffer(buffer_url, rate_limiter=RateLimiter(3))
    with pytest.raises(BufferConfigError, match="RateLimiter"):
        ReplayBuffer(buffer_url, rate_limiter=4)
    assert pickle.loads(pickle.dumps(buffer)).flow().inserted == 20


@pytest.mark.parametrize("wait_s", [None, -1, float("nan"), float("inf"), True, "1"])
def test_a_wait_that_is_no_time_is_refused(wait_s):
    with pytest.raises(BufferConfigError, match="wait_s"):
        ReplayBuffer("sqlite://", wait_s=wait_s)


def test_samples_wait_for_rows_and_rows_for_samples(buffer):
    with pytest.raises(FlowControlError, match="collectors are behind, with 0 rows inserted"):
        buffer.sample(4)
    stored = 0
    while buffer.flow().may_insert:
        stored += buffer.store_batch(rows(1, stored)).inserted
    with pytest.raises(FlowControlError, match="learners are behind, with 20 rows inserted and 0"):
        buffer.add(step=1)
    drawn = 0
    while buffer.flow().may_sample:
        drawn += len(buffer.sample(4))
    with pytest.raises(FlowControlError, match=r"4 rows may not be sampled now.*40 sampled"):
        buffer.sample(4)
    # Reverb's bounds: 20 * 2 = 10 * 2 + 20, and 20 * 2 - 40 = 10 * 2 - 20.
    assert (stored, drawn) == counts(buffer) == (20, 40)
    assert buffer.flow().ratio == 2.0
    assert buffer.add(step=9).inserted == 1


def test_every_way_to_write_is_limited(buffer_url):
    with ReplayBuffer(
        buffer_url, fields=FIELDS, rate_limiter=LIMITER, wait_s=0, flush_s=60
    ) as buffer:
        steps = {"obs": np.zeros((2, 2), np.float32)}
        buffer.extend({"obs": np.zeros((20, 2), np.float32)})
        writes = {
            "extend": lambda: buffer.extend(steps),
            "store_episode": lambda: buffer.store_episode(steps),
        }
        with ReplayBuffer(buffer_url, name="rows", rate_limiter=LIMITER, wait_s=0) as other:
            other.store_batch(rows(20))
            writes |= {
                "store": lambda: other.store(rows(1)[0]),
                "store_batch": lambda: other.store_batch(rows(2)),
                "add": lambda: other.add(step=1),
            }
        for write in writes.values():
            with pytest.raises(FlowControlError):
                write()
        episode = buffer.episode("t")
        episode.append(obs=np.zeros(2, np.float32))
        with pytest.raises(FlowControlError):
            buffer.flush()
        assert len(buffer) == 20
        assert len(buffer.sample(8)) == 8
        buffer.flush()
        assert len(buffer) == 21
        episode.end()
        assert buffer.store_batch([]).inserted == 0


def test_every_way_to_sample_is_limited_and_counted(buffer_url):
    limiter = RateLimiter(1, 1, 1_000)
    with ReplayBuffer(buffer_url, fields=FIELDS, rate_limiter=limiter, wait_s=0) as buffer:
        for task in range(4):
            steps = {"obs": np.zeros((5, 2), np.float32), "reward": np.zeros(5)}
            buffer.store_episode({**steps, "terminated": [0, 0, 0, 0, 1]}, task_id=f"t{task}")
        calls = {
            "sample": (lambda: buffer.sample(3), 3),
            "arrays": (lambda: buffer.sample_arrays(3), 3),
            "transitions": (lambda: buffer.sample_transitions(3), 3),
            "tasks": (lambda: buffer.sample_tasks(2), 10),
            "loader": (lambda: next(iter(buffer.loader("step", 3))), 3),
        }
        for name, (call, n) in calls.items():
            before = buffer.flow().sampled
            call()
            assert buffer.flow().sampled - before == n, name
        buffer.set_rate_limiter(RateLimiter(1, 1, (1.0, 1_000.0)))
        for call, _ in calls.values():
            with pytest.raises(FlowControlError):
                call()


def test_what_was_let_through_and_not_handed_out_does_not_count(buffer_url):
    with ReplayBuffer(
        buffer_url, fields=FIELDS, rate_limiter=RateLimiter(1, 1, 100), wait_s=0
    ) as buffer:
        buffer.extend({"obs": np.zeros((10, 2), np.float32)})
        assert len(buffer.sample(15)) == 10
        assert counts(buffer) == (10, 10)
        with pytest.raises(InsufficientDataError):
            buffer.sample_arrays(15, sampler=RandomSampler())
        assert counts(buffer) == (10, 10)
        with pytest.raises(ZeroDivisionError):
            buffer.sample(5, sampler=Failing())
        assert counts(buffer) == (10, 10)
        assert scalar(buffer_url, "SELECT n_limited FROM flow") == 10


class Failing(Sampler):
    def choose(self, candidates, n):
        return [1 // 0]


def test_a_batch_that_can_never_pass_is_refused_at_once(buffer_url):
    with ReplayBuffer(buffer_url, rate_limiter=LIMITER, wait_s=10_000) as buffer:
        buffer.store_batch(rows(20))
        with pytest.raises(FlowControlError, match=r"never lets 21 rows pass.*at least 21"):
            buffer.store_batch(rows(21))
        with pytest.raises(FlowControlError, match=r"never lets 41 rows pass.*at least 20.5"):
            buffer.sample(41)


def test_deletes_and_eviction_do_not_matter_and_a_restart_keeps_the_counts(buffer, buffer_url):
    buffer.store_batch(rows(12))
    buffer.sample(4)
    buffer.resize(5)
    buffer.clear()
    assert counts(buffer) == (12, 4)
    buffer.close()
    with ReplayBuffer(buffer_url, wait_s=0) as again:
        assert counts(again) == (12, 4)
        again.store_batch(rows(3))
        again.sample(2)
        assert counts(again) == (15, 6)


def test_a_new_limiter_counts_from_then_on_and_none_limits_nothing(buffer):
    buffer.store_batch(rows(20))
    buffer.sample(8)
    buffer.set_rate_limiter(RateLimiter(1, 5, 5))
    assert counts(buffer) == (0, 0)
    with pytest.raises(FlowControlError):
        buffer.sample(1)
    buffer.store_batch(rows(5))
    assert len(buffer.sample(5)) == 5
    assert counts(buffer) == (5, 5)
    buffer.set_rate_limiter(None)
    for start in range(0, 100, 50):
        buffer.store_batch(rows(50, start))
    found = buffer.flow()
    assert (found.policy, found.inserted, found.may_insert, found.may_sample) == (
        None, 125, True, True,
    )  # fmt: skip
    with pytest.raises(BufferConfigError):
        buffer.set_rate_limiter("fast")


def test_a_limiter_set_later_is_noticed_by_those_that_have_the_buffer_open(buffer_url, monkeypatch):
    with ReplayBuffer(buffer_url, wait_s=0) as writer, ReplayBuffer(buffer_url) as other:
        writer.store_batch(rows(5))
        other.set_rate_limiter(RateLimiter(1, 1, 2))
        monkeypatch.setattr(flow, "PUBLISH_S", 0.0)
        writer.store_batch(rows(3))  # 3 - 0 <= 1 + 2
        with pytest.raises(FlowControlError):
            writer.store_batch(rows(1))


def test_who_waits_is_seen_by_others_until_it_may_go_on(buffer_url):
    with (
        ReplayBuffer(buffer_url, rate_limiter=LIMITER, wait_s=30) as learner,
        ReplayBuffer(buffer_url) as other,
        in_thread(lambda: len(learner.sample(4))) as found,
    ):
        wait_until(lambda: other.flow().waiting, "the learner waits")
        (waiting,) = other.flow().waiting
        assert (waiting.role, waiting.n_rows, waiting.pid) == ("sample", 4, os.getpid())
        assert waiting.alive
        assert 0 <= waiting.waited_s < 30
        query = "SELECT policy, inserted, sampled, ratio, may_insert, may_sample, inserts_waiting, "
        assert run(buffer_url, f"{query} samples_waiting FROM v_flow") == [
            ("RateLimiter", 0, 0, None, 1, 0, 0, 1)
        ]
        listed = run(buffer_url, "SELECT buffer, role, rows, pid, alive FROM v_waiting")
        assert listed == [("default", "sample", 4, os.getpid(), 1)]
        other.store_batch(rows(9))
        assert found == []
        other.add(step=10)
        wait_until(lambda: found, "the learner goes on")
        assert found == [4]
        wait_until(lambda: not other.flow().waiting, "the learner waits no longer")
        assert run(buffer_url, "SELECT * FROM v_waiting") == []


@pytest.mark.thorough
@pytest.mark.slow
def test_the_view_says_what_flow_says(buffer, buffer_url):
    query = "SELECT inserted, sampled, ratio, may_insert, may_sample FROM v_flow"
    for step in range(24):
        found = buffer.flow()
        said = (found.inserted, found.sampled, found.ratio, found.may_insert, found.may_sample)
        assert run(buffer_url, query) == [said]
        if found.may_insert and (step < 12 or not found.may_sample):
            buffer.add(step=step)
        else:
            buffer.sample(1)
    assert found.sampled > 0
    buffer.set_rate_limiter(RatioWindow(2))
    assert run(buffer_url, query) == [(0, 0, None, None, None)]


def test_a_removed_limiter_lets_those_that_wait_go_on(buffer, buffer_url):
    with (
        ReplayBuffer(buffer_url, wait_s=30) as writer,
        in_thread(lambda: [writer.store_batch(rows(10)).inserted for _ in range(5)]) as found,
    ):
        wait_until(lambda: buffer.flow().waiting, "the writer waits")
        assert [waiting.role for waiting in buffer.flow().waiting] == ["insert"]
        buffer.set_rate_limiter(None)
        wait_until(lambda: found, "the writer goes on")
        assert found == [[10] * 5]


def test_a_wait_ends_at_its_timeout_and_leaves_no_mark(buffer_url):
    with ReplayBuffer(buffer_url, rate_limiter=LIMITER, wait_s=0.15) as buffer:
        with pytest.raises(FlowControlError, match=r"within 0.15 s.*add collectors"):
            buffer.sample(4)
        assert buffer.flow().waiting == ()
        pickle.loads(pickle.dumps(FlowControlError("said")))


@pytest.mark.slow
def test_a_wait_can_be_interrupted(buffer_url):
    with ReplayBuffer(buffer_url, rate_limiter=LIMITER, wait_s=100) as buffer:

        def interrupt():
            wait_until(lambda: buffer.flow().waiting, "the call waits")
            _thread.interrupt_main()

        with in_thread(interrupt), pytest.raises(KeyboardInterrupt):
            buffer.sample(4)
        assert buffer.flow().waiting == ()


@pytest.mark.thorough
def test_episodes_are_stored_as_far_as_there_is_room(buffer_url):
    with ReplayBuffer(buffer_url, rate_limiter=LIMITER, wait_s=30, flush_s=0.02) as buffer:
        episode = buffer.episode("t")
        for step in range(35):
            episode.append(state=step)
        wait_until(lambda: len(buffer) == 20, "the first steps are stored")
        wait_until(lambda: buffer.flow().waiting, "the others wait")
        with in_thread(episode.end) as ended:
            buffer.sample(10)
            wait_until(lambda: len(buffer) == 25, "those that fit now")
            wait_until(lambda: buffer.flow().waiting, "the others wait again")
            assert run(buffer_url, "SELECT status FROM v_episodes") == [("open",)]
            assert ended == []
            buffer.sample(20)
            wait_until(lambda: ended, "all")
        assert ended == [None]
        found = run(buffer_url, "SELECT status, length, first_seq, last_seq FROM v_episodes")
        assert found == [("complete", 35, 1, 35)]
        assert [row.exp_data.state for row in buffer.get_all()] == list(range(35))


class Endless(gymnasium.Env):
    """An environment that counts its steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    n_taken = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.n_taken += 1
        return np.zeros(2, np.float32), float(self.n_taken), False, False, {}


@contextmanager
def appended(buffer):
    """Yield a function that takes a step, and one that returns the number of taken steps."""
    given = {"obs": [0, 0], "action": 0} if buffer.fields else {"state": 0}
    with buffer.episode("t") as episode:
        yield lambda: episode.append(**given, reward=1.0 + episode.length), lambda: episode.length


@contextmanager
def added(buffer):
    numbers = []

    def add():
        buffer.add(task_id="t", obs=[0, 0], action=0, reward=1.0 + len(numbers))
        numbers.append(len(numbers))

    yield add, lambda: len(numbers)


@contextmanager
def recorded(buffer):
    env = Endless()
    with buffer.record(env, task_id="t") as wrapped:
        wrapped.reset()
        yield lambda: wrapped.step(0), lambda: env.n_taken


WAYS = [("rows", appended), ("typed", appended), ("typed", added), ("typed", recorded)]


@pytest.mark.parametrize(("layout", "begin"), WAYS)
def test_steps_that_wait_for_the_limiter_are_bounded(buffer_url, layout, begin):
    fields = {"fields": fields_from_env(Endless())["fields"]} if layout == "typed" else {}
    options = {"rate_limiter": LIMITER, "wait_s": 0, "flush_s": 3_600, "max_pending": 15}
    with (
        ReplayBuffer(buffer_url, **options, **fields) as buffer,
        ReplayBuffer(buffer_url) as other,
        begin(buffer) as (take, n_taken),
    ):

        def take_100():
            for _ in range(100):
                take()

        def take_all():
            with pytest.raises(FlowControlError, match=r"15 steps wait .* this one was not added"):
                take_100()
            # A recorder holds back the newest step.
            assert n_taken() - len(other) == 15 + (begin is recorded)

        take_all()
        n_before = n_taken()
        with pytest.raises(FlowControlError):
            take()
        assert n_taken() == n_before
        other.sample(16, sampler=RandomSampler(replace=True))
        take_all()
        assert n_taken() == n_before + 8
        buffer.set_rate_limiter(None)
        buffer.flush()
        n_stored = n_taken() - (begin is recorded)
        rewards = [row.exp_data.reward_t for row in other.get_by_task_id("t")]
        assert rewards == np.arange(1.0, n_stored + 1).tolist()


@pytest.mark.thorough
def test_a_refusal_that_is_over_stops_no_writer(buffer_url, caplog):
    options = {"rate_limiter": LIMITER, "wait_s": 0, "flush_s": 1, "max_pending": 15}
    with (
        ReplayBuffer(buffer_url, **options) as buffer,
        ReplayBuffer(buffer_url) as other,
        buffer.episode("t") as episode,
    ):

        def fill():
            for step in range(100):
                episode.append(state=step)

        with pytest.raises(FlowControlError):
            fill()
        caplog.clear()
        wait_until(lambda: "could not be stored yet" in caplog.text, "the thread was refused")
        other.sample(16, sampler=RandomSampler(replace=True))
        episode.append(state=35)
        buffer.set_rate_limiter(None)
        buffer.flush()
        assert len(other) == episode.length == 36


def test_an_episode_ends_with_the_last_of_its_steps(buffer_url):
    with ReplayBuffer(buffer_url, rate_limiter=LIMITER, wait_s=30, flush_s=60) as buffer:
        episode = buffer.episode("t")
        for step in range(30):
            episode.append(state=step)
        with in_thread(episode.end) as ended:
            wait_until(lambda: len(buffer) == 20, "the first steps are stored")
            assert run(buffer_url, "SELECT status FROM v_episodes") == [("open",)]
            buffer.sample(20)
            wait_until(lambda: ended, "all")
        found = run(buffer_url, "SELECT status, length, first_seq, last_seq FROM v_episodes")
        assert found == [("complete", 30, 1, 30)]


def play_and_leave(url):
    buffer = ReplayBuffer(url, wait_s=300, flush_s=0.02)
    episode = buffer.episode("t")
    for step in range(50):
        episode.append(state=step)
    wait_until(lambda: buffer.flow().waiting, "the steps wait")


def test_steps_that_wait_are_stored_when_their_process_ends(buffer, buffer_url):
    with running([(play_and_leave, buffer_url)]) as workers:
        workers.results()
    assert len(buffer) == 50


def collect(url, stop):
    buffer = ReplayBuffer(url, wait_s=0.5)
    stored = 0
    while not os.path.exists(stop):
        with suppress(FlowControlError):  # where the learner has ended
            stored += buffer.store_batch(rows(5, stored)).inserted
    return stored


def learn(url, n_batches):
    buffer = ReplayBuffer(url, wait_s=60)
    return sum(len(buffer.sample(16)) for _ in range(n_batches))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_learner_and_two_collectors_settle_at_the_ratio(buffer_url, tmp_path):
    stop = tmp_path / "stop"
    # What is in flight counts as inserted: each collector may have five rows that are not seen yet.
    limiter = RateLimiter(4, 16 + 2 * 5, 60)
    buffer = ReplayBuffer(buffer_url, rate_limiter=limiter)
    with running([(collect, buffer_url, stop)] * 2) as workers:
        (sampled,) = run_at_once([(learn, buffer_url, 60)])
        found = buffer.flow()
        stop.touch()
        inserted = sum(workers.results())
    final = buffer.flow()
    assert sampled == found.sampled == final.sampled == 60 * 16
    assert inserted == final.inserted == len(buffer)
    # The learner keeps to its bound; the collectors may pass theirs by what is in flight.
    assert found.inserted * 4 - sampled >= limiter.min_diff
    assert final.inserted * 4 - sampled <= limiter.max_diff + 4 * 5


def wait_for_ever(url):
    ReplayBuffer(url, wait_s=300).store_batch(rows(5))


def test_a_process_killed_while_it_waits_holds_nobody_up_and_is_told_apart(buffer, buffer_url):
    buffer.store_batch(rows(20))
    with running([(wait_for_ever, buffer_url)]) as workers:
        wait_until(lambda: buffer.flow().waiting, "the collector waits")
        (process,) = workers.processes
        (waiting,) = buffer.flow().waiting
        assert (waiting.pid, waiting.alive) == (process.pid, True)
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
    assert len(buffer.sample(10)) == 10
    assert buffer.store_batch(rows(5)).inserted == 5
    run(buffer_url, f"UPDATE flow_waits SET heartbeat_at = {ago(buffer_url, '1 minute')}")
    assert [waiting.alive for waiting in buffer.flow().waiting] == [False]
    assert run(buffer_url, "SELECT alive FROM v_waiting") == [(0,)]
    assert run(buffer_url, "SELECT inserts_waiting FROM v_flow") == [(0,)]


def write_without_end(url, sign):
    buffer = ReplayBuffer(url, wait_s=60)
    start = 0
    while True:
        buffer.store_batch(rows(5, start))
        start += 5
        open(sign, "w").close()


def test_a_process_killed_while_it_writes_holds_nobody_up(buffer_url, tmp_path):
    buffer = ReplayBuffer(buffer_url, rate_limiter=RateLimiter(1, 5, 10_000), wait_s=30)
    sign = tmp_path / "sign"
    with running([(write_without_end, buffer_url, str(sign))]) as workers:
        wait_until(sign.exists, "the collector writes")
        os.kill(workers.processes[0].pid, signal.SIGKILL)
        workers.processes[0].join(30)
    inserted = buffer.flow().inserted
    assert inserted >= len(buffer) >= 5
    assert len(buffer.sample(5)) == 5
    buffer.store_batch(rows(5))
    assert counts(buffer) == (inserted + 5, 5)


def sample_here(buffer):
    return len(buffer.sample(3))


@pytest.mark.thorough
def test_a_fork_counts_in_a_row_of_its_own(buffer, buffer_url):
    buffer.store_batch(rows(20))
    buffer.sample(4)
    assert run_at_once([(sample_here, buffer), (sample_here, buffer)], "fork") == [3, 3]
    buffer.sample(4)
    assert counts(buffer) == (20, 14)
    found = run(buffer_url, "SELECT holder, n_limited FROM flow")
    assert sorted(n for _, n in found) == [3, 3, 8]
    pids = {re.match(r"\S+ (\d+) \w+$", holder)[1] for holder, _ in found}
    assert len(pids) == 3


@pytest.mark.thorough
def test_rows_of_processes_long_gone_become_one_and_no_count_is_lost(buffer, buffer_url):
    buffer.store_batch(rows(20))
    buffer.sample(4)
    run_at_once([(sample_here, buffer), (sample_here, buffer)], "fork")
    other = ReplayBuffer(buffer_url, name="other", rate_limiter=LIMITER)
    other.store_batch(rows(10))
    other.sample(2)
    run(buffer_url, "UPDATE flow SET heartbeat_at = '2020-01-01T00:00:00.000Z'")
    store = buffer._store
    for _ in range(2):
        with writing(store.engine) as connection:
            flow.tidy(connection, store.info.id)
    number = buffer_id(buffer_url)
    query = "SELECT count(*) FROM flow WHERE buffer_id = :id"
    assert scalar(buffer_url, query, id=number) == 1
    assert scalar(buffer_url, query, id=number + 1) == 1
    assert counts(buffer) == (20, 10)
    buffer.sample(4)  # one that was taken for gone begins a new row
    assert counts(buffer) == (20, 14)
    assert scalar(buffer_url, query, id=number) == 2
    assert other.flow().sampled == 2


def test_a_window_limits_both_sides_and_decays(buffer_url):
    window = RatioWindow(max_ratio=2, min_ratio=0.5, window_s=3_600)
    with ReplayBuffer(buffer_url, rate_limiter=window, wait_s=0) as buffer:
        assert buffer.flow().policy == window
        with pytest.raises(FlowControlError, match="collectors are behind"):
            buffer.sample(1)
        buffer.store_batch(rows(10))
        assert len(buffer.sample(8)) == 8
        buffer.store_batch(rows(5))
        with pytest.raises(FlowControlError, match="learners are behind"):
            buffer.store_batch(rows(5))
        found = buffer.flow()
        assert (found.inserted, found.sampled) == (15, 8)
        assert found.counts.inserted == pytest.approx(15, rel=0.01)
        assert found.counts.sampled == pytest.approx(8, rel=0.01)
        # An hour later a hundredth is left, of both.
        run(buffer_url, f"UPDATE flow SET decayed_at = {ago(buffer_url, '1 hour')}")
        found = buffer.flow()
        assert found.counts.inserted == pytest.approx(0.15, rel=0.01)
        assert found.counts.sampled == pytest.approx(0.08, rel=0.01)
        said = r"15 rows inserted and 8 sampled \(of which 0.1 and 0.1 still count\)"
        with pytest.raises(FlowControlError, match=f"collectors are behind, with {said}"):
            buffer.sample(2)


def test_a_batch_that_waits_in_vain_may_be_made_smaller(buffer_url):
    limiter = RateLimiter(4, error_buffer=40)
    with ReplayBuffer(buffer_url, rate_limiter=limiter, wait_s=0) as buffer:
        # They pass once 36 rows were sampled; but there are none.
        with pytest.raises(
            FlowControlError, match="add learners, store fewer rows in one call, wait"
        ):
            buffer.store_batch(rows(20))
        with pytest.raises(FlowControlError, match="add collectors, sample fewer rows in one call"):
            buffer.sample(2)
        buffer.store_batch(rows(11))
        with pytest.raises(FlowControlError, match="add learners, wait longer"):
            buffer.store_batch(rows(1))


@pytest.mark.parametrize("policy", [None, LIMITER, RatioWindow(max_ratio=2)])
def test_a_limiter_is_not_set_for_a_buffer_that_was_dropped(buffer_url, policy):
    with ReplayBuffer(buffer_url) as buffer:
        ReplayBuffer.drop(buffer_url, "default")
        with pytest.raises(BufferNotFoundError, match="it was dropped, open it again"):
            buffer.set_rate_limiter(policy)


def test_a_buffer_without_a_limiter_sends_nothing_more(buffer_url):
    from sqlalchemy import event

    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows(20))
        noted = []

        def note(_connection, _cursor, statement, *_):
            noted.append(statement)

        event.listen(buffer._store.engine, "before_cursor_execute", note)
        for _ in range(5):
            buffer.sample(4)
            buffer.add(step=1)
        event.remove(buffer._store.engine, "before_cursor_execute", note)
        assert noted
        assert not [statement for statement in noted if "flow" in statement]


def test_without_a_limiter_a_process_tells_what_it_sampled_now_and_then(buffer_url, monkeypatch):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(rows(20))
        buffer.sample(4)
        assert scalar(buffer_url, "SELECT count(*) FROM flow") == 0
        monkeypatch.setattr(flow, "PUBLISH_S", 0.0)
        buffer.sample(6)
        assert run(buffer_url, "SELECT n_sampled, n_batches FROM flow") == [(10, 2)]
        assert run(buffer_url, "SELECT n_sampled, n_batches FROM flow_history") == [(10, 2)]
        assert scalar(buffer_url, "SELECT sampled FROM v_flow") == 10
        buffer.sample(6)
        assert run(buffer_url, "SELECT n_sampled, n_batches FROM flow") == [(16, 3)]


def test_telling_does_not_wait_for_a_writer(sqlite_url, monkeypatch):
    """A writer is waited for up to 30 seconds, where it is."""
    monkeypatch.setattr(flow, "PUBLISH_S", 0.0)
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.store_batch(rows(20))
        for begun in (writing, foreign_writer):
            with (
                begun(buffer._store.engine),
                in_thread(lambda: len(buffer.sample(4))) as found,
            ):
                wait_until(lambda found=found: found == [4], "a sample while another writes", 15)
        assert scalar(sqlite_url, "SELECT count(*) FROM flow") == 0
        buffer.sample(4)
        assert scalar(sqlite_url, "SELECT n_sampled FROM flow") == 12


@contextmanager
def foreign_writer(engine):
    """Hold SQLite's own lock, as another program does that knows of no queue."""
    import sqlite3

    connection = sqlite3.connect(engine.url.database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


def test_a_file_that_may_not_be_written_is_sampled_all_the_same(sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr(flow, "PUBLISH_S", 0.0)
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.store_batch(rows(20))
    run(sqlite_url, "PRAGMA wal_checkpoint(TRUNCATE)")
    path = sqlite_url.removeprefix("sqlite:///")
    with ReplayBuffer(f"sqlite:///file:{path}?immutable=1&uri=true") as buffer:
        assert [len(buffer.sample(4)) for _ in range(3)] == [4, 4, 4]
        assert buffer.flow().sampled == 0


def test_dropping_a_buffer_takes_what_is_known_of_its_pace(buffer, buffer_url):
    buffer.store_batch(rows(10))
    buffer.sample(4)
    ReplayBuffer.drop(buffer_url, "default")
    for table in ("flow", "flow_history", "flow_waits"):
        assert scalar(buffer_url, f"SELECT count(*) FROM {table}") == 0
