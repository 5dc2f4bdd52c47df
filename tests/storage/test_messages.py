"""Buffers with `shared_messages`: each message once, and whole again whoever reads it."""

import copy
import json
import random
import sqlite3
import threading
import time
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import (
    DataRow,
    Experience,
    ExpMeta,
    QueryBuilder,
    RandomSampler,
    ReplayBuffer,
    Transaction,
)
from sqlbuffer.codec.equality import equal
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage import messages
from tests.support.processes import run_at_once, wait_until
from tests.support.sql import connected, is_sqlite, run, scalar

SYSTEM = {"role": "system", "content": "Be brief — naïve 日本語 🙂 \"quoted\" \\ 'single' \n"}
ODD: list[Any] = [
    None, 0, -1.5, 2**62, True, "", "plain text", [], {}, {"$nd": [1]}, {"a": {"b": [None]}},
    {"n": float("nan"), "i": float("-inf")}, "message_ids", {"message_ids": [1, 2]},
]  # fmt: skip


@pytest.fixture(params=["rows", "typed steps"])
def settings(request) -> dict[str, Any]:
    """Settings of a buffer of each layout."""
    return {"fields": {"obs": ("float32", (2,))}} if request.param == "typed steps" else {}


class Turns:
    """Makes turns of conversations, each with all messages before it.

    Args:
        settings: Settings of the buffer.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._is_typed = "fields" in settings

    def one(self, n: int, messages: Any, task: str = "t") -> DataRow:
        meta = ExpMeta(task_id=task, agent_id="a", step=n, execute_time=float(n))
        data = Experience(messages=messages, actions=[f"answer {n}"])
        fields = {"obs": np.full(2, n, np.float32)} if self._is_typed else {}
        return DataRow(meta, data, id=f"{task}/{n}", fields=fields)

    def __call__(self, n: int, task: str = "t") -> list[DataRow]:
        said: list[Any] = [SYSTEM]
        rows = []
        for i in range(n):
            said = [*said, {"role": "user", "content": f"{task}: question {i}"}]
            rows.append(self.one(i, said, task))
            said = [*said, {"role": "assistant", "content": f"answer {i}"}]
        return rows


@pytest.fixture
def turns(settings) -> Turns:
    return Turns(settings)


def opened(url: str, settings: dict[str, Any], name: str = "shared", **more: Any) -> ReplayBuffer:
    return ReplayBuffer(url, name, create=True, **{"shared_messages": True, **settings, **more})


def messages_of(rows: Any) -> list[Any]:
    return [row.exp_data.messages for row in rows]


def shown(url: str, name: str = "shared") -> list[Any]:
    """Return the messages that the view shows."""
    statement = (
        f"SELECT CAST(messages AS text) FROM v_experiences WHERE buffer = '{name}' ORDER BY seq"
    )
    return [None if text is None else json.loads(text) for (text,) in run(url, statement)]


def n_messages(url: str) -> int:
    return int(scalar(url, "SELECT count(*) FROM messages"))


def n_lost(url: str) -> int:
    """Return how many ids in rows belong to no message."""
    lists = run(url, "SELECT message_ids FROM experiences WHERE message_ids IS NOT NULL")
    runs = [json.loads(ids) if isinstance(ids, str) else ids for (ids,) in lists]
    used = {
        id_
        for ids in runs
        for first, n in zip(ids[::2], ids[1::2], strict=True)
        for id_ in range(first, first + n if first else 0)
    }
    return len(used - {id_ for (id_,) in run(url, "SELECT id FROM messages")})


def sweep(url: str) -> None:
    """Remove messages that have left, as a writer does from time to time."""
    if not is_sqlite(url):
        run(url, "SELECT sqlbuffer_sweep_messages_v1(id) FROM buffers")


READERS = {
    "get_all": lambda buffer: list(buffer.get_all()),
    "iteration": list,
    "pages": lambda buffer: buffer.get_paginated(1, 3) + buffer.get_paginated(2, 3),
    "task": lambda buffer: buffer.get_by_task_id("t"),
    "ids": lambda buffer: list(buffer.get_by_ids([f"t/{n}" for n in range(5)]).values()),
    "sample": lambda buffer: buffer.sample(5),
    "sampled tasks": lambda buffer: [row for rows in buffer.sample_tasks(1) for row in rows],
    "look": lambda buffer: buffer.peek(5, sampler=RandomSampler()),
}


def test_whoever_reads_a_step_has_whole_messages(buffer_url, settings, turns):
    buffer = opened(buffer_url, settings)
    rows = turns(5)
    assert buffer.store_batch(rows[:2]).inserted == 2
    for row in rows[2:]:
        buffer.store(row)
    for name, read in READERS.items():
        found = sorted(read(buffer), key=lambda row: row.exp_meta.step)
        assert messages_of(found) == messages_of(rows), name
    assert shown(buffer_url) == messages_of(rows)
    # 5 questions, the system's message, 4 answers.
    assert n_messages(buffer_url) == 10


def test_messages_of_any_kind_come_back_as_they_were(buffer_url, settings, turns):
    plain = opened(buffer_url, settings, "plain", shared_messages=False)
    shared = opened(buffer_url, settings)
    image = np.arange(6, dtype=np.uint8)
    lists: list[Any] = [
        ODD, [], None, "a text alone", [[SYSTEM]], ["x"] * 5, [SYSTEM, *ODD, SYSTEM],
        [{"image": image}, SYSTEM, {"image": image + 1}], [image], [*ODD, image],
        [{"empty": np.zeros(0)}], (SYSTEM, "in a tuple"), [b"bytes", SYSTEM],
    ]  # fmt: skip
    rows = [turns.one(n, messages) for n, messages in enumerate(lists)]
    for buffer in (plain, shared):
        assert buffer.store_batch(copy.deepcopy(rows)).inserted == len(rows)
        for row in copy.deepcopy(rows):  # one by one, once more
            assert buffer.store(row).duplicates == 1
    found, expected = messages_of(shared), messages_of(plain)
    for one, other in zip(found, expected, strict=True):
        assert equal(one, other)
    assert shown(buffer_url) == shown(buffer_url, "plain")
    assert n_lost(buffer_url) == 0


def test_conditions_see_whole_messages(buffer_url, settings, turns):
    buffer = opened(buffer_url, settings)
    buffer.store_batch([*turns(4), *turns(2, "other")])
    for field, value, ids in (
        ("messages[1].content", "t: question 0", ["t/0", "t/1", "t/2", "t/3"]),
        ("messages[3].content", "other: question 1", ["other/1"]),
        ("messages[0].role", "system", ["t/0", "t/1", "t/2", "t/3", "other/0", "other/1"]),
        ("messages[0].role", "user", []),
    ):
        condition = QueryBuilder().eq(field, value).build()
        assert [row.id for row in buffer.get_all(query_condition=condition)] == ids
        assert buffer.size(query_condition=condition) == len(ids)


def test_a_message_that_leaves_the_window_is_swept(buffer_url, settings, turns):
    buffer = opened(buffer_url, settings, max_capacity=8)
    for n in range(60):
        buffer.store(turns.one(n, [SYSTEM, f"question {n}"]))
        if n % 7 == 0:
            sweep(buffer_url)
            assert messages_of(buffer.get_all()) == [
                [SYSTEM, f"question {k}"] for k in range(max(0, n - 7), n + 1)
            ]
    sweep(buffer_url)
    assert n_messages(buffer_url) <= 1 + 8 + 4 + 1
    assert n_lost(buffer_url) == 0


@pytest.mark.parametrize("evict_by", ["row", "task", "episode"])
def test_random_work_equals_that_of_a_plain_buffer(buffer_url, settings, turns, evict_by):
    rng = random.Random(f"{evict_by}{settings}")
    more: dict[str, Any] = {"max_capacity": 12}
    if evict_by == "episode":
        more = {"max_episodes": 3, "evict_by": "episode"}
    elif evict_by == "task":
        more |= {"evict_by": "task"}
    plain = opened(buffer_url, settings, "plain", shared_messages=False, **more)
    shared = opened(buffer_url, settings, **more)
    rows = [row for k in range(8) for row in turns(4, f"task {k}")]
    for row in rows:
        row.exp_meta.episode_id = row.exp_meta.task_id
    held: list[DataRow] = []
    while rows:
        chosen = rng.random()
        if chosen < 0.6:
            n = rng.randint(1, 3)
            batch, rows = rows[:n], rows[n:]
            held += batch
        elif chosen < 0.8 and held:
            batch = rng.sample(held, min(2, len(held)))
            if settings:
                continue
        elif chosen < 0.9 and len(shared):
            seqs = rng.sample([row.seq for row in shared.get_all()], 1)
            ids = [row.id for row in shared.get_all() if row.seq in seqs]
            condition = QueryBuilder().eq("id", ids[0]).build()
            assert plain.delete(condition) == shared.delete(condition) == 1
            continue
        else:
            sweep(buffer_url)
            continue
        results = [buffer.store_batch(copy.deepcopy(batch)) for buffer in (plain, shared)]
        assert results[0].inserted == results[1].inserted
        found, expected = list(shared.get_all()), list(plain.get_all())
        assert found == expected
        assert shown(buffer_url) == shown(buffer_url, "plain")
        assert n_lost(buffer_url) == 0
    shared.clear()
    assert n_messages(buffer_url) == 0


def test_delete_erases_text_that_nothing_uses(buffer_url, settings, turns):
    buffer = opened(buffer_url, settings)
    buffer.store_batch([*turns(3), *turns(2, "other")])
    assert buffer.delete(QueryBuilder().eq("task_id", "t").build()) == 3
    texts = [str(content) for (content,) in run(buffer_url, "SELECT content FROM messages")]
    assert len(texts) == 4  # the system's, two questions, the first answer
    assert not any("t: question" in text for text in texts)
    assert messages_of(buffer.get_all()) == messages_of(turns(2, "other"))
    (first, second) = buffer.get_all()
    assert buffer.delete([second.seq]) == 1
    assert n_messages(buffer_url) == 2
    assert messages_of(buffer.get_all()) == messages_of([first])
    assert buffer.clear() == 1
    assert n_messages(buffer_url) == 0


def test_a_resend_leaves_no_message_behind(buffer_url, settings, turns):
    buffer = opened(buffer_url, settings)
    rows = turns(3)
    buffer.store_batch(rows)
    n = n_messages(buffer_url)
    assert buffer.store_batch(turns(3)).duplicates == 3
    other = turns.one(0, [SYSTEM, "something else"])
    result = buffer.store_batch([other])
    assert (result.inserted, result.conflicts) == (0, 1)
    assert n_messages(buffer_url) == n


def test_a_write_that_fails_leaves_no_message_behind(buffer_url, settings, turns):
    buffer = opened(buffer_url, settings)

    def fail(transaction):
        transaction.store_batch(turns(3))
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        buffer.transaction(fail)
    assert (len(buffer), n_messages(buffer_url)) == (0, 0)


def test_rows_of_plain_sql_show_as_they_are(buffer_url):
    buffer = opened(buffer_url, {})
    buffer.store_batch(Turns({})(1))
    run(
        buffer_url,
        "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step, messages) "
        "SELECT id, 'sql', 'a', 0, '[1, {\"role\": \"user\"}]' FROM buffers",
    )
    run(
        buffer_url,
        "INSERT INTO v_experiences (buffer, task_id, agent_id, step, messages) "
        "VALUES ('shared', 'sql', 'a', 1, '[2]')",
    )
    assert messages_of(buffer.get_by_task_id("sql")) == [[1, {"role": "user"}], [2]]
    assert shown(buffer_url)[1:] == [[1, {"role": "user"}], [2]]


def test_copies_and_merges_show_whole_messages(both_urls, settings, turns):
    for source_kind, target_kind in (("sqlite", "postgresql"), ("postgresql", "sqlite")):
        source = opened(both_urls[source_kind], settings, f"to {target_kind}")
        rows = turns(5)
        rows.append(turns.one(5, [SYSTEM, {"image": np.arange(3)}, "x"]))
        source.store_batch(rows)
        target = both_urls[target_kind]
        copied = ReplayBuffer(target, f"copy {target_kind}", config=source.config, create=True)
        source.copy_to(copied)
        assert list(copied) == list(source)
        assert shown(target, copied.name) == shown(both_urls[source_kind], source.name)
        for shares in (True, False):
            name = f"merged {target_kind} {shares}"
            into = opened(target, settings, name, shared_messages=shares)
            into.store_batch(turns(1, "mine"))
            source.copy_to(into)
            assert list(into.get_by_task_id("t")) == list(source.get_by_task_id("t"))
        assert n_lost(target) == 0


def test_two_openers_agree_on_the_setting(buffer_url):
    opened(buffer_url, {}).close()
    with pytest.raises(BufferConfigError, match="shared_messages"):
        ReplayBuffer(buffer_url, "shared", shared_messages=False)
    with ReplayBuffer(buffer_url, "shared") as buffer:
        assert buffer.config.payloads.shared_messages


def test_leased_rows_have_their_messages(buffer_url):
    buffer = opened(buffer_url, {}, leases=True, max_use=1, max_capacity=4)
    turns = Turns({})
    buffer.store_batch(turns(2))
    with buffer.lease(2, order="fifo", timeout_s=0) as batch:
        for n in range(40):  # the leased rows stay, and so do their messages
            buffer.store(turns.one(n, [f"later {n}"], "later"))
        sweep(buffer_url)
        assert n_lost(buffer_url) == 0
        assert messages_of(batch) == messages_of(turns(2))


def old_message(url: str, name: str) -> ReplayBuffer:
    """Return a buffer of two rows, with a message that no step uses any more."""
    buffer = opened(url, {}, name, max_capacity=2)
    for n in range(6):
        buffer.store(Turns({}).one(n, [SYSTEM if n == 0 else f"question {n}"]))
    return buffer


def test_a_writer_waits_for_the_sweep_of_a_message_and_stores_it_again(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = old_message(url, "shared")
    writer = threading.Thread(target=buffer.store, args=(Turns({}).one(9, [SYSTEM, "last"]),))
    with connected(url) as connection:
        swept = text("SELECT sqlbuffer_sweep_messages_v1(id) FROM buffers")
        assert connection.execute(swept).scalar_one() > 0
        writer.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: scalar(url, waits), "the writer waits")
    writer.join(60)
    assert messages_of(buffer.get_all())[-1] == [SYSTEM, "last"]
    assert n_lost(url) == 0


def test_the_sweep_passes_messages_that_a_writer_is_about_to_use(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = old_message(url, "shared")

    def store_and_sweep(transaction: Transaction) -> None:
        transaction.store(Turns({}).one(9, [SYSTEM, "last"]))
        sweep(url)

    buffer.transaction(store_and_sweep)
    sweep(url)
    assert messages_of(buffer.get_all())[-1] == [SYSTEM, "last"]
    assert n_lost(url) == 0


def test_an_erasure_passes_messages_that_a_writer_is_about_to_use(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = opened(url, {})
    buffer.store(Turns({}).one(0, [SYSTEM, "alone"]))
    run(url, "DELETE FROM experiences")
    erase = "SELECT sqlbuffer_erase_messages_v1(id) FROM buffers"

    def store_and_erase(transaction: Transaction) -> None:
        transaction.store(Turns({}).one(1, [SYSTEM, "last"]))
        assert scalar(url, erase) == 1  # "alone"

    buffer.transaction(store_and_erase)
    assert scalar(url, erase) == 0
    assert messages_of(buffer.get_all()) == [[SYSTEM, "last"]]


def _write(url: str, writer: int, seconds: float) -> int:
    """Store turns whose messages other processes use as well, and delete some."""
    rng, n = random.Random(writer), 0
    end = time.monotonic() + seconds
    with ReplayBuffer(url, "shared") as buffer:
        while time.monotonic() < end:
            said = [SYSTEM, *(f"message {rng.randrange(12)}" for _ in range(4))]
            rows = [Turns({}).one(n, said, f"task {writer}") for _ in range(2)]
            n += 1
            rows[1] = Turns({}).one(n, [*said, "more"], f"task {writer}")
            n += 1
            buffer.store_batch(rows)
            if rng.random() < 0.2:
                buffer.delete(QueryBuilder().eq("id", f"task {writer}/{n - 1}").build())
            if rng.random() < 0.3:
                sweep(url)
            for row in buffer.sample(2) if len(buffer) else ():
                assert row.exp_data.messages[0] == SYSTEM
                assert None not in row.exp_data.messages
    return n


@pytest.mark.slow
def test_many_processes_share_messages_while_they_are_swept_and_erased(buffer_url):
    opened(buffer_url, {}, max_capacity=10).close()
    written = run_at_once([(_write, buffer_url, number, 3.0) for number in range(4)])
    assert all(isinstance(n, int) and n > 0 for n in written), written
    with ReplayBuffer(buffer_url, "shared") as buffer:
        found = messages_of(buffer.get_all())
        assert found
        assert all(said[0] == SYSTEM and None not in said for said in found)
    assert n_lost(buffer_url) == 0


def fill(url: str, n: int) -> int:
    """Add n messages to the table, as those of a buffer's first step; return the buffer."""
    buffer_id = int(scalar(url, "SELECT id FROM buffers"))
    if is_sqlite(url):
        numbers = "WITH RECURSIVE g(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM g WHERE i < {n})"
        values = "i, randomblob(16), '\"text\"'"
    else:
        numbers = "WITH g(i) AS (SELECT generate_series(100, {n}))"
        values = "i, decode(md5(i::text), 'hex'), '\"text\"'"
    run(
        url,
        f"{numbers.format(n=n)} INSERT INTO messages (buffer_id, id, hash, content, last_seq) "
        f"SELECT {buffer_id}, {values}, 1000000 + i FROM g",
    )
    return buffer_id


def test_no_statement_on_messages_scans_them_on_postgresql(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = opened(url, {}, max_capacity=1_000)
    buffer.store_batch(Turns({})(5))
    buffer_id = fill(url, 100_000)
    hashes = "ARRAY(SELECT decode(md5(i::text), 'hex') FROM generate_series(1, 60) AS g(i))"
    for statement in (
        f"SELECT sqlbuffer_find_messages_v1({buffer_id}, {hashes}, 6)",
        f"SELECT sqlbuffer_add_messages_v1({buffer_id}, {hashes}, "
        "ARRAY(SELECT '1' FROM generate_series(1, 60)), 6)",
        f"SELECT sqlbuffer_sweep_messages_v1({buffer_id})",
        "SELECT messages FROM v_experiences",
        f"SELECT sqlbuffer_messages_v1({buffer_id}, '{{100,60}}', NULL)",
    ):
        with connected(url) as connection:
            connection.execute(text(statement))
            read = (
                "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
                "WHERE relname = 'messages'"
            )
            assert connection.execute(text(read)).scalar_one() < 1_000, statement


def test_no_statement_on_messages_scans_them_on_sqlite(make_database_url):
    url = make_database_url("sqlite", schema=True)
    buffer = opened(url, {}, max_capacity=1_000)
    buffer.store_batch(Turns({})(5))
    fill(url, 100_000)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        n_steps = 0

        def count() -> None:
            nonlocal n_steps
            n_steps += 100

        connection.set_progress_handler(count, 100)
        shown = connection.execute("SELECT messages FROM v_experiences").fetchall()
        assert (len(shown), n_steps < 20_000) == (5, True)
    plans = []
    for statement in (messages._SQLITE_SWEEP, messages._SQLITE_ERASE):
        explained = run(url, f"EXPLAIN QUERY PLAN {statement.replace(':id', '1')}")
        plans += [str(row[-1]) for row in explained]
    assert not any(plan.startswith("SCAN m") for plan in plans), plans
    connection.close()
