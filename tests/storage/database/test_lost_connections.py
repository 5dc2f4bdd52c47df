"""Connections to PostgreSQL that are cut, at the commit above all: nothing lost, nothing twice."""

import logging
from functools import partial

import numpy as np
import pytest

from sqlbuffer import (
    PrioritizedSampler,
    QueryBuilder,
    RandomTaskSample,
    RateLimiter,
    ReplayBuffer,
)
from sqlbuffer.errors import BufferNotFoundError, StorageUnreachableError
from sqlbuffer.storage.buffers import writes
from sqlbuffer.storage.database import errors
from sqlbuffer.storage.database.engine import resolve_url
from tests.support.proxy import assert_one_line_each, losing_each_message
from tests.support.sql import run, scalar
from tests.support.stepped_rows import make_row, make_rows, steps_of

pytestmark = pytest.mark.combinations

CUTS = ["before", "after"]
LOG_INSERTS = [
    "CREATE TABLE inserted (seq bigint, id text)",
    "CREATE FUNCTION log_inserted() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO inserted VALUES (NEW.seq, NEW.id); RETURN NULL; END $$",
    "CREATE TRIGGER log_inserted AFTER INSERT ON experiences FOR EACH ROW "
    "EXECUTE FUNCTION log_inserted()",
]


def log_inserts(url):
    for statement in LOG_INSERTS:
        run(url, statement)


def times_inserted(url, id_):
    return scalar(url, "SELECT count(*) FROM inserted WHERE id = :id", id=id_)


@pytest.mark.parametrize("cut", CUTS)
def test_a_batch_whose_connection_is_cut_at_the_commit_is_stored_once(url, proxy, cut):
    log_inserts(url)
    buffer = ReplayBuffer(proxy.url)
    buffer.store_batch(make_rows(range(3)))
    proxy.cuts = [cut]
    result = buffer.store_batch(make_rows(range(3, 10)))
    assert proxy.n_cut == 1
    assert (result.inserted, result.duplicates, result.conflicts) == (7, 0, 0)
    assert steps_of(buffer) == list(range(10))
    assert scalar(url, "SELECT count(*) FROM inserted") == 10


def test_a_batch_is_stored_once_however_often_its_commit_is_cut(url, proxy):
    log_inserts(url)
    buffer = ReplayBuffer(proxy.url)
    proxy.cuts = ["before", "before", "before", "after", "after"]
    assert buffer.store_batch(make_rows(range(20))).inserted == 20
    assert proxy.n_cut == 5  # the second `after`: when it was asked what became of the first
    assert steps_of(buffer) == list(range(20))
    assert scalar(url, "SELECT count(*) FROM inserted") == 20


@pytest.mark.thorough
def test_every_batch_of_many_is_stored_once_when_each_loses_its_connection(url, proxy):
    log_inserts(url)
    buffer = ReplayBuffer(proxy.url, max_capacity=50)
    for batch in range(20):
        proxy.cuts = [CUTS[batch % 2], None, CUTS[batch // 2 % 2]]
        rows = make_rows(range(batch * 7, batch * 7 + 7))
        assert buffer.store_batch(rows).inserted == 7
    assert proxy.n_cut >= 20
    held = steps_of(buffer)  # numbers burnt by a cut count against the capacity
    assert 0 < len(held) <= 50
    assert held == list(range(140 - len(held), 140))
    ids = run(url, "SELECT id, count(*) FROM inserted GROUP BY id")
    assert len(ids) == 140
    assert {n for _, n in ids} == {1}


def test_a_row_without_an_id_is_stored_once(url, proxy):
    buffer = ReplayBuffer(proxy.url)
    proxy.cuts = ["after"]
    assert buffer.add(state={"x": 1}).inserted == 1
    assert scalar(url, "SELECT count(*) FROM experiences") == 1


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_a_batch_that_was_stored_and_evicted_meanwhile_is_not_stored_again(url, proxy, evict_by):
    log_inserts(url)
    buffer = ReplayBuffer(proxy.url, max_capacity=10, evict_by=evict_by)
    others = ReplayBuffer(url)
    proxy.cuts = ["after"]
    proxy.on_cut = lambda: others.store_batch(make_rows(range(100, 110), task="other"))
    assert buffer.store_batch(make_rows(range(5), task="mine")).inserted == 5
    assert steps_of(buffer) == list(range(100, 110))
    assert scalar(url, "SELECT count(*) FROM inserted") == 15


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_a_batch_that_was_not_stored_is_stored_though_others_went_past(url, proxy, evict_by):
    buffer = ReplayBuffer(proxy.url, max_capacity=10, evict_by=evict_by)
    others = ReplayBuffer(url)
    proxy.cuts = ["before"]
    proxy.on_cut = lambda: others.store_batch(make_rows(range(100, 120), task="other"))
    assert buffer.store_batch(make_rows(range(5), task="mine")).inserted == 5
    assert steps_of(buffer)[-5:] == list(range(5))


def test_a_batch_that_was_stored_and_deleted_meanwhile_is_not_stored_again(url, proxy):
    buffer = ReplayBuffer(proxy.url)
    proxy.cuts = ["after"]
    proxy.on_cut = lambda: ReplayBuffer(url).clear()
    assert buffer.store_batch(make_rows(range(5))).inserted == 5
    assert len(buffer) == 0


def test_rows_that_are_there_before_are_duplicates_also_after_a_cut(url, proxy):
    buffer = ReplayBuffer(proxy.url)
    rows = make_rows(range(6))
    buffer.store_batch(rows[:2])
    for cut in CUTS:
        proxy.cuts = [cut]
        ReplayBuffer(url).delete(QueryBuilder().gte("exp_meta.step", 2).build())
        result = buffer.store_batch([*rows, make_row(9, id=rows[1].id)])
        assert (result.inserted, result.duplicates, result.conflicts) == (4, 2, 1)
        assert steps_of(buffer) == list(range(6))


def test_rows_that_another_writer_stored_meanwhile_are_duplicates(url, proxy):
    buffer = ReplayBuffer(proxy.url)
    rows = make_rows(range(6))
    proxy.cuts = ["before"]
    proxy.on_cut = lambda: ReplayBuffer(url).store_batch(rows[:3])
    result = buffer.store_batch(rows)
    assert (result.inserted, result.duplicates) == (3, 3)
    assert steps_of(buffer) == list(range(6))


def sampled_once(buffer):
    return len(buffer.sample(10))


def sampled_under_a_limiter(buffer):
    return len(buffer.sample(8)), buffer.flow().sampled


def begun_episode(buffer):
    with buffer.episode(task_id="t", episode_id="e") as episode:
        episode.append(state={"step": 1})
    return buffer.size(QueryBuilder().eq("exp_meta.episode_id", "e").build())


LAST_FIVE = QueryBuilder().gte("exp_meta.step", 5).build()
# What a call is made on, itself, and what it returns.
CALLS = {
    "delete": ({}, lambda buffer: buffer.delete(LAST_FIVE), 5),
    "clear": ({}, lambda buffer: buffer.clear(), 10),
    "resize": ({}, lambda buffer: buffer.resize(4), None),
    "quarantine": ({}, lambda buffer: buffer.quarantine(LAST_FIVE), 5),
    "annotate": ({}, lambda buffer: buffer.annotate(LAST_FIVE, reward_t=1.0), 5),
    "episode": ({}, begun_episode, 1),
    "sample": ({"max_use": 1}, sampled_once, 10),
    "a limited sample": ({"rate_limiter": RateLimiter(1.0, 1)}, sampled_under_a_limiter, (8, 8)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_whose_connection_is_cut_at_the_commit_has_its_effect_once(proxy, call, cut):
    options, called, expected = CALLS[call]
    with ReplayBuffer(proxy.url, **options) as buffer:
        buffer.store_batch(make_rows(range(10)))
        proxy.cuts = [cut]
        assert called(buffer) == expected
        assert proxy.n_cut == 1


@pytest.mark.parametrize("cut", CUTS)
def test_rows_that_expire_are_counted_once(url, proxy, cut):
    with ReplayBuffer(proxy.url, max_staleness=1, keep_expired=True) as buffer:
        for version in (1, 5):
            buffer.add(state={"step": version}, model_version=version)
        buffer.set_clock(5)
        proxy.cuts = [cut]
        assert buffer.expire().expired == 1
        assert proxy.n_cut == 1


@pytest.mark.parametrize("cut", CUTS)
def test_rows_come_out_of_quarantine_once(proxy, cut):
    with ReplayBuffer(proxy.url) as buffer:
        buffer.store_batch(make_rows(range(10)))
        buffer.quarantine(LAST_FIVE)
        proxy.cuts = [cut]
        assert buffer.release(LAST_FIVE) == 5
        assert proxy.n_cut == 1


def test_rows_that_were_annotated_and_deleted_meanwhile_are_counted(url, proxy):
    with ReplayBuffer(proxy.url) as buffer:
        buffer.store_batch(make_rows(range(10)))
        proxy.cuts = ["after"]
        proxy.on_cut = lambda: ReplayBuffer(url).delete(QueryBuilder().eq("seq", 10).build())
        assert buffer.annotate(LAST_FIVE, reward_t=1.0) == 5
    assert scalar(url, "SELECT max(version) FROM label_history") == 1


def test_what_can_no_longer_be_known_is_not_guessed(proxy, monkeypatch):
    monkeypatch.setattr(writes, "KEPT_LONGER_S", 0.0)
    with ReplayBuffer(proxy.url, retry_s=1) as buffer:
        proxy.cuts = ["after"]
        with pytest.raises(StorageUnreachableError, match="no longer known if"):
            buffer.store(make_row(1))
        assert steps_of(buffer) == [1]


def drawn_from_mirror(buffer, **options):
    with buffer.mirror(refresh_s=3_600, **options) as mirror:
        mirror.refresh()
        return mirror.sample_arrays(4).n_rows, mirror.lag().steps


READS = {
    "rows": [
        len,
        lambda buffer: buffer.size(LAST_FIVE),
        lambda buffer: len(buffer.sample(8)),
        lambda buffer: len(buffer.peek(8)),
        lambda buffer: len(buffer.peek(1, sampler=RandomTaskSample())),
        lambda buffer: len(buffer.sample_tasks(1)),
        lambda buffer: len(buffer.get_by_task_id("t")),
        lambda buffer: len(buffer.get_paginated(1, 5)),
        lambda buffer: "experiences" in buffer.explain(),
        lambda buffer: (buffer.max_capacity, buffer.clock, buffer.session_id),
    ],
    "typed": [
        lambda buffer: steps_of(buffer),
        lambda buffer: buffer.sample_transitions(4, n_step=3).n_rows,
        lambda buffer: buffer.sample_arrays(4, sampler=PrioritizedSampler()).n_rows,
        lambda buffer: [batch.n_rows for batch in buffer.loader("window", 4, length=3, epochs=1)],
        drawn_from_mirror,
        lambda buffer: drawn_from_mirror(buffer, shared=True),
    ],
}


@pytest.mark.thorough
@pytest.mark.parametrize("layout", READS)
def test_reads_go_on_whichever_message_is_lost(proxy, layout, caplog):
    options = {"fields": {"obs": "int64"}, "priorities": True} if layout == "typed" else {}
    buffer = ReplayBuffer(proxy.url, **options)
    if options:
        buffer.store_episode({"obs": np.arange(20)}, task_id="t")
    else:
        buffer.store_batch(make_rows(range(20), task="t"))
    for read in READS[layout]:
        expected = read(buffer)
        assert all(found == expected for found in losing_each_message(proxy, partial(read, buffer)))
    assert_one_line_each(caplog.records)


def test_iteration_goes_on_over_lost_connections(proxy):
    buffer = ReplayBuffer(proxy.url)
    buffer.store_batch(make_rows(range(1_000)))
    rows = buffer.get_all()
    seen = [next(rows)]
    for row in rows:
        if row.seq % 250 == 0:
            proxy.cut_all()
        seen.append(row)
    assert steps_of(seen) == list(range(1_000))


class Clock:
    """Time that passes only where the library pauses: a busy machine changes nothing."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.slow
def test_after_retry_s_the_error_says_what_cannot_be_reached(proxy, caplog, monkeypatch):
    monkeypatch.setattr(errors, "time", Clock())
    buffer = ReplayBuffer(proxy.url, retry_s=2.5)
    buffer.store(make_row(0))
    proxy.closed = True
    proxy.cut_all()
    with (
        caplog.at_level(logging.WARNING, "sqlbuffer"),
        pytest.raises(StorageUnreachableError, match=r"cannot reach .*; tried again for 2.5 s"),
    ):
        buffer.store(make_row(1))
    # The second warning would come after 3 s.
    assert ["trying again" in record.message for record in caplog.records] == [True]
    with pytest.raises(StorageUnreachableError):
        len(buffer)
    proxy.closed = False
    assert buffer.store(make_row(1)).inserted == 1
    assert steps_of(buffer) == [0, 1]


def test_a_server_that_comes_back_in_time_is_waited_for(proxy):
    buffer = ReplayBuffer(proxy.url)
    proxy.cuts, proxy.refusals = ["after"], 3
    assert buffer.store(make_row(1)).inserted == 1
    assert proxy.refusals == 0
    assert steps_of(buffer) == [1]


def test_without_retries_the_first_loss_is_raised(proxy):
    buffer = ReplayBuffer(proxy.url, retry_s=0)
    row = make_row(1)
    proxy.cuts = ["after"]
    with pytest.raises(StorageUnreachableError) as caught:
        buffer.store(row)
    assert "tried again" not in str(caught.value)
    assert buffer.store(row).duplicates == 1


@pytest.mark.parametrize("call", [ReplayBuffer, ReplayBuffer.list])
def test_opening_tries_again_for_retry_s(proxy, monkeypatch, call):
    monkeypatch.setattr(errors, "time", Clock())
    proxy.closed = True
    with pytest.raises(StorageUnreachableError, match=r"cannot reach .*; tried again for 2.5 s"):
        call(proxy.url, retry_s=2.5)
    with pytest.raises(StorageUnreachableError) as caught:
        call(proxy.url, retry_s=0)
    assert "tried again" not in str(caught.value)


def test_opening_waits_for_a_server_that_this_process_has_not_reached(url, proxy, monkeypatch):
    class Starting(Clock):
        def sleep(self, seconds):
            super().sleep(seconds)
            proxy.closed = self.now < 5

    monkeypatch.setattr(errors, "time", Starting())
    proxy.closed = True
    assert len(ReplayBuffer(proxy.url)) == 0


def test_opening_and_list_wait_for_a_server_that_this_process_has_reached(proxy):
    buffer = ReplayBuffer(proxy.url)
    proxy.cuts, proxy.refusals = ["after"], 3
    buffer.store(make_row(1))
    for call in (
        lambda: ReplayBuffer(proxy.url, name="other"),
        lambda: ReplayBuffer.list(proxy.url),
    ):
        proxy.refusals = 3
        proxy.cut_all()
        assert call()
        assert proxy.refusals == 0


@pytest.mark.parametrize("cut", CUTS)
def test_a_buffer_is_dropped_once_when_the_connection_is_cut_at_the_commit(proxy, cut):
    ReplayBuffer(proxy.url, name="dropped").close()
    proxy.cuts = [cut]
    ReplayBuffer.drop(proxy.url, "dropped")
    assert proxy.n_cut == 1
    with pytest.raises(BufferNotFoundError):
        ReplayBuffer.drop(proxy.url, "dropped")


@pytest.mark.parametrize("cut", CUTS)
def test_a_buffer_is_made_once_when_the_connection_is_cut_at_the_commit(proxy, cut):
    ReplayBuffer(proxy.url).close()
    proxy.cuts = [cut]
    with ReplayBuffer(proxy.url, name="new", max_capacity=7) as buffer:
        assert buffer.max_capacity == 7
    assert proxy.n_cut == 1
    assert ReplayBuffer.list(proxy.url) == ["default", "new"]


def test_an_entry_too_large_for_an_index_is_not_taken_for_a_lost_connection(url):
    """54000 is an OperationalError like those of a connection."""
    from psycopg.errors import ProgramLimitExceeded

    from sqlbuffer.storage.database.errors import ConnectionLost, translate

    error = translate(ProgramLimitExceeded("index row size exceeds maximum"), resolve_url(url))
    assert not isinstance(error, ConnectionLost)
    assert "index row size" in str(error)
