"""Several calls and documents of a buffer in one transaction."""

import math
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pytest

from sqlbuffer import LatestSampler, QueryBuilder, RateLimiter, ReplayBuffer
from sqlbuffer.errors import (
    ArgumentError,
    DocumentChangedError,
    FieldError,
    FlowControlError,
    StorageBusyError,
    StorageError,
)
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.support.processes import running, wait_until
from tests.support.proxy import proxied
from tests.support.sql import scalar

pytestmark = pytest.mark.combinations

OF_REWARD = QueryBuilder().gt("reward", 0.5)
LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}


@pytest.fixture(params=LAYOUTS)
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, **LAYOUTS[request.param]) as buffer:
        buffer.extend(columns(buffer, [0, 1, 2]), task_id="old")
        yield buffer


def columns(buffer, numbers):
    rewards = [float(number) for number in numbers]
    if buffer.fields:
        return {"obs": rewards, "reward": rewards}
    return {"state": list(numbers), "reward": rewards}


def rewards_of(buffer, task_id):
    return [row.exp_data.reward_t for row in buffer.get_by_task_id(task_id)]


def change_all(tx):
    stored = tx.extend(columns(tx.buffer, [5, 6, 7]), task_id="new")
    assert tx.annotate(stored.seqs[:2], reward=9.0) == 2
    assert tx.quarantine([int(stored.seqs[2])]) == 1
    assert tx.delete(QueryBuilder().eq("task_id", "old").and_().gt("reward", 0.5)) == 2
    assert tx.documents.put("cursor", {"seq": int(stored.seqs[2])}, version=0) == 1
    return stored


def test_all_calls_take_effect_and_are_seen_at_once(buffer, buffer_url):
    with ReplayBuffer(buffer_url) as other:

        def work(tx):
            stored = change_all(tx)
            assert rewards_of(tx, "new") == [9.0, 9.0, 7.0]
            assert rewards_of(tx, "old") == [0.0]
            assert (tx.size(), other.size()) == (4, 3)
            assert rewards_of(other, "new") == []
            assert (tx.documents.keys(), other.documents.keys()) == (["cursor"], [])
            return stored.inserted

        assert buffer.transaction(work) == 3
        for one in (buffer, other):
            assert rewards_of(one, "new") == [9.0, 9.0, 7.0]
            assert rewards_of(one, "old") == [0.0]
            assert one.documents.get("cursor").value == {"seq": 6}
        assert len({row.exp_data.reward_t for row in other.sample(64)} & {7.0}) == 0


class Stopped(Exception):
    pass


def run_threads(function, arguments):
    with ThreadPoolExecutor(len(arguments)) as pool:
        list(pool.map(function, arguments))


@pytest.mark.parametrize("is_caught", [False, True])
def test_an_error_undoes_all_calls_even_if_it_is_caught(buffer, is_caught):
    def work(tx):
        change_all(tx)
        if not is_caught:
            raise Stopped
        with pytest.raises(FieldError):
            tx.annotate([1])
        with pytest.raises(FieldError):  # no later call either
            tx.size()

    with pytest.raises(FieldError if is_caught else Stopped):
        buffer.transaction(work)
    assert rewards_of(buffer, "old") == [0.0, 1.0, 2.0]
    assert rewards_of(buffer, "new") == []
    assert buffer.documents.keys() == []
    assert buffer.size() == 3
    change = buffer.transaction(change_all)  # a second run
    assert change.inserted == 3


@pytest.mark.each_value
@pytest.mark.thorough
def test_a_count_in_a_transaction_that_is_undone_is_not_remembered(buffer):
    def work(tx):
        tx.extend(columns(tx.buffer, range(9_000)), task_id="undone")
        tx.delete(QueryBuilder().eq("reward", 1.0))
        assert tx.size() == 9_001
        raise Stopped

    with pytest.raises(Stopped):
        buffer.transaction(work)
    buffer.extend(columns(buffer, range(8_000)), task_id="kept")
    buffer.delete(QueryBuilder().gte("reward", 4_000.0))
    assert buffer.size() == len(list(buffer.get_all())) == 4_003


def test_episodes_and_rows_of_both_kinds_are_stored_in_one(buffer):
    def work(tx):
        arrays = {**columns(tx.buffer, [1, 2]), "terminated": [False, True]}
        tx.store_episode(arrays, episode_id="e", task_id="t", episode_reward=4.0)
        tx.store_batch(tx.get_by_task_id("old")[:1])  # a duplicate
        return [row.exp_meta.episode_id for row in tx.get_paginated(page=1, page_size=9)]

    assert buffer.transaction(work) == [None, None, None, "e", "e"]
    assert buffer.size() == 5


def kill_in_the_middle(url):
    def work(tx):
        tx.extend(columns(tx.buffer, [7, 8]), task_id="new")
        tx.documents.put("n", 1)
        tx.delete(QueryBuilder().eq("task_id", "old"))
        os.kill(os.getpid(), signal.SIGKILL)

    ReplayBuffer(url).transaction(work)


@pytest.mark.each_value
@pytest.mark.thorough
def test_a_process_that_is_killed_in_between_has_changed_nothing(buffer, buffer_url):
    with running([(kill_in_the_middle, buffer_url)], "spawn") as workers:
        wait_until(lambda: workers.processes[0].exitcode == -signal.SIGKILL, "it was killed")
    assert rewards_of(buffer, "old") == [0.0, 1.0, 2.0]
    assert rewards_of(buffer, "new") == []
    assert buffer.documents.keys() == []
    assert buffer.transaction(change_all).inserted == 3  # nothing is locked


def test_writes_beside_the_transaction_are_refused(buffer, buffer_url):
    other = ReplayBuffer(buffer_url, "other")
    for write in (
        lambda: buffer.extend(columns(buffer, [1]), task_id="x"),
        lambda: buffer.transaction(lambda tx: None),
        lambda: other.add(state=1),
        lambda: buffer.documents.put("x", 1),
    ):
        with pytest.raises(ArgumentError, match=r"tx\.store_batch"):
            buffer.transaction(lambda tx, write=write: write())
    kept = []
    buffer.transaction(kept.append)
    with pytest.raises(ArgumentError, match="has ended"):
        kept[0].size()
    with pytest.raises(ArgumentError, match="has ended"):
        kept[0].documents.get("x")
    assert (buffer.size(), other.size()) == (3, 0)
    other.close()


def test_waiting_steps_are_stored_before_and_never_undone(buffer_url):
    with ReplayBuffer(buffer_url, flush_s=3600, **LAYOUTS["typed"]) as buffer:
        buffer.add(obs=1.0, task_id="t")

        def work(tx):
            assert tx.size() == 1
            buffer.add(obs=2.0, task_id="t")
            assert tx.size() == 1
            raise Stopped

        with pytest.raises(Stopped):
            buffer.transaction(work)
        assert [row.fields["obs"] for row in buffer.get_all()] == [1.0, 2.0]


def test_draws_of_the_buffer_go_on_in_the_function(buffer_url):
    settings = {"rate_limiter": RateLimiter(samples_per_insert=8.0, min_size=1), "max_staleness": 5}
    with ReplayBuffer(buffer_url, **settings) as buffer:
        buffer.extend({"state": [1, 2, 3]}, task_id="t", model_version=1)
        buffer.set_clock(9)
        buffer.extend({"state": [4]}, task_id="t", model_version=9)

        def work(tx):
            tx.extend({"state": [5]}, task_id="t", model_version=9)
            return [row.exp_data.state for row in buffer.sample(8)]

        with pytest.raises(ArgumentError, match=r"tx\.store_batch"):  # a limiter counts its draws
            buffer.transaction(work)
        buffer.set_rate_limiter(None)
        assert set(buffer.transaction(work)) == {4}
        assert buffer.size() >= 2


def test_steps_of_every_kind_are_stored_and_evicted(buffer_url):
    fields = {"obs": ("float32", (-1, 2)), "note": "<U5", "n": {"dtype": "int64", "column": True}}
    with ReplayBuffer(buffer_url, fields=fields, max_capacity=6, compression="zstd") as buffer:

        def work(tx):
            for first in (0, 10):
                steps = range(first, first + 5)
                arrays = {
                    "obs": [np.full((n % 4, 2), n, np.float32) for n in steps],
                    "note": [f"ü{n}" for n in steps],
                    "n": list(steps),
                    "reward": [float(n) for n in steps],
                }
                final = {"obs": np.full((3, 2), first + 5)}
                stored = tx.store_episode(arrays, episode_id=f"e{first}", final=final)
            tx.annotate(stored.seqs[:1], reward=-1.0, n=-7)
            assert tx.size(QueryBuilder().eq("n", -7)) == 1
            return tx.size()

        assert buffer.transaction(work) == 6
        with buffer.mirror() as mirror:
            for source in (buffer, mirror):
                batch = source.sample_transitions(64)
                kept = {
                    (seq, n, note, reward, n_obs)
                    for seq, n, note, reward, n_obs in zip(
                        batch.info["seq"].tolist(), batch.n.tolist(), batch.note.tolist(),
                        batch.reward.tolist(), batch.obs_lens.tolist(), strict=True,
                    )
                }  # fmt: skip
                assert {step[1:] for step in kept} == {
                    (4, "ü4", 4.0, 0), (-7, "ü10", -1.0, 2), (11, "ü11", 11.0, 3),
                    (12, "ü12", 12.0, 0), (13, "ü13", 13.0, 1), (14, "ü14", 14.0, 2),
                }  # fmt: skip


def test_steps_that_are_added_are_stored_at_once_and_numbered(buffer):
    def work(tx):
        for number in (5, 6):
            step = {name: value[0] for name, value in columns(tx.buffer, [number]).items()}
            assert tx.add(**step, task_id="added", episode_id="e").inserted == 1
            assert tx.size() == number - 1
        return [(row.exp_meta.step, row.exp_data.reward_t) for row in tx.get_by_task_id("added")]

    # As outside of transactions, rows have no numbers that were not given.
    numbers = (0, 1) if buffer.fields else (0, 0)
    assert buffer.transaction(work) == [(numbers[0], 5.0), (numbers[1], 6.0)]
    assert rewards_of(buffer, "added") == [5.0, 6.0]


def test_the_rate_limiter_refuses_at_once(buffer_url):
    limiter = RateLimiter(samples_per_insert=1.0, min_size=2, error_buffer=2.0)
    with ReplayBuffer(buffer_url, rate_limiter=limiter, wait_s=300) as buffer:

        def work(tx):
            for number in range(100):
                tx.extend({"state": [number]}, task_id="t")

        with pytest.raises(FlowControlError, match="samples_per_insert"):
            buffer.transaction(work)
        assert buffer.size() == 0


def test_rows_are_read_by_their_ids_whole_or_in_part(buffer_url):
    for settings in ({}, LAYOUTS["typed"]):
        with ReplayBuffer(buffer_url, f"n{len(settings)}", **settings) as buffer:
            keys = {"id": ["a", "ä", "c"], "task_id": "t"}
            stored = buffer.extend(columns(buffer, [5, 6, 7]), **keys)
            buffer.annotate(stored.seqs[:1], reward=9.0)
            buffer.delete({"field": "id", "op": "eq", "value": "c"})
            for source in (buffer, None):

                def read(ids, source=source, buffer=buffer, **options):
                    if source is not None:
                        return source.get_by_ids(ids, **options)
                    return buffer.transaction(lambda tx: tx.get_by_ids(ids, **options))

                found = read(["ä", "c", "a", "missing", "ä"])
                assert list(found) == ["ä", "a"]
                assert [row.exp_data.reward_t for row in found.values()] == [6.0, 9.0]
                assert read([]) == {}
                part = read(["a"], fields=["reward_t"])["a"]
                assert (part.exp_data.reward_t, part.exp_data.state) == (9.0, None)
            for ids, error in (("a", ArgumentError), (3, ArgumentError), ([3], FieldError)):
                with pytest.raises(error, match="ids"):
                    buffer.get_by_ids(ids)


def test_the_bytes_of_payloads_are_added_up(buffer_url):
    with (
        ReplayBuffer(buffer_url) as rows,
        ReplayBuffer(buffer_url, "t", fields={"x": "f4"}) as typed,
    ):
        assert rows.size_bytes() == typed.size_bytes() == 0
        rows.add(state={"image": np.zeros(1000)}, extra={"a": 1})
        assert 8_000 < rows.size_bytes() < 8_200
        rows.add(state={"image": np.random.default_rng(0).random(2**18)})
        assert 2**21 < rows.size_bytes() < 2**21 + 9_000
        typed.extend({"x": range(1_000)}, task_id="t")
        assert 4_000 <= typed.size_bytes() < 4_200
        rows.delete({"field": "step", "op": "eq", "value": 0})
        assert rows.size_bytes() == 0


def test_a_transaction_waits_as_long_as_it_may(buffer_url):
    with ReplayBuffer(buffer_url) as buffer, ReplayBuffer(buffer_url) as other:
        buffer.documents.put("a", 1)

        def work(tx):
            tx.documents.get("a", lock=True)
            tx.documents.put("a", 2)
            errors = []

            def change():
                try:
                    other.transaction(lambda tx: tx.documents.put("a", 3), wait_s=0.05)
                except StorageBusyError as error:
                    errors.append(error)

            run_threads(lambda _: change(), [0])
            return errors

        assert len(buffer.transaction(work)) == 1
        assert buffer.documents.get("a").value == 2
        assert other.transaction(lambda tx: tx.documents.put("a", 4), wait_s=0.05) == 3
        for odd in (-1, math.nan, "1"):
            with pytest.raises(ArgumentError, match="wait_s"):
                buffer.transaction(work, wait_s=odd)
        assert other.transaction(lambda tx: tx.size(), durability="full") == 0
        with pytest.raises(ArgumentError, match="durability is one of relaxed, full"):
            buffer.transaction(work, durability="none")


def test_sessions_and_clear_take_part(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(state=1, task_id="t")

        def work(tx, is_last):
            tx.start_session("s")
            tx.set_model_version(4, "s")
            assert tx.clear() == 1
            if not is_last:
                raise Stopped

        with pytest.raises(Stopped):
            buffer.transaction(lambda tx: work(tx, False))
        assert (buffer.session_id, buffer.clock, buffer.size()) == (None, None, 1)
        buffer.transaction(lambda tx: work(tx, True))
        assert (buffer.session_id, buffer.clock, buffer.size()) == ("s", 4, 0)
        buffer.transaction(lambda tx: tx.set_clock(7))
        assert buffer.clock == 7


def test_documents_keep_every_json_value(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        documents = buffer.documents
        time = datetime(2026, 1, 2, tzinfo=UTC)
        values = [None, 0, -0.0, 1.5, True, "", "ä\u2028😀", [], {}, {"ü": [math.inf]}, time, 2**80]
        for i, value in enumerate(values):
            assert documents.put(f"k{i}", value) == 1
            assert repr(documents.get(f"k{i}").value) == repr(value)
        assert math.isnan(documents.get("nan").value if documents.put("nan", math.nan) else 0)
        assert documents.keys("k1") == ["k1", "k10", "k11"]
        assert documents.keys("%") == []
        assert documents.get("missing") is None
        assert documents.delete("k1") is True
        assert documents.delete("k1") is False
        assert ReplayBuffer(buffer_url, "other").documents.keys() == []
    ReplayBuffer.drop(buffer_url, "default")
    assert scalar(buffer_url, "SELECT count(*) FROM documents") == 0


def test_bad_documents_are_named(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        documents = buffer.documents
        for key, value, message in (
            (1, {}, "key: expected text"),
            ("a\0", {}, "U\\+0000"),
            ("a", object(), "value of document 'a'"),
            ("a", b"bytes", "value of document 'a': arrays and bytes"),
            ("a", "x" * 2**20, "value of document 'a': it has 1.05 MB"),
        ):
            with pytest.raises(FieldError, match=message):
                documents.put(key, value)
        with pytest.raises(ArgumentError, match="version"):
            documents.put("a", 1, version=-1)
        assert documents.keys() == []


def test_several_documents_are_read_written_and_deleted_in_one_statement(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        documents = buffer.documents
        values = {f"k{n:03}": {"n": n, "text": "ä'\"\\"} for n in range(300)} | {"none": None}
        documents.put_many(values)
        documents.put("k007", 7)
        found = documents.get_many([*reversed(values), "missing"])
        assert list(found) == sorted(values)
        assert {key: found[key].value for key in values} == {**values, "k007": 7}
        assert {found[key].version for key in values if key != "k007"} == {1}
        documents.put_many({"k007": 8, "new": 1})
        found = documents.get_many({"k007", "new"})
        assert {key: (one.value, one.version) for key, one in found.items()} == {
            "k007": (8, 3), "new": (1, 1),
        }  # fmt: skip
        assert documents.keys("k00") == [f"k{n:03}" for n in range(10)]
        assert documents.delete_many([*values, "missing"]) == len(values)
        assert documents.keys() == ["new"]
        documents.put_many({})
        assert documents.get_many([]) == {}
        assert documents.delete_many([]) == 0
        with pytest.raises(FieldError, match="value of document 'b'"):
            documents.put_many({"a": 1, "b": object()})
        for call in (documents.get_many, documents.delete_many):
            with pytest.raises(ArgumentError, match="a list of names"):
                call("new")
        with pytest.raises(ArgumentError, match="a mapping"):
            documents.put_many([("a", 1)])
        assert documents.keys() == ["new"]


@pytest.mark.parametrize("prefix", ["", "a", "\ud7ff", "\U0010ffff", "a\U0010ffff"])
def test_keys_are_found_by_any_beginning(buffer_url, prefix):
    with ReplayBuffer(buffer_url) as buffer:
        ends = ["", "a", "\x7f", "\ud7ff", "\ue000", "\U0010ffff"]
        keys = {prefix + end for end in ends} | {"", "b", "\ue000b"}
        buffer.documents.put_many(dict.fromkeys(keys, 0))
        found = buffer.documents.keys(prefix)
        assert found == sorted(key for key in keys if key.startswith(prefix))


def test_a_change_names_the_version_that_it_replaces(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        documents = buffer.documents
        assert documents.put("a", 1, version=0) == 1
        with pytest.raises(DocumentChangedError, match="has version 1, and none was expected"):
            documents.put("a", 2, version=0)
        assert documents.put("a", 3, version=1) == 2
        with pytest.raises(DocumentChangedError, match="has version 2, and version 1 was expected"):
            documents.delete("a", version=1)
        assert documents.delete("a", version=2)
        with pytest.raises(DocumentChangedError, match="there is no such document"):
            documents.put("a", 4, version=2)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("way", ["version", "lock"])
def test_writers_count_without_a_loss(buffer_url, way):
    n_writers, n_each = 4, 12
    with ReplayBuffer(buffer_url) as made:
        made.documents.put("n", 0)

    def count(number):
        with ReplayBuffer(buffer_url) as buffer:

            def work(tx):
                document = tx.documents.get("n", lock=way == "lock")
                tx.extend({"state": [document.value]}, task_id="t")
                tx.documents.put("n", document.value + 1, version=document.version)

            for _ in range(n_each):
                while True:
                    try:
                        buffer.transaction(work)
                        break
                    except DocumentChangedError:
                        assert way == "version"

    run_threads(count, list(range(n_writers)))
    with ReplayBuffer(buffer_url) as buffer:
        assert buffer.documents.get("n").value == n_writers * n_each
        assert sorted(row.exp_data.state for row in buffer.get_all()) == list(
            range(n_writers * n_each)
        )


def test_transactions_that_wait_for_each_other_both_take_effect(buffer_url):
    with ReplayBuffer(buffer_url) as made:
        made.documents.put("a", 0)
        made.documents.put("b", 0)
    meeting = threading.Barrier(2)

    def change(keys):
        with ReplayBuffer(buffer_url) as buffer:
            n_calls = 0

            def work(tx):
                nonlocal n_calls
                n_calls += 1
                for i, key in enumerate(keys):
                    value = tx.documents.get(key, lock=True).value
                    tx.documents.put(key, value + 1)
                    if not i and n_calls == 1 and buffer_url.startswith("postgresql"):
                        meeting.wait(30)

            buffer.transaction(work)

    run_threads(change, ["ab", "ba"])
    with ReplayBuffer(buffer_url) as buffer:
        assert [buffer.documents.get(key).value for key in "ab"] == [2, 2]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_lost_connection_repeats_the_whole_once(make_database_url, cut):
    url = make_database_url("postgresql", schema=True)
    with proxied(url) as proxy:
        buffer = ReplayBuffer(proxy.url)
        buffer.documents.put("n", 0)
        n_calls = 0

        def work(tx):
            nonlocal n_calls
            n_calls += 1
            number = tx.documents.get("n", lock=True).value
            stored = tx.extend({"state": [number]}, task_id="t")
            tx.annotate(stored.seqs, reward=1.0)
            return tx.documents.put("n", number + 1)

        proxy.cuts = [cut, cut]
        assert buffer.transaction(work) == 2
        assert proxy.n_cut >= 1
        assert n_calls == (3 if cut == "before" else 1)
        proxy.cuts = []
        proxy.sends_left, proxy.is_brief = 6, True  # in the middle
        assert buffer.transaction(work) == 3
        proxy.end_outage()
        assert [row.exp_data.state for row in buffer.get_all()] == [0, 1]
        assert buffer.documents.get("n").value == 2
        engine_for(resolve_url(proxy.url)).dispose()


def test_a_server_that_stays_away_is_an_error_and_nothing_is_written(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with proxied(url) as proxy:
        buffer = ReplayBuffer(proxy.url, retry_s=0.2)
        buffer.documents.put("n", 0)
        proxy.sends_left = 5
        with pytest.raises(StorageError):
            buffer.transaction(change_all)
        proxy.end_outage()
        assert ReplayBuffer(url).size() == 0
        engine_for(resolve_url(proxy.url)).dispose()


def test_a_snapshot_draws_from_one_state(buffer, buffer_url):
    def look(view):
        first = view.sample(8, sampler=LatestSampler())
        with ReplayBuffer(buffer_url) as other:
            other.extend(columns(other, [3, 4]), task_id="new")
        again = view.sample(8, sampler=LatestSampler(), condition=OF_REWARD)
        return [[row.exp_data.reward_t for row in rows] for rows in (first, again)]

    assert buffer.snapshot(look) == [[2.0, 1.0, 0.0], [2.0, 1.0]]
    assert buffer.snapshot(lambda view: len(view.sample(8, sampler=LatestSampler()))) == 5


@pytest.mark.parametrize("counting", [{"max_use": 2}, {"track_samples": True}], ids=str)
def test_a_snapshot_draws_from_no_buffer_that_counts_or_logs_draws(buffer_url, counting):
    with ReplayBuffer(buffer_url, **counting) as buffer:
        buffer.add(state=0)
        with pytest.raises(ArgumentError, match="sample in a transaction"):
            buffer.snapshot(lambda view: view.sample(1))
        counts = buffer.snapshot(lambda view: view.use_counts([1]).tolist())
        assert counts == buffer.use_counts([1]).tolist() == [0]
