"""Rollouts that are handed out to workers, and finished with their episodes."""

import multiprocessing
import os
import pickle
import random
import threading
from collections import Counter

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    ArgumentError,
    BufferNotFoundError,
    EpisodeEndedError,
    EpisodeExistsError,
    EpisodeRefusedError,
    EpisodeTakenError,
    FieldError,
    LeaseLostError,
)
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.support.processes import FRESH, TIMEOUT_S
from tests.support.proxy import proxied
from tests.support.sql import is_sqlite, run, scalar
from tests.support.typed_buffer import both_layouts

_PAST = {
    True: "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{} seconds')",
    False: "clock_timestamp() - interval '{} seconds'",
}


@pytest.fixture
def buffer(buffer_url, make_buffer):
    with make_buffer(buffer_url) as buffer:
        yield buffer


def expire(url, item=None, ago=1):
    """Have the lease of an item, or of all, run out some seconds ago."""
    where = "" if item is None else f" AND id = {item._taken.id}"
    past = _PAST[is_sqlite(url)].format(ago)
    run(url, f"UPDATE work_items SET leased_until = {past} WHERE status = 'taken'{where}")


def step(buffer, number=0):
    return {"number": number} if buffer.fields else {"state": number, "actions": [0]}


def play(buffer, item, n_steps=2):
    """Play the rollout of an item."""
    with item.episode() as episode:
        for number in range(n_steps):
            episode.append(**step(buffer, number), reward=1.0)


def work_of(url, columns="group_id, sibling, status, attempt"):
    return run(url, f"SELECT {columns} FROM v_work ORDER BY group_id, sibling")


def complete_episodes(url):
    """Return the number of complete episodes of each group."""
    query = "SELECT group_id, count(*) FROM v_episodes WHERE status = 'complete' GROUP BY group_id"
    return dict(run(url, query))


@both_layouts
def test_items_are_put_once_taken_and_done_with_their_episodes(buffer, buffer_url):
    tasks = ["maze", {"task_id": "café", "group_id": "g", "payload": {"level": None, "n": 0}}]
    assert buffer.work.put(tasks, group_size=2) == 4
    assert buffer.work.put(tasks, group_size=2) == 0
    items = buffer.work.take(9, worker="w0", lease_s=60)
    assert [(item.group_id, item.sibling, item.task_id) for item in items] == [
        ("maze", 0, "maze"), ("maze", 1, "maze"), ("g", 0, "café"), ("g", 1, "café"),
    ]  # fmt: skip
    assert [item.payload for item in items[1:3]] == [None, {"level": None, "n": 0}]
    assert 55 < items[0].remaining_s <= 60
    assert buffer.work.take(1) == []
    for item in items:
        play(buffer, item)
    assert {row[2] for row in work_of(buffer_url)} == {"done"}
    assert complete_episodes(buffer_url) == {"maze": 2, "g": 2}
    # A greater group has the siblings that are missing, and the others are done for good.
    assert buffer.work.put(tasks, group_size=3) == 2
    more = buffer.work.take(9)
    assert sorted((item.group_id, item.sibling) for item in more) == [("g", 2), ("maze", 2)]
    assert more[0].worker == f"{os.uname().nodename}/{os.getpid()}"
    assert buffer.work.put(iter(["other"])) == 1
    assert buffer.work.put([]) == 0


@both_layouts
def test_a_worker_that_lost_its_item_stores_nothing_more(buffer, buffer_url):
    buffer.work.put(["t"])
    (first,) = buffer.work.take(worker="slow")
    episode = first.episode(mood="sad")
    assert episode.attempt == 1
    assert episode.episode_id == first.episode_id
    episode.append(**step(buffer))
    buffer.flush()
    expire(buffer_url)
    with ReplayBuffer(buffer_url) as elsewhere:
        (second,) = elsewhere.work.take(worker="quick")
        assert (second.attempt, second.sibling) == (2, 0)
        episode.append(**step(buffer, 1))
        with pytest.raises(EpisodeTakenError, match=r"taken again by quick at .* as attempt 2"):
            episode.end()
        for call in (first.heartbeat, first.fail, first.episode):
            with pytest.raises(LeaseLostError, match="'quick' has taken it as attempt 2"):
                call()
        play(elsewhere, second, 3)
        for call in (second.heartbeat, second.fail, second.episode):
            with pytest.raises(LeaseLostError, match="is done: its episode is complete"):
                call()
    query = "SELECT episode_id, status, length, attempt FROM v_episodes ORDER BY episode_id"
    assert run(buffer_url, query) == [("t/0/1", "aborted", 1, 2), ("t/0/2", "complete", 3, 2)]
    query = "SELECT DISTINCT episode_id, attempt FROM v_experiences ORDER BY episode_id"
    assert run(buffer_url, query) == [("t/0/1", 1), ("t/0/2", 2)]


@both_layouts
def test_an_end_is_refused_with_the_steps_of_its_transaction(buffer, buffer_url):
    buffer.work.put(["t"])
    (first,) = buffer.work.take()
    episode = first.episode()
    expire(buffer_url)
    (second,) = buffer.work.take()
    with pytest.raises(EpisodeTakenError), episode:
        episode.append(**step(buffer))
    assert len(buffer) == 0
    play(buffer, second)
    assert complete_episodes(buffer_url) == {"t": 1}


@both_layouts
def test_an_exception_in_the_block_lets_the_item_wait_again(buffer, buffer_url):
    buffer.work.put(["t"], max_attempts=2)
    for attempt in (1, 2):
        (item,) = buffer.work.take()
        assert item.attempt == attempt
        with pytest.raises(FieldError), item.episode() as episode:
            episode.append(**step(buffer), unknown=1)
    assert buffer.work.take() == []
    columns = (
        "status, attempt, max_attempts, reason, worker IS NULL, leased_until, ended_at IS NULL"
    )
    assert work_of(buffer_url, columns) == [
        ("failed", 2, 2, "its episode was aborted", False, None, False)
    ]
    assert buffer.work.put(["t"]) == 0
    assert buffer.work.put(["t"], retry_failed=True, max_attempts=1) == 1
    (item,) = buffer.work.take()
    assert (item.attempt, item.max_attempts) == (3, 3)
    play(buffer, item)
    assert complete_episodes(buffer_url) == {"t": 1}


@both_layouts
def test_fail_aborts_the_episode_and_may_be_final(buffer, buffer_url):
    buffer.work.put(["a", "b"])
    first, second = buffer.work.take(2)
    episode = first.episode()
    episode.append(**step(buffer))
    first.fail("no luck\0")
    first.fail("again")
    assert not episode.is_open
    with ReplayBuffer(buffer_url) as elsewhere:
        begun = second.episode()
        begun.append(**step(buffer))
        pickle.loads(pickle.dumps(second)).fail("for good", retry=False)
        begun.append(**step(buffer))
        with pytest.raises(EpisodeEndedError):
            begun.end()
        assert [item.group_id for item in elsewhere.work.take(9)] == ["a"]
    assert work_of(buffer_url, "status, reason") == [("taken", None), ("failed", "for good")]
    second.fail(retry=False)


@both_layouts
def test_a_lease_is_extended_and_attempts_are_limited(buffer, buffer_url):
    buffer.work.put(["t"], max_attempts=1)
    (item,) = buffer.work.take(lease_s=3_600)
    expire(buffer_url)
    item.heartbeat()  # no other worker has taken it
    assert item.remaining_s > 3_500
    assert buffer.work.take() == []
    expire(buffer_url)
    assert buffer.work.take() == []
    ((status, reason),) = work_of(buffer_url, "status, reason")
    assert (status, reason) == ("failed", "its lease ran out, and it has no attempts left")
    with pytest.raises(LeaseLostError, match=r"has failed \(its lease ran out"):
        item.heartbeat()
    buffer.work.put(["u"], max_attempts=None)
    for attempt in range(1, 9):
        (item,) = buffer.work.take()
        assert item.attempt == attempt
        expire(buffer_url)


def test_wrong_arguments_are_named(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        work = buffer.work
        wrong = [
            lambda: work.put("maze"),
            lambda: work.put([{"group_id": "g"}]),
            lambda: work.put([{"task_id": "t", "payloads": 1}]),
            lambda: work.put([None]),
            lambda: work.put(["t"], group_size=0),
            lambda: work.put(["t"], max_attempts=0),
            lambda: work.put([{"task_id": t, "group_id": "g"} for t in "ab"]),
            lambda: work.take(0),
            lambda: work.take(1, worker=""),
            lambda: work.take(1, lease_s=0),
            lambda: work.take(1, timeout_s=-1),
            lambda: work.take(1, max_ahead=0),
        ]
        for call in wrong:
            with pytest.raises(ArgumentError):
                call()
        for task in ({"task_id": 1}, {"task_id": "t", "payload": b"x"}, "t" * 451):
            with pytest.raises(FieldError):
                work.put([task])
        assert work.put(["t"]) == 1
        with pytest.raises(ArgumentError, match="group 't' has rollouts of task 't', and not of"):
            work.put([{"task_id": "u", "group_id": "t"}])
        (item,) = work.take()
        for call in (lambda: item.fail(""), lambda: item.fail(retry=1), lambda: item.heartbeat(0)):
            with pytest.raises(ArgumentError):
                call()
        episode = item.episode()
        with pytest.raises(EpisodeExistsError, match="was begun before by attempt 1"):
            item.episode()
        with pytest.raises(EpisodeEndedError, match="belongs to a work item"):
            buffer.episode("t", episode_id=item.episode_id, resume=True)
        with pytest.raises(FieldError, match="group_id: the item decides"):
            item.episode(group_id="other")
        with pytest.raises(ArgumentError, match="'t' was put with another payload"):
            work.put([{"task_id": "t", "payload": 1}], group_size=2)
        with pytest.raises(ArgumentError, match="'u' has two payloads"):
            work.put([{"task_id": "u", "payload": n} for n in (1, 2)])
        assert work.put([{"task_id": "u", "payload": {"a": 1, "b": None}}]) == 1
        assert work.put([{"task_id": "u", "payload": {"b": None, "a": 1}}], group_size=2) == 1
        episode.end()


@both_layouts
def test_an_episode_without_a_step_is_no_rollout(buffer, buffer_url):
    buffer.work.put(["t"], max_attempts=2)
    for _ in range(2):
        (item,) = buffer.work.take()
        with item.episode():
            pass
    assert buffer.work.take() == []
    assert work_of(buffer_url, "status, attempt, reason") == [
        ("failed", 2, "its episode ended without a step")
    ]
    assert buffer.work.put(["t"], retry_failed=True) == 1
    (item,) = buffer.work.take()
    play(buffer, item)
    assert work_of(buffer_url, "status, attempt, reason") == [("done", 3, None)]


@both_layouts
def test_ends_from_elsewhere_finish_the_item(buffer, buffer_url):
    buffer.work.put(["a", "b"])
    for item in buffer.work.take(2):
        item.episode().append(**step(buffer))
        buffer.flush()
        status = "complete" if item.task_id == "a" else "aborted"
        buffer.end_episode(item.episode_id, status=status)
    assert work_of(buffer_url, "task_id, status") == [("a", "done"), ("b", "waiting")]


@both_layouts
def test_a_deleted_episode_and_a_cleared_buffer_end_their_writers(buffer, buffer_url):
    buffer.work.put(["a", "b"])
    first, second = buffer.work.take(2)
    episode = first.episode()
    buffer.delete_episodes([first.episode_id])
    episode.append(**step(buffer))
    with pytest.raises(EpisodeTakenError, match="was deleted"):
        episode.end()
    expire(buffer_url)
    (again,) = buffer.work.take()
    assert (again.group_id, again.attempt) == ("a", 2)
    play(buffer, again)
    episode = second.episode()
    assert buffer.clear() == 2
    episode.append(**step(buffer))
    with pytest.raises(EpisodeTakenError, match="was deleted"):
        episode.end()
    with pytest.raises(LeaseLostError, match="as the buffer was cleared"):
        second.heartbeat()
    assert buffer.work.put(["a"]) == 1


@both_layouts
@pytest.mark.parametrize("settings", [{}, {"max_episodes": 2, "evict_by": "episode"}])
def test_max_ahead_bounds_what_is_open_and_stored_until_it_leaves(
    make_buffer, buffer_url, settings
):
    with make_buffer(buffer_url, **settings) as buffer:
        buffer.work.put(["t"], group_size=9)
        first, second, third = buffer.work.take(9, max_ahead=3)
        assert buffer.work.take(1, max_ahead=3, timeout_s=0.01) == []
        play(buffer, first)
        second.fail()
        (second,) = buffer.work.take(9, max_ahead=3)
        for item in (second, third):
            play(buffer, item)
        n_free = 1 if settings else 0  # the first has been evicted
        assert len(buffer.work.take(9, max_ahead=3)) == n_free
        assert len(buffer.work.take(9, max_ahead=5)) == 2
        buffer.delete_episodes([third.episode_id])
        with ReplayBuffer(buffer_url) as elsewhere:
            assert len(elsewhere.work.take(9, max_ahead=5)) == 1
        # Without a limit, and for what was lost, nothing is counted.
        expire(buffer_url)
        assert len(buffer.work.take(2, max_ahead=1)) == 2
        assert len(buffer.work.take(9)) > 0


@both_layouts
@pytest.mark.parametrize("max_use", [None, 1])
def test_max_ahead_counts_what_no_lease_has_used(make_buffer, buffer_url, max_use):
    with make_buffer(buffer_url, leases=True, max_use=max_use) as buffer:
        buffer.checkpoint("start", consumer="c")
        buffer.work.put(["a", "b", "c"], group_size=2)
        for item in buffer.work.take(9, max_ahead=4):
            play(buffer, item)
        assert buffer.work.take(9, max_ahead=4) == []
        asked = {"group_by": "group_id", "group_size": 2, "consumer": "c", "timeout_s": 0}
        batch = buffer.lease(1, **asked).take()
        assert buffer.work.take(9, max_ahead=4) == []
        batch.ack()
        assert scalar(buffer_url, "SELECT sum(CAST(consumed AS INTEGER)) FROM v_work") == 2
        (item,) = buffer.work.take(1, max_ahead=4)
        # What a restored trainer gets again is not consumed.
        buffer.restore("start", consumer="c")
        item.fail()
        assert buffer.work.take(1, max_ahead=4) == []


def test_an_attempt_whose_rollout_was_used_is_not_consumed_by_the_next_one(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.work.put(["t"])
        (item,) = buffer.work.take()
        item.episode().append(state=1)
        buffer.flush()
        run(buffer_url, "UPDATE episodes SET was_used = true")  # as a lease of its siblings may
        expire(buffer_url)
        (item,) = buffer.work.take()
        play(buffer, item)
        assert scalar(buffer_url, "SELECT consumed FROM v_work") in (False, 0)


@both_layouts
def test_a_worker_waits_for_work_and_is_interrupted_by_its_timeout(buffer, buffer_url):
    assert buffer.work.take(1, timeout_s=0.01) == []
    taken = []

    def wait():
        taken.extend(buffer.work.take(2, timeout_s=TIMEOUT_S))

    thread = threading.Thread(target=wait)
    thread.start()
    buffer.work.put(["t"])
    thread.join(TIMEOUT_S)
    assert [item.task_id for item in taken] == ["t"]


def _play_in_another_process(item):
    with item.episode() as episode:
        episode.append(state=1, actions=[0])


def _play_all(buffer, worker):
    for item in buffer.work.take(9, worker=worker):
        with item.episode() as episode:
            episode.append(state=1, actions=[0])


@pytest.mark.parametrize("method", ["fork", FRESH])
def test_items_and_buffers_are_sent_to_other_processes(buffer_url, method):
    context = multiprocessing.get_context(method)
    with ReplayBuffer(buffer_url) as buffer:
        buffer.work.put(["a"], group_size=3)
        (item,) = buffer.work.take()
        calls = [(_play_in_another_process, (item,)), (_play_all, (buffer, "p"))]
        for target, args in calls:
            process = context.Process(target=target, args=args)
            process.start()
            process.join(TIMEOUT_S)
            assert process.exitcode == 0
        assert complete_episodes(buffer_url) == {"a": 3}


def test_a_copy_has_no_work_and_dropping_a_buffer_deletes_it(buffer_url):
    with (
        ReplayBuffer(buffer_url, "one") as buffer,
        ReplayBuffer(buffer_url, "copy") as copy,
    ):
        buffer.work.put(["a"], group_size=2)
        play(buffer, buffer.work.take()[0])
        buffer.copy_to(copy)
        assert copy.work.take(9) == []
        assert scalar(buffer_url, "SELECT count(*) FROM episodes WHERE item_id IS NOT NULL") == 1
        assert copy.work.put(["a"], group_size=2) == 2
        copy.work.take(2)
        assert len(buffer.work.take(9)) == 1
        ReplayBuffer.drop(buffer_url, "one")
        for call in (buffer.work.take, lambda: buffer.work.put(["b"])):
            with pytest.raises(BufferNotFoundError):
                call()
    assert work_of(buffer_url, "DISTINCT buffer, group_id, sibling") == [
        ("copy", "a", 0), ("copy", "a", 1),
    ]  # fmt: skip


@both_layouts
@pytest.mark.parametrize("cut", ["before", "after"])
def test_each_call_takes_effect_once_over_lost_connections(make_database_url, make_buffer, cut):
    url = make_database_url("postgresql", schema=True)
    make_buffer(url).close()
    with proxied(url) as proxy, make_buffer(proxy.url) as buffer:

        def cutting(call):
            proxy.cuts = [cut]
            result = call()
            assert proxy.cuts == []
            return result

        assert cutting(lambda: buffer.work.put(["t"], group_size=3)) == 3
        first, second = cutting(lambda: buffer.work.take(2))
        assert (first.attempt, second.sibling) == (1, 1)
        cutting(first.heartbeat)
        episode = cutting(first.episode)
        episode.append(**step(buffer))
        cutting(episode.end)
        second.episode().append(**step(buffer))
        buffer.flush()
        cutting(lambda: second.fail(retry=False))
        expire(url)
        work = [("t", 0, "done", 1), ("t", 1, "failed", 1), ("t", 2, "waiting", 0)]
        assert work_of(url) == work
        engine_for(resolve_url(proxy.url)).dispose()


class Model:
    """What the items of a buffer are, in plain Python."""

    def __init__(self):
        self.items = {}  # (group, sibling) -> dict, in the order in which they were put
        self.expired = []  # keys, the one that ran out first before others

    def put(self, group, size, most):
        keys = [(group, sibling) for sibling in range(size) if (group, sibling) not in self.items]
        for key in keys:
            self.items[key] = {"status": "waiting", "attempt": 0, "most": most, "held": False}
        return len(keys)

    def ahead(self):
        return sum(i["status"] == "taken" or i["held"] for i in self.items.values())

    def take(self, n, max_ahead):
        taken = []
        while self.expired and len(taken) < n:
            key = self.expired.pop(0)
            item = self.items[key]
            if item["most"] is not None and item["attempt"] >= item["most"]:
                item["status"] = "failed"
            else:
                taken.append(key)
        for key, item in self.items.items():
            is_full = max_ahead is not None and self.ahead() >= max_ahead
            if item["status"] == "waiting" and len(taken) < n and not is_full:
                item["status"] = "taken"
                taken.append(key)
        for key in taken:
            self.items[key]["attempt"] += 1
        return taken

    def has(self, handle):
        item = self.items[handle.group_id, handle.sibling]
        return item["attempt"] == handle.attempt and item["status"] == "taken"

    def end(self, handle, status):
        """End the attempt of an item; return False if another one has it."""
        key = handle.group_id, handle.sibling
        if not self.has(handle):
            return False
        if key in self.expired:
            self.expired.remove(key)
        item = self.items[key]
        has_more = item["most"] is None or item["attempt"] < item["most"]
        item["status"] = "failed" if status == "waiting" and not has_more else status
        item["held"] = status == "done"
        return True

    def may_fail(self, handle):
        """Return True if failing the item is no error, though this attempt of it is over."""
        item = self.items[handle.group_id, handle.sibling]
        return item["attempt"] == handle.attempt and item["status"] in ("waiting", "failed")


class Caller:
    """Makes random calls, and compares what each does with the model."""

    def __init__(self, buffer, url, seed):
        self.buffer, self.url = buffer, url
        self.chance, self.model = random.Random(seed), Model()
        self.handles, self.episodes = [], {}
        self.n_expired = self.n_refused = 0

    def put(self):
        group, size = f"g{self.chance.randrange(6)}", self.chance.randint(1, 4)
        most = self.chance.choice([2, None])
        n = self.model.put(group, size, most)
        assert self.buffer.work.put([group], group_size=size, max_attempts=most) == n

    def take(self):
        n, max_ahead = self.chance.randint(1, 3), self.chance.choice([None, 2, 6])
        items = self.buffer.work.take(n, max_ahead=max_ahead)
        expected = self.model.take(n, max_ahead)
        assert [(item.group_id, item.sibling) for item in items] == expected
        attempts = [self.model.items[key]["attempt"] for key in expected]
        assert [item.attempt for item in items] == attempts
        self.handles += items

    def newest(self, handles):
        return self.chance.choice(list(handles)[-5:])

    def begin(self):
        handle = self.newest(self.handles)
        if handle in self.episodes:
            return
        if self.model.has(handle):
            self.episodes[handle] = handle.episode()
        else:
            with pytest.raises(LeaseLostError):
                handle.episode()

    def append(self):
        for handle, episode in list(self.episodes.items())[-5:]:
            if episode.is_open and self.chance.random() < 0.5:
                try:
                    episode.append(**step(self.buffer))
                    self.buffer.flush()
                except EpisodeRefusedError:
                    assert not self.model.has(handle)

    def end(self):
        if not self.episodes:
            return
        handle = self.newest(self.episodes)
        episode = self.episodes[handle]
        if not episode.is_open:
            return
        status = self.chance.choice(["done", "done", "waiting"])
        if self.model.has(handle):
            episode.append(**step(self.buffer))  # one without steps is not ahead
            (episode.end if status == "done" else episode.abort)()
            self.model.end(handle, status)
        else:
            self.n_refused += 1
            with pytest.raises(EpisodeRefusedError):
                episode.end()

    def fail(self):
        handle, retry = self.chance.choice(self.handles), self.chance.random() < 0.8
        if self.model.has(handle):
            handle.fail(retry=retry)
            self.model.end(handle, "waiting" if retry else "failed")
        elif self.model.may_fail(handle):
            handle.fail(retry=retry)
            if not retry:
                self.model.items[handle.group_id, handle.sibling]["status"] = "failed"
        else:
            with pytest.raises(LeaseLostError):
                handle.fail(retry=retry)

    def beat(self):
        handle = self.chance.choice(self.handles)
        key = handle.group_id, handle.sibling
        if self.model.has(handle):
            handle.heartbeat()
            if key in self.model.expired:
                self.model.expired.remove(key)
        else:
            with pytest.raises(LeaseLostError):
                handle.heartbeat()

    def run_out(self):
        handle = self.chance.choice(self.handles)
        key = handle.group_id, handle.sibling
        if self.model.has(handle) and key not in self.model.expired:
            self.n_expired += 1
            expire(self.url, handle, 10_000 - self.n_expired)
            self.model.expired.append(key)

    def consume(self):
        done = [key for key, item in self.model.items.items() if item["held"]]
        if done:
            group, sibling = key = self.chance.choice(done)
            own = "SELECT episode_id FROM v_work WHERE group_id = :g AND sibling = :s"
            self.buffer.delete_episodes([scalar(self.url, own, g=group, s=sibling)])
            self.model.items[key]["held"] = False


@both_layouts
@pytest.mark.parametrize("seed", [0, 2])
def test_random_calls_do_what_a_model_in_python_does(make_buffer, buffer_url, seed):
    # Nothing is stored by a thread, so that a seed has the same calls each time.
    with make_buffer(buffer_url, flush_s=600) as buffer:
        compare_with_model(buffer, buffer_url, seed)


def compare_with_model(buffer, buffer_url, seed):
    caller = Caller(buffer, buffer_url, seed)
    caller.put()
    caller.take()
    weights = {
        caller.put: 1, caller.take: 3, caller.begin: 4, caller.append: 1, caller.end: 4,
        caller.fail: 1, caller.beat: 1, caller.run_out: 3, caller.consume: 1,
    }  # fmt: skip
    for _ in range(150):
        caller.chance.choices(list(weights), list(weights.values()))[0]()
    items = caller.model.items
    expected = [(*key, item["status"], item["attempt"]) for key, item in items.items()]
    assert work_of(buffer_url) == sorted(expected)
    complete = Counter(group for (group, _), item in items.items() if item["status"] == "done")
    assert complete_episodes(buffer_url) == dict(complete)
    assert sum(complete.values()) > 0
    assert caller.n_refused > 0
    # Whatever is left is played in the end, once each.
    expire(buffer_url)
    run(buffer_url, "UPDATE work_items SET max_attempts = NULL")
    while taken := buffer.work.take(5):
        for item in taken:
            play(buffer, item)
    failed = Counter(group for (group, _), item in items.items() if item["status"] == "failed")
    sizes = Counter(group for group, _ in items)
    assert complete_episodes(buffer_url) == dict(sizes - failed)
