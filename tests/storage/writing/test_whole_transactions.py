"""Steps that a server stores in one round trip are those that a transaction of several stores."""

import numpy as np
import pytest
from sqlalchemy import create_engine, make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError, FieldError, StorageBusyError
from sqlbuffer.storage.buffers import writes
from sqlbuffer.storage.database import transactions
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
