"""Steps that a server stores in one round trip are those that a transaction of several stores."""

import threading

import numpy as np
import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    BufferNotFoundError,
    EpisodeExistsError,
    FieldError,
    SQLBufferError,
    StorageBusyError,
    StorageUnreachableError,
)
from sqlbuffer.storage.buffers import writes
from sqlbuffer.storage.database import transactions
from sqlbuffer.storage.writing import chunks
from tests.support.sql import connected, run, scalar

FIELDS = {
    "obs": ("float32", (3,)),
    "name": "U24",
    "path": ("int16", (-1,)),
    "level": {"dtype": "int64", "column": True},
}
CHUNKS = (
    "SELECT k.first_seq, k.n_steps, k.task_id, k.agent_id, k.step, CAST(k.steps AS text), "
    "k.model_version, CAST(k.reward_t AS text), CAST(k.adv_t AS text), "
    "CAST(k.v_t AS text), CAST(k.terminated AS text), CAST(k.truncated AS text), "
    "CAST(k.initial_priority AS text), CAST(k.fields AS text), d.block_steps, d.layout, "
    "CAST(d.offsets AS text), d.rewards, d.ends, d.records, CAST(d.payloads AS text), "
    "d.payload_arrays FROM chunks k "
    "JOIN chunk_data d ON d.buffer_id = k.buffer_id AND d.first_seq = k.first_seq "
    "JOIN buffers b ON b.id = k.buffer_id WHERE b.name = :name ORDER BY k.first_seq"
)


def some_columns(rng, *, priorities):
    """Return columns of a random number of steps, some of which leave values out."""
    n = int(rng.integers(1, 700))
    columns = {
        "obs": rng.normal(size=(n, 3)).astype(np.float32),
        "name": [f"{'x' * int(k)} \N{SNOWMAN}" for k in rng.integers(0, 20, n)],
        "path": [np.arange(k, dtype=np.int16) for k in rng.integers(0, 9, n)],
        "level": rng.integers(-5, 5, n),
        "task_id": [f"t{k}" for k in rng.integers(0, rng.integers(1, 40), n)],
    }
    rewards = rng.choice([0.5, -1.0, np.inf, 1e300], n)
    optional = {
        "reward": np.where(rewards < 0, np.nan, rewards),
        "adv_t": rng.normal(size=n),
        "terminated": rng.random(n) < 0.1,
        "truncated": np.zeros(n, bool),
        "model_version": int(rng.integers(9)),
        "step": rng.integers(0, 1_000, n),
        "extra": [{"note": int(k)} if k else None for k in rng.integers(0, 3, n)],
    }
    if priorities:
        optional["priority"] = rng.random(n) + 0.1
    return columns | {name: v for name, v in optional.items() if rng.random() < 0.5}


@pytest.mark.parametrize("priorities", [False, True])
def test_one_round_trip_stores_what_a_transaction_stores(buffer_url, priorities):
    rng = np.random.default_rng(7)
    settings = {"fields": FIELDS, "max_capacity": 2_000, "priorities": priorities}
    with (
        ReplayBuffer(buffer_url, name="alone", **settings) as alone,
        ReplayBuffer(buffer_url, name="within", **settings) as within,
    ):
        for _ in range(12):
            columns = some_columns(rng, priorities=priorities)
            stored = alone.extend(columns)
            expected = within.transaction(lambda tx, columns=columns: tx.extend(columns))
            assert stored == expected
            assert stored.seqs.tolist() == expected.seqs.tolist()
        assert len(alone) == len(within) == 2_000
        found = [run(buffer_url, CHUNKS, name=name) for name in ("alone", "within")]
    assert found[0] == found[1]


@pytest.mark.parametrize("cuts", [["before"], ["after"], ["before", "after", "after", "before"]])
def test_steps_whose_connection_is_cut_have_the_numbers_of_the_first_commit(url, proxy, cuts):
    with ReplayBuffer(proxy.url, fields={"x": "int64"}, max_capacity=5) as buffer:
        buffer.extend({"x": [1, 2]})
        proxy.cuts = list(cuts)
        # Others fill the buffer before the call learns what became of its steps.
        proxy.on_cut = lambda: ReplayBuffer(url).extend({"x": np.arange(9)})
        stored = buffer.extend({"x": [3, 4, 5]})
        assert proxy.n_cut == len(cuts)
        n_before = cuts.index("after") if "after" in cuts else len(cuts)
        assert stored.inserted == 3
        assert stored.seqs.tolist() == [first + 3 + 9 * n_before for first in range(3)]
        n_numbers = 2 + 3 + 9 * len(cuts)
        assert scalar(url, "SELECT last_value FROM sqlbuffer_seq_1") == n_numbers
        assert scalar(url, "SELECT count(*) FROM applied_writes WHERE first_seq IS NULL") == 0


def test_what_became_of_steps_in_columns_is_not_guessed(proxy, monkeypatch):
    monkeypatch.setattr(writes, "KEPT_LONGER_S", 0.0)
    with ReplayBuffer(proxy.url, fields={"x": "int64"}, retry_s=1) as buffer:
        proxy.cuts = ["after"]
        with pytest.raises(Exception, match="no longer known if"):
            buffer.extend({"x": [1]})
        assert len(buffer) == 1


@pytest.mark.parametrize("durability", [None, "relaxed", "full"])
def test_one_round_trip_has_the_settings_of_a_transaction(url, durability):
    names = (
        "synchronous_commit", "lock_timeout", "statement_timeout",
        "idle_in_transaction_session_timeout", "transaction_isolation", "jit",
    )  # fmt: skip
    shown = " || ' ' || ".join(f"current_setting('{name}')" for name in names)
    run(url, "CREATE TABLE noted (settings text)")
    run(
        url,
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN INSERT INTO noted SELECT {shown}; RETURN NULL; END $$",
    )
    run(url, "CREATE TRIGGER note AFTER INSERT ON chunks EXECUTE FUNCTION note()")
    given = make_url(url).set(drivername="postgresql+psycopg")
    for engine in (url, create_engine(given), create_engine(given, isolation_level="SERIALIZABLE")):
        with ReplayBuffer(engine, fields={"x": "int64"}, durability=durability) as buffer:
            buffer.extend({"x": [1]})
            assert len(buffer) > 0
    level = "off" if durability == "relaxed" else "on"
    assert run(url, "SELECT DISTINCT settings FROM noted") == [
        (f"{level} 30s 10min 1min read committed off",)
    ]


def test_errors_are_those_of_a_transaction_and_leave_the_connection_usable(url, monkeypatch):
    monkeypatch.setattr(transactions, "LOCK_TIMEOUT_S", 1)
    with ReplayBuffer(url, fields={"x": "int64"}) as buffer:
        with connected(url) as connection:
            connection.exec_driver_sql("LOCK TABLE chunks IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StorageBusyError, match="lock timeout; try again"):
                buffer.extend({"x": [1]})
        with pytest.raises(FieldError):
            buffer.extend({"x": [1]}, task_id="t" * 100_000)
        assert buffer.extend({"x": [1, 2]}).inserted == len(buffer) == 2
        ReplayBuffer.drop(url, buffer.name)
        with pytest.raises(BufferNotFoundError, match="was dropped"):
            buffer.extend({"x": [1]})


def test_a_batch_larger_than_one_call_to_the_server_is_stored_as_a_whole(url):
    with ReplayBuffer(url, fields={"x": ("uint8", (2**20,))}) as buffer:
        values = np.arange(40, dtype=np.uint8)[:, None].repeat(2**20, axis=1)
        assert buffer.extend({"x": values}).inserted == 40
        held = np.array([row.fields["x"] for row in buffer.get_all()])
        assert (held == values).all()


EPISODES = (
    "SELECT e.key, e.task_id, e.agent_id, e.group_id, e.parent_id, e.status, e.length, e.reward, "
    'e."return", e.first_seq, e.last_seq, e.model_version, CAST(e.meta AS text), e.final_arrays, '
    "e.next_t, e.is_implied, e.attempt, e.ended_at IS NULL, r.length, r.first_seq, r.last_seq, "
    'r."return", r.group_id FROM episodes e JOIN buffers b ON b.id = e.buffer_id '
    "LEFT JOIN rollout_stats r ON r.buffer_id = b.id AND r.task_id = e.task_id "
    "AND r.episode_id = e.id WHERE b.name = :name ORDER BY e.key, e.task_id"
)
STEPS = (
    "SELECT e.key, k.t, k.first_seq, k.n_steps, k.step, k.agent_id, d.records FROM chunks k "
    "JOIN chunk_data d ON d.buffer_id = k.buffer_id AND d.first_seq = k.first_seq "
    "JOIN buffers b ON b.id = k.buffer_id LEFT JOIN episodes e ON e.id = k.episode_id "
    "WHERE b.name = :name ORDER BY k.first_seq"
)


def some_calls(rng):
    """Return calls that store episodes, some of which are stored already, or end in another way."""
    calls, keys = [], [f"e{k}" for k in range(8)]
    for _ in range(40):
        key, n = str(rng.choice(keys)), int(rng.integers(1, 600))
        columns = {"x": rng.integers(0, 9, n), "reward": rng.normal(size=n)}
        if rng.random() < 0.5:
            columns["terminated"] = np.arange(n) == n - 1
        options = {}
        if rng.random() < 0.4:
            options["group_id"] = str(rng.choice(["g", "h"]))
        if rng.random() < 0.3:
            options["parent_id"] = "e9"
        whole = {**options, "agent_id": "a", "model_version": 3}
        if rng.random() < 0.3:
            whole["episode_reward"] = 2.5
        steps = {"episode_id": key, "task_id": "t", **options}
        continued = {"step": np.arange(n)} if rng.random() < 0.3 else {}
        calls += [
            ("store_episode", columns, {"episode_id": key, "task_id": "t", **whole, "note": 1}),
            ("extend", columns, steps | continued),
            ("writer", columns, {"episode_id": f"{key}/{rng.integers(3)}", "task_id": "t"}),
            ("end_episode", key, {"task_id": "t", "status": "complete"}),
            ("extend", columns, {}),
        ]
    return [calls[i] for i in rng.permutation(len(calls))[:80]]


def outcome_of(buffer, name, given, options):
    """Return the result of a call, or its error."""
    try:
        if name == "writer":
            with buffer.episode(**options, resume=True) as episode:
                for i in range(min(len(given["x"]), 20)):
                    episode.append(x=given["x"][i], reward=given["reward"][i])
                buffer.flush()
                episode.append(x=1)
            return None
        result = getattr(buffer, name)(given, **options)
    except SQLBufferError as error:
        return type(error), str(error).replace(buffer.name, "")
    return result and (result, getattr(result, "seqs", np.empty(0)).tolist())


@pytest.mark.parametrize("capacity", [None, 3_000])
def test_an_episode_at_once_is_that_of_single_statements(buffer_url, monkeypatch, capacity):
    calls = some_calls(np.random.default_rng(11))
    outcomes, tables, find = {}, {}, chunks._placed_episodes
    n_at_once = 0

    def placed(*arguments):
        nonlocal n_at_once
        episodes = find(*arguments)
        n_at_once += bool(episodes)
        return episodes

    for name, look in (("at once", placed), ("single", lambda *_: None)):
        monkeypatch.setattr(chunks, "_placed_episodes", look)
        settings = {"fields": {"x": "int64"}, "max_capacity": capacity}
        with ReplayBuffer(buffer_url, name=name, **settings) as buffer:
            outcomes[name] = [outcome_of(buffer, *call) for call in calls]
        tables[name] = [run(buffer_url, query, name=name) for query in (EPISODES, STEPS)]
    assert n_at_once > 20
    assert outcomes["at once"] == outcomes["single"]
    assert tables["at once"] == tables["single"]


@pytest.mark.parametrize("cuts", [["before"], ["after"], ["before", "after", "after", "before"]])
def test_an_episode_whose_connection_is_cut_is_stored_once(url, proxy, cuts):
    with ReplayBuffer(proxy.url, fields={"x": "int64"}) as buffer:
        buffer.store_episode({"x": [1, 2]})
        proxy.cuts = list(cuts)
        stored = buffer.store_episode({"x": [3, 4, 5]}, episode_id="e", episode_reward=1.5)
        assert proxy.n_cut == len(cuts)
        assert (stored.inserted, stored.duplicates, len(buffer)) == (3, 0, 5)
        again = buffer.store_episode({"x": [3, 4, 5]}, episode_id="e", episode_reward=1.5)
        assert (again.inserted, again.duplicates) == (0, 3)
    query = "SELECT key, status, length, reward FROM episodes WHERE key = 'e'"
    assert run(url, query) == [("e", "complete", 3, 1.5)]


def test_a_flush_is_repeated_as_it_was_sent_though_a_part_of_it_is_stored(url, proxy):
    """The first attempt finds steps of another writer, stores the rest, and loses its answer."""
    with ReplayBuffer(proxy.url, fields={"x": "int64"}, retry_s=1, flush_s=1_000) as buffer:
        episode = buffer.episode(task_id="t", episode_id="e")
        for x in range(2):
            episode.append(x=x)
        buffer.flush()
        buffer.extend({"x": [77]}, episode_id="e", task_id="t")
        for x in range(2, 4):
            episode.append(x=x)
        # The statement that stores all of it commits nothing; then comes that of the rest.
        proxy.cuts, proxy.on_cut = [None, "after"], lambda: setattr(proxy, "closed", True)
        with pytest.raises(StorageUnreachableError):
            buffer.flush()
        assert proxy.n_cut == 1
        proxy.end_outage()
        with pytest.raises(EpisodeExistsError, match="e/2"):
            buffer.flush()
    steps = "SELECT first_seq, n_steps, t FROM chunks ORDER BY first_seq"
    assert run(url, steps) == [(1, 2, 0), (3, 1, 2), (4, 1, 3)]


def test_an_episode_takes_one_round_trip(url, monkeypatch):
    waits, wait = [], psycopg.Connection.wait

    def counted(self, *arguments, **options):
        waits.append(threading.get_ident())
        return wait(self, *arguments, **options)

    with ReplayBuffer(url, fields={"x": "int64"}, max_capacity=2_000) as buffer:
        calls = (
            lambda: buffer.store_episode({"x": np.arange(1_000)}),
            lambda: buffer.extend({"x": np.arange(1_000)}),
        )
        for call in calls:
            call()
            monkeypatch.setattr(psycopg.Connection, "wait", counted)
            waits.clear()
            call()
            monkeypatch.undo()
            # The other one returns the connection to the pool, and sends nothing.
            assert waits.count(threading.get_ident()) <= 2
