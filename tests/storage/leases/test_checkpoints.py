"""Batches that are acknowledged at any time, checkpoints of their consumers, and the way back."""

import json
import multiprocessing
import random
import time
from collections import Counter

import numpy as np
import pytest

from sqlbuffer import (
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    RandomTaskSample,
    RateLimiter,
    ReplayBuffer,
)
from sqlbuffer.errors import (
    ArgumentError,
    BatchNotFoundError,
    BufferConfigError,
    CheckpointNotFoundError,
    EpisodeEndedError,
    InsufficientDataError,
    LeaseLostError,
)
from tests.support.leases import expire, none_left, steps_leased, store, uses_of
from tests.support.processes import FRESH, TIMEOUT_S
from tests.support.sql import run, scalar
from tests.support.typed_buffer import both_layouts

ONE = {"timeout_s": 0, "consumer": "a", "order": "fifo"}
GROUP = {"timeout_s": 0, "consumer": "a", "group_by": "group_id", "group_size": 2}


@pytest.fixture
def buffer(buffer_url, make_buffer):
    """A buffer of six rows, each to be used once."""
    with make_buffer(buffer_url, leases=True, max_use=1, track_samples=True) as buffer:
        store(buffer, range(6))
        yield buffer


def steps_of(batch):
    return [row.exp_meta.step for row in batch]


def end_all(url, call):
    """End the batches of consumer `a`, in another process."""
    with ReplayBuffer(url) as buffer:
        for batch in buffer.leases("a"):
            getattr(batch, call)()


def in_another_process(function, *args):
    process = multiprocessing.get_context(FRESH).Process(target=function, args=args)
    process.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 0


@both_layouts
def test_a_batch_is_taken_without_a_block_and_ended_later(buffer, buffer_url):
    first, second = buffer.lease(2, **ONE).take(), buffer.lease(1, **ONE).take()
    assert steps_of(first) == [0, 1]
    assert first.consumer == "a"
    assert not first.has_ended
    assert 290 < first.remaining_s <= 300
    first.ack()
    first.ack()
    second.nack()
    second.nack()
    assert (first.has_ended, first.remaining_s, len(buffer)) == (True, 0.0, 4)
    assert steps_leased(buffer, 4, order="fifo") == [2, 3, 4, 5]
    for call in (first.nack, first.renew):
        with pytest.raises(LeaseLostError, match="was acknowledged, or its block has ended"):
            call()
    for call in (second.ack, second.renew):
        with pytest.raises(LeaseLostError, match="was given back"):
            call()
    with buffer.lease(1, **ONE) as third:
        third.nack()
    assert uses_of(buffer_url) == dict.fromkeys(range(3, 7), 0)
    lease = buffer.lease(1, **ONE)
    assert "not taken" in repr(lease)
    lease.take().nack()
    assert "ended" in repr(lease)
    with pytest.raises(RuntimeError, match="taken already"):
        lease.take()


@both_layouts
@pytest.mark.parametrize("call", ["ack", "nack"])
def test_another_process_ends_a_batch(buffer, buffer_url, call):
    batch = buffer.lease(2, **ONE).take()
    other = buffer.lease(1, timeout_s=0, consumer="b").take()
    in_another_process(end_all, buffer_url, call)
    assert len(buffer) == (4 if call == "ack" else 6)
    assert [lease.lease_id for lease in buffer.leases()] == [other.lease_id]
    if call == "ack":
        batch.ack()  # was done
        with pytest.raises(LeaseLostError, match="was acknowledged"):
            buffer_of_same_lease(buffer, batch).nack()
    else:
        with pytest.raises(LeaseLostError, match="before it was acknowledged: it was given back"):
            batch.ack()
    assert len(buffer) == (4 if call == "ack" else 6)


def buffer_of_same_lease(buffer, batch):
    """Return the batch as one that has not ended in this process."""
    batch._end = None
    return batch


@both_layouts
def test_leases_lists_what_runs_with_its_rows_and_groups(make_buffer, buffer_url):
    with make_buffer(buffer_url, leases=True) as buffer:
        assert buffer.leases() == []
        for task in "xyz":
            store(buffer, range(3), task=task)
        taken = buffer.lease(2, group_by="task_id", order="fifo", consumer="a", timeout_s=0).take()
        single = buffer.lease(1, timeout_s=0).take()
        groups, alone = buffer.leases()
        assert [len(group) for group in groups.groups] == [3, 3]
        assert [row.seq for row in groups] == taken.seqs.tolist() == groups.seqs.tolist()
        assert (alone.consumer, alone.groups, len(alone)) == (None, [], 1)
        assert alone[0] == single[0]
        assert 290 < groups.remaining_s <= 300
        assert "2 groups, 6 rows" in repr(groups)
        assert "consumer='a'" in repr(groups)
        assert buffer.leases("b") == []
        buffer.delete(QueryBuilder().eq("exp_meta.task_id", "x"))
        (left,) = buffer.leases("a")
        assert [row.exp_meta.task_id for row in left] == ["y"] * 3
        left.renew(lease_s=1_000)
        assert 990 < buffer.leases("a")[0].remaining_s <= 1_000
        expire(buffer_url)
        assert buffer.leases() == []
        with pytest.raises(LeaseLostError, match="ran out before it was acknowledged"):
            left.ack()


def test_calls_refuse_what_they_do_not_take(buffer, buffer_url):
    for wrong in ("", 3, b"a"):
        with pytest.raises(ArgumentError, match="consumer"):
            buffer.lease(1, consumer=wrong)
        with pytest.raises(ArgumentError, match="consumer"):
            buffer.checkpoint("x", consumer=wrong)
        with pytest.raises(ArgumentError, match="name"):
            buffer.checkpoint(wrong, consumer="a")
    with pytest.raises(ArgumentError, match="keep"):
        buffer.checkpoint("x", consumer="a", keep=0)
    with pytest.raises(ArgumentError, match=r"loaders\[1\]"):
        buffer.checkpoint("x", consumer="a", loaders=[RandomSampler(seed=1), 3])

    class Odd:
        def state_dict(self):
            return {"rng": object()}

    with pytest.raises(ArgumentError, match="cannot be stored as JSON"):
        buffer.checkpoint("x", consumer="a", loaders=[Odd()])
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 'x'; it has none"):
        buffer.restore("x", consumer="a")
    buffer.checkpoint("x", consumer="a")
    with pytest.raises(ArgumentError, match="has a checkpoint 'x' already"):
        buffer.checkpoint("x", consumer="a")
    with pytest.raises(CheckpointNotFoundError, match="its newest ones are 'x'"):
        buffer.restore("y", consumer="a")
    assert [mark.name for mark in buffer.checkpoints()] == ["x"]
    with (
        ReplayBuffer(buffer_url, "plain") as plain,
        pytest.raises(BufferConfigError, match="without leases"),
    ):
        plain.leases()


@both_layouts
def test_what_was_acknowledged_after_a_mark_is_free_again(buffer, buffer_url):
    buffer.set_clock(7)
    buffer.checkpoint("start", consumer="a")
    before = buffer.lease(1, **ONE).take()
    before.ack()
    buffer.checkpoint("one", consumer="a")
    with buffer.lease(2, **ONE) as after:
        pass
    held = buffer.lease(1, **ONE).take()
    others = buffer.lease(1, timeout_s=0, order="fifo", consumer="b").take()
    others.ack()
    assert "1 rows may be claimed, 1 leased by others, 3 acknowledged, and kept" in none_left(
        buffer, 2
    )
    assert run(
        buffer_url, "SELECT checkpoint, leases, rows FROM v_checkpoints ORDER BY created_at"
    ) == [("start", 0, 0), ("one", 1, 1)]
    assert run(
        buffer_url,
        "SELECT consumer, rows, kept, checkpoint, leased_until IS NULL FROM v_leases "
        "ORDER BY lease_id",
    ) == [("a", 1, True, "one", True), ("a", 2, True, None, True), ("a", 1, False, None, False)]
    store(buffer, range(6, 8))
    restored = buffer.restore("one", consumer="a")
    assert (restored.n_leases, restored.n_freed, restored.n_missing) == (2, 3, 0)
    assert restored.states == []
    with pytest.raises(LeaseLostError):
        held.ack()
    assert steps_leased(buffer, 5, order="fifo") == [1, 2, 3, 5, 6]
    assert buffer.clock == 7
    logged = dict(run(buffer_url, "SELECT DISTINCT batch_id, undone FROM v_samples"))
    assert logged == {
        before.batch_id: False, after.batch_id: True, held.batch_id: True, others.batch_id: False,
    }  # fmt: skip
    assert buffer.batch(after.batch_id).undone
    assert buffer.batch(after.batch_id).consumer == "a"
    # Once more, as after a trainer that was killed during its start.
    assert buffer.restore("one", consumer="a").n_leases == 0
    assert buffer.restore("start", consumer="a").n_freed == 1
    assert [mark.name for mark in buffer.checkpoints("a")] == ["start"]
    assert steps_leased(buffer, 6, order="fifo") == [0, 1, 2, 3, 5, 6]


@both_layouts
def test_rows_stay_until_no_mark_that_is_kept_needs_them(buffer, buffer_url):
    for number in range(5):
        buffer.checkpoint(f"{number}", consumer="a", keep=2)
        # The marks are those of the last two; what was acknowledged before both has left.
        assert len(buffer) == 6 - max(0, number - 1)
        assert scalar(buffer_url, "SELECT count(*) FROM queue_items") == len(buffer)
        with buffer.lease(1, **ONE) as batch:
            assert steps_of(batch) == [number]
    assert [mark.name for mark in buffer.checkpoints("a")] == ["3", "4"]
    assert steps_leased(buffer, 1) == [5]
    assert "may be claimed" in none_left(buffer, 2)
    assert buffer.delete_checkpoints("a") == 2
    assert len(buffer) == 1
    assert buffer.checkpoints() == []
    assert buffer.delete_checkpoints("a") == 0
    with buffer.lease(1, **ONE):
        pass
    assert len(buffer) == 0


@both_layouts
def test_rows_that_left_meanwhile_are_counted(make_buffer, buffer_url):
    settings = {"leases": True, "max_use": 1, "max_capacity": 6, "track_samples": True}
    with make_buffer(buffer_url, **settings) as buffer:
        store(buffer, range(6))
        buffer.checkpoint("start", consumer="a")
        batch = buffer.lease(4, **ONE).take()
        batch.ack()
        store(buffer, range(6, 8))
        buffer.delete([4])
        logged = buffer.batch(batch.batch_id)
        assert (logged.missing, steps_of(logged)) == ([1, 2, 4], [2])
        restored = buffer.restore("start", consumer="a")
        assert (restored.n_freed, restored.n_missing) == (1, 3)
        assert steps_leased(buffer, 1, order="fifo") == [2]
        assert len(buffer) == 5
        run(buffer_url, "DELETE FROM samples")
        with pytest.raises(BatchNotFoundError, match="has no batch 1 in its sample log"):
            buffer.batch(1)


def play(buffer, group, *slots, abort=False):
    for slot in slots:
        with buffer.episode("t", episode_id=f"{group}-{slot}", group_id=group) as writer:
            writer.append(**{"obs" if buffer.fields else "state": 1.0})
            writer.append(**{"obs" if buffer.fields else "state": 2.0})
            if abort:
                writer.abort()


@pytest.mark.parametrize("fields", [None, {"obs": "float32"}], ids=["rows", "typed"])
def test_groups_come_back_whole_and_take_late_siblings_again(buffer_url, fields):
    options = {} if fields is None else {"fields": fields}
    with ReplayBuffer(buffer_url, leases=True, max_use=1, **options) as buffer:
        play(buffer, "g", 1, 2)
        play(buffer, "g", 3, abort=True)
        buffer.checkpoint("start", consumer="a")
        with buffer.lease(1, **GROUP) as batch:
            assert len(batch) == 4
        with pytest.raises(Exception, match="used"):
            buffer.episode("t", episode_id="g-3", group_id="g", resume=True)
        play(buffer, "g", 4)  # late
        said = none_left(buffer, group_by="group_id", group_size=2)
        assert "0 groups may be claimed" in said
        assert buffer.restore("start", consumer="a").n_freed == 4
        assert scalar(buffer_url, "SELECT count(*) FROM episodes WHERE was_used") == 0
        with buffer.lease(1, **{**GROUP, "group_size": 3}) as batch:
            assert Counter(row.exp_meta.episode_id for row in batch) == {
                "g-1": 2, "g-2": 2, "g-4": 2,
            }  # fmt: skip
        buffer.restore("start", consumer="a")
        with buffer.episode("t", episode_id="g-3", group_id="g", resume=True) as writer:
            writer.append(**{"obs" if fields else "state": 3.0})
        with buffer.lease(1, **{**GROUP, "group_size": 4}) as batch:
            assert len(batch) == 9
        assert buffer.delete_checkpoints("a") == 1
        assert len(buffer) == 0
        assert scalar(buffer_url, "SELECT count(*) FROM queue_items") == 0


def test_failed_siblings_leave_with_their_group(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1) as buffer:
        play(buffer, "g", 1, 2)
        play(buffer, "g", 3, abort=True)
        buffer.checkpoint("start", consumer="a")
        with buffer.lease(1, **GROUP):
            pass
        assert len(buffer) == 6
        for name in ("one", "two"):
            buffer.checkpoint(name, consumer="a", keep=1)
        assert len(buffer) == 0


def test_states_of_loaders_and_samplers_come_back(buffer_url):
    with ReplayBuffer(buffer_url, fields={"x": "int64"}, priorities=True) as buffer:
        buffer.extend({"x": np.arange(40), "priority": np.arange(1.0, 41.0)})
        loader = buffer.loader("step", 4, epochs=2, seed=3)
        samplers = [
            RandomSampler(seed=5), PrioritizedSampler(seed=6, beta_anneal_steps=10),
            RandomSampler(),
        ]  # fmt: skip
        batches = iter(loader)

        def draw(it):
            drawn = [buffer.sample_arrays(4, sampler=s).x.tolist() for s in samplers[:2]]
            return [next(it).x.tolist(), *drawn, samplers[1].beta]

        for _ in range(3):
            draw(batches)
        mark = buffer.checkpoint("three", consumer="a", loaders=[loader, *samplers])
        later = [draw(batches) for _ in range(3)]
        json.dumps(mark.states)
        loader, samplers[0] = buffer.loader("step", 4, epochs=2, seed=3), RandomSampler(seed=5)
        samplers[1] = PrioritizedSampler(seed=6, beta_anneal_steps=10)
        restored = buffer.restore("three", consumer="a")
        assert restored.states == mark.states == buffer.checkpoints()[0].states
        for source, state in zip([loader, *samplers], restored.states, strict=True):
            source.load_state_dict(state)
        batches = iter(loader)
        assert [draw(batches) for _ in range(3)] == later
        for wrong, message in (
            (samplers[1], "sampler='RandomSampler'"), (RandomSampler(seed=9), "seed=5"),
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match=message):
                wrong.load_state_dict(restored.states[1])
        with pytest.raises(ArgumentError, match="state_dict"):
            RandomTaskSample(seed=1).load_state_dict({})


def test_ranks_go_on_through_the_database_in_another_number(buffer_url):
    with ReplayBuffer(buffer_url, fields={"x": "int64"}) as buffer:
        buffer.extend({"x": np.arange(100)})

        def ranks(world):
            return [
                buffer.loader("step", 4, epochs=1, seed=1, shard=(rank, world))
                for rank in range(world)
            ]

        taken = []
        for rank, loader in enumerate(ranks(4)):
            batches = iter(loader)
            for _ in range(rank + 1):
                taken += next(batches).x.tolist()
            buffer.checkpoint("step-9", consumer=f"trainer-{rank}", loaders=[loader])
        states = [mark.states[0] for mark in buffer.checkpoints(name="step-9")]
        for loader in ranks(2):
            loader.load_state_dict(states)
            taken += [x for batch in loader for x in batch.x.tolist()]
        assert sorted(taken) == list(range(100))


def test_undone_draws_do_not_count_for_the_rate_limiter(buffer_url):
    limiter = RateLimiter(samples_per_insert=1.0, min_size=1, error_buffer=4.0)
    with ReplayBuffer(buffer_url, leases=True, max_use=1, rate_limiter=limiter) as buffer:
        store(buffer, range(4))
        buffer.checkpoint("start", consumer="a")
        for _ in range(3):
            with buffer.lease(4, **ONE):
                pass
            assert buffer.restore("start", consumer="a").n_freed == 4


@both_layouts
def test_a_copy_holds_kept_rows_as_used(buffer, make_database_url):
    buffer.checkpoint("start", consumer="a")
    with buffer.lease(2, **ONE):
        pass
    fields = {"fields": buffer.fields} if buffer.fields else {}
    with ReplayBuffer(
        make_database_url("sqlite", schema=True), leases=True, max_use=1, **fields
    ) as copied:
        buffer.copy_to(copied)
        assert steps_leased(copied, 4, order="fifo") == [2, 3, 4, 5]
        assert "4 rows may be claimed" in none_left(copied, 5)
        assert copied.checkpoints() == []
        assert copied.leases() == []
        with copied.lease(1, **ONE):
            pass
        assert len(copied) == 3


@both_layouts
def test_a_logged_batch_has_the_labels_of_its_moment(make_buffer, buffer_url):
    with make_buffer(buffer_url, track_samples=True) as buffer:
        store(buffer, range(3))
        buffer.annotate([1], reward=10.0, extra={"judge": "first"})
        early = buffer.sample(3, sampler=RandomSampler(replace=True, seed=1))
        rewards = [row.exp_data.reward_t for row in early]
        time.sleep(0.005)  # times of SQLite have milliseconds
        buffer.annotate([1, 2, 3], reward=20.0, adv_t=1.0, extra={"judge": "second"})
        late = buffer.sample(3)
        logged = buffer.batch(early.batch_id)
        assert [row.exp_data.reward_t for row in logged] == rewards
        assert [row.seq for row in logged] == [row.seq for row in early] == logged.seqs.tolist()
        assert list(logged) == list(early)
        assert sorted(buffer.batch(late.batch_id).arrays(["reward"]).reward) == [20.0] * 3
        assert (logged.sampler, logged.seed, logged.undone) == ("RandomSampler", "1", False)
        assert logged.consumer is None
        assert logged.sampled_at.utcoffset().total_seconds() == 0
        assert repr(logged).startswith("LoggedBatch(1, 3 rows)")


def test_late_fields_and_parts_of_a_logged_batch(buffer_url):
    fields = {"x": "int64", "weight": "float32"}
    with ReplayBuffer(buffer_url, fields=fields, track_samples=True) as buffer:
        large = "x" * 3_000_000
        buffer.extend({"x": [1, 2], "weight": [0.5, 0.5], "extra": [{"text": large}] * 2})
        buffer.annotate([1], weight=1.0)
        early = buffer.sample(2, sampler=RandomSampler(replace=False, seed=1))
        time.sleep(0.005)
        buffer.annotate([1, 2], weight=9.0)
        logged = buffer.batch(early.batch_id)
        assert {row.seq: row.fields["weight"] for row in logged} == {1: 1.0, 2: 0.5}
        assert list(logged) == list(early)
        assert sorted(logged.arrays(["weight"]).weight) == [0.5, 1.0]


def test_priorities_stay_when_a_consumer_goes_back(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1, priorities=True) as buffer:
        store(buffer, range(3))
        buffer.checkpoint("start", consumer="a")
        with buffer.lease(2, **ONE) as batch:
            buffer.update_priorities(batch.seqs, [5.0, 6.0])
        priorities = "SELECT seq, priority FROM v_priorities ORDER BY seq"
        given = run(buffer_url, priorities)
        assert buffer.restore("start", consumer="a").n_freed == 2
        assert run(buffer_url, priorities) == given


def test_a_repeated_annotation_does_not_change_what_a_batch_was(make_buffer, buffer_url):
    with make_buffer(buffer_url, track_samples=True) as buffer:
        store(buffer, range(1))
        buffer.annotate([1], reward=10.0, extra={"judge": 1}, version=3)
        time.sleep(0.005)
        drawn = buffer.sample(1)
        time.sleep(0.005)
        buffer.annotate([1], reward=10.0, extra={"judge": 1}, version=3)
        assert list(buffer.batch(drawn.batch_id)) == list(drawn)


def test_a_lease_that_ran_out_is_given_back_or_belongs_to_others(buffer, buffer_url):
    buffer.checkpoint("start", consumer="a")
    lost = buffer.lease(1, **ONE).take()
    expire(buffer_url)
    with buffer.lease(1, **{**ONE, "consumer": "b"}) as taken:
        assert steps_of(taken) == [0]
    own = buffer.lease(2, **ONE, lease_s=20).take()
    (listed,) = buffer.leases("a")
    listed.renew()
    assert 15 < buffer.leases("a")[0].remaining_s <= 21  # by another clock
    expire(buffer_url)
    restored = buffer.restore("start", consumer="a")
    assert (restored.n_leases, restored.n_freed, restored.n_missing) == (1, 2, 0)
    assert not buffer.batch(lost.batch_id).undone
    assert buffer.batch(own.batch_id).undone
    with pytest.raises(LeaseLostError, match="its consumer went back to a checkpoint"):
        own.ack()


@pytest.mark.parametrize("before", ["a", "b"])
def test_what_an_earlier_use_has_closed_stays_closed(buffer_url, before):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        play(buffer, "g", 1, 2)
        play(buffer, "g", 3, abort=True)
        with buffer.lease(1, **{**GROUP, "consumer": before}):
            pass
        buffer.checkpoint("start", consumer="a")
        for _ in range(2):
            batch = buffer.lease(1, **GROUP).take()
            batch.ack()
            buffer.restore("start", consumer="a")
            with pytest.raises(EpisodeEndedError, match="used"):
                buffer.episode("t", episode_id="g-3", group_id="g", resume=True)
        buffer.lease(1, **GROUP).take()
        buffer.restore("start", consumer="a")
        with pytest.raises(EpisodeEndedError, match="used"):
            buffer.episode("t", episode_id="g-3", group_id="g", resume=True)


def test_states_are_json(buffer):
    class Numbers:
        def __init__(self, value):
            self.value = value

        def state_dict(self):
            return {"value": self.value}

    for wrong in (float("nan"), np.float32("inf"), np.array([np.nan]), b"x", object()):
        with pytest.raises(ArgumentError, match="cannot be stored as JSON"):
            buffer.checkpoint("wrong", consumer="a", loaders=[Numbers(wrong)])
    given = [Numbers(2**70), Numbers(np.int64(3)), Numbers(np.arange(2)), Numbers("é")]
    mark = buffer.checkpoint("right", consumer="a", loaders=given)
    assert [state["value"] for state in mark.states] == [2**70, 3, [0, 1], "é"]
    assert buffer.restore("right", consumer="a").states == mark.states


def test_batches_are_logged_or_not(buffer_url):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(2))
        with pytest.raises(BufferConfigError, match="track_samples=True"):
            buffer.batch(1)
        buffer.checkpoint("start", consumer="a")
        with buffer.lease(1, **ONE) as batch:
            assert batch.batch_id is None
        # Without max_use too: until the mark is gone, nobody else takes it.
        assert steps_leased(buffer, 1) == [1]
        buffer.delete_checkpoints("a")
        assert sorted(steps_leased(buffer, 2)) == [0, 1]
        assert uses_of(buffer_url) == {1: 1, 2: 0}


class Model:
    """What leases and checkpoints do to single rows."""

    def __init__(self, n_rows, max_use):
        self.uses, self.max_use = dict.fromkeys(range(1, n_rows + 1), 0), max_use
        self.leases, self.marks = [], {}

    def free(self):
        held = {seq for lease in self.leases for seq in lease["seqs"]}
        return [seq for seq in self.uses if seq not in held]

    def take(self, consumer, n):
        self.leases.append({"consumer": consumer, "seqs": self.free()[:n], "acked": False})
        return self.leases[-1]

    def ack(self, lease):
        for seq in lease["seqs"]:
            self.uses[seq] += 1
        lease["acked"], lease["mark"] = True, None
        if not self.marks.get(lease["consumer"]):
            self.end([lease])

    def end(self, ended):
        for lease in ended:
            self.leases.remove(lease)
            for seq in lease["seqs"]:
                if self.max_use is not None and self.uses[seq] >= self.max_use:
                    del self.uses[seq]

    def of(self, consumer):
        return [lease for lease in self.leases if lease["consumer"] == consumer]

    def checkpoint(self, consumer, name, keep):
        marks = self.marks.setdefault(consumer, [])
        marks.append(name)
        for lease in self.of(consumer):
            if lease["acked"] and lease["mark"] is None:
                lease["mark"] = name
        del marks[:-keep]
        kept = [None, *marks[1:]]
        self.end([le for le in self.of(consumer) if le["acked"] and le["mark"] not in kept])

    def restore(self, consumer, name):
        marks = self.marks[consumer]
        place = marks.index(name)
        undone = [None, *marks[place + 1 :]]
        del marks[place + 1 :]
        for lease in self.of(consumer):
            if not lease["acked"] or lease["mark"] in undone:
                if lease["acked"]:
                    for seq in lease["seqs"]:
                        self.uses[seq] -= 1
                self.leases.remove(lease)

    def forget(self, consumer):
        self.marks.pop(consumer, None)
        self.end([lease for lease in self.of(consumer) if lease["acked"]])


@pytest.mark.slow
@pytest.mark.parametrize("max_use", [None, 1, 2])
@both_layouts
def test_random_calls_do_what_the_model_does(buffer_url, make_buffer, max_use):
    chance = random.Random(f"{max_use}{make_buffer.__name__}{buffer_url[:6]}")
    settings = {} if max_use is None else {"max_use": max_use}
    with make_buffer(buffer_url, leases=True, **settings) as buffer:
        store(buffer, range(30))
        model, taken, names = Model(30, max_use), {}, 0
        for _ in range(60):
            consumer = chance.choice("ab")
            live = [le for le in model.leases if not le["acked"]]
            call = chance.choice(["take"] * 3 + ["end"] * 3 + ["checkpoint", "restore", "forget"])
            if call == "take" and model.free():
                n = chance.randint(1, min(4, len(model.free())))
                batch = buffer.lease(n, order="fifo", timeout_s=0, consumer=consumer).take()
                lease = model.take(consumer, n)
                assert batch.seqs.tolist() == lease["seqs"]
                taken[id(lease)] = batch
            elif call == "end" and live:
                lease = chance.choice(live)
                if chance.random() < 0.8:
                    taken[id(lease)].ack()
                    model.ack(lease)
                else:
                    taken[id(lease)].nack()
                    model.leases.remove(lease)
            elif call == "checkpoint":
                names, keep = names + 1, chance.choice([1, 2, 3])
                buffer.checkpoint(str(names), consumer=consumer, keep=keep)
                model.checkpoint(consumer, str(names), keep)
            elif call == "restore" and model.marks.get(consumer):
                name = chance.choice(model.marks[consumer])
                buffer.restore(name, consumer=consumer)
                model.restore(consumer, name)
            elif call == "forget" and chance.random() < 0.3:
                buffer.delete_checkpoints(consumer)
                model.forget(consumer)
            assert uses_of(buffer_url) == model.uses
            assert [row.seq for row in buffer.get_all()] == list(model.uses)
            marks = [(mark.consumer, mark.name) for mark in buffer.checkpoints()]
            assert marks == [(c, name) for c in "ab" for name in model.marks.get(c, [])]
            free = model.free()
            if free:
                assert buffer_free(buffer, len(free)) == free
            with pytest.raises(InsufficientDataError):
                buffer.lease(len(free) + 1, timeout_s=0).take()


def buffer_free(buffer, n):
    batch = buffer.lease(n, order="fifo", timeout_s=0).take()
    batch.nack()
    return batch.seqs.tolist()
