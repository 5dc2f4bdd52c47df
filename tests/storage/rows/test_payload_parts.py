"""Payloads above 1 MiB: in parts, whole again whoever reads them, and gone with their rows."""

from itertools import islice

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import make_url

from sqlbuffer import QueryBuilder, RandomSampler, RandomTaskSample, ReplayBuffer, StoreResult
from sqlbuffer.codec.equality import equal
from sqlbuffer.encoding import records
from sqlbuffer.errors import BufferConfigError, FieldError
from sqlbuffer.front.reading import RowDecoding
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage import reading
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.errors import too_large, translated
from sqlbuffer.storage.rows import payload_parts
from sqlbuffer.storage.rows.payload_parts import PART_BYTES
from tests.storage.buffers.settled_rows import SettledRows
from tests.support.fragments import lost_parts, make_fragment, parts_of
from tests.support.processes import run_at_once
from tests.support.proxy import proxied
from tests.support.sql import is_sqlite, run, scalar

LARGE = 2 * PART_BYTES + 5


@pytest.fixture(params=[None, "zstd"])
def buffer(request, buffer_url):
    with ReplayBuffer(buffer_url, compression=request.param) as buffer:
        yield buffer


def decoded(buffer, rows):
    return RowDecoding(buffer._store.source, None, None).whole.rows(rows)


READERS = {
    "get_all": lambda buffer: list(buffer.get_all()),
    "iteration": list,
    "pages": lambda buffer: buffer.get_paginated(1, 2) + buffer.get_paginated(2, 2),
    "task": lambda buffer: [row for n in range(3) for row in buffer.get_by_task_id(f"t{n}")],
    "sample": lambda buffer: buffer.sample(3),
    "sampled tasks": lambda buffer: [row for rows in buffer.sample_tasks(3) for row in rows],
    "sample of tasks": lambda buffer: [
        row for rows in buffer.sample(3, sampler=RandomTaskSample()) for row in rows
    ],
    "look": lambda buffer: buffer.peek(3, sampler=RandomSampler()),
    "settled rows": lambda buffer: decoded(buffer, SettledRows(buffer._store).read(10)),
}


def test_whoever_reads_rows_has_them_whole(buffer):
    rows = [make_fragment(0, LARGE), make_fragment(1, 10), make_fragment(2, PART_BYTES)]
    assert buffer.store_batch(rows).inserted == 3
    for name, read in READERS.items():
        found = sorted(read(buffer), key=lambda row: row.exp_meta.step)
        assert found == rows, name
        image = found[0].exp_data.state["obs"]["image"]
        image[:] = 0  # its own memory
        assert found[0].exp_data.state["obs"]["steps"][0] == 0
    assert list(buffer) == rows


def test_leased_rows_are_whole(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1) as buffer:
        buffer.store_batch([make_fragment(n) for n in range(2)])
        with buffer.lease(1, order="fifo", timeout_s=0) as batch:
            assert list(batch) == [make_fragment(0)]
        buffer.annotate([2], reward=5.0)
        with buffer.lease(1, group_by="task_id", timeout_s=0) as batch:
            ((row,),) = batch.groups
        assert row.exp_data.reward_t == 5.0
        row.exp_data.reward_t = 1.0
        assert row == make_fragment(1)
        buffer.expire()
        assert len(buffer) == 0
    assert parts_of(buffer_url) == {}


def test_the_database_holds_no_value_above_one_mebibyte(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch([make_fragment(0, LARGE), make_fragment(1, PART_BYTES - 45)])
        buffer.add(state=np.zeros(PART_BYTES, np.uint8))
    assert parts_of(buffer_url) == {1: 3}
    assert scalar(buffer_url, "SELECT max(length(bytes)) FROM payload_parts") == PART_BYTES
    found = run(buffer_url, "SELECT length(arrays), payload_bytes FROM experiences ORDER BY seq")
    assert [inline is None for inline, _ in found] == [True, False, False]
    assert found[0][1] > LARGE
    assert max(inline for inline, _ in found[1:]) == PART_BYTES
    assert [size for _, size in found[1:]] == [None, None]


def test_parts_are_compressed_one_by_one(buffer_url):
    zeros = np.zeros(3 * PART_BYTES, np.uint8)
    magic = np.frombuffer(b"\x28\xb5\x2f\xfd" * PART_BYTES, np.uint8)
    with ReplayBuffer(buffer_url, compression="zstd") as buffer:
        buffer.add(state=zeros, actions=[magic])
        (row,) = buffer
    assert parts_of(buffer_url) == {1: 7}
    assert scalar(buffer_url, "SELECT sum(length(bytes)) FROM payload_parts") < 5_000
    assert equal(row.exp_data.state, zeros)
    assert equal(row.exp_data.actions, [magic])


def test_a_buffer_notes_its_first_row_in_parts(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store(make_fragment(0, 1000))
        assert not scalar(buffer_url, "SELECT has_parts FROM buffers")
        buffer.store(make_fragment(1))
        assert scalar(buffer_url, "SELECT has_parts FROM buffers")


def test_typed_fields_stay_in_the_row(buffer_url):
    fields = {"obs": ("uint8", (2 * PART_BYTES,))}
    obs = np.random.default_rng(0).integers(0, 256, (2, 2 * PART_BYTES), np.uint8)
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        buffer.extend({"obs": obs, "state": [np.arange(200_000), 1]})
        assert np.array_equal(buffer.sample_arrays(2, sampler=RandomSampler()).obs.sum(), obs.sum())
        assert equal(next(iter(buffer)).exp_data.state, np.arange(200_000))
        (row, _) = buffer.get_paginated(1, 2, fields=["state"])
        assert equal(row.exp_data.state, np.arange(200_000))
    assert parts_of(buffer_url) == {}


def test_steps_of_an_episode_may_be_fragments(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        with buffer.episode("t") as episode:
            for n in range(3):
                episode.append(state=make_fragment(n).exp_data.state)
        found = [row.exp_data.state for row in buffer.get_by_task_id("t")]
        assert equal(found, [make_fragment(n).exp_data.state for n in range(3)])
    assert parts_of(buffer_url) == {1: 2, 2: 2, 3: 2}


def test_a_resend_is_a_duplicate_and_other_bytes_are_a_conflict(buffer):
    row, other = make_fragment(0, LARGE), make_fragment(0, LARGE)
    assert buffer.store(row).inserted == 1
    assert buffer.store_batch([row, make_fragment(1), row]) == StoreResult(1, 2, 0)
    other.exp_data.state["obs"]["image"][-1] ^= 1
    assert buffer.store(other) == StoreResult(0, 0, 1)
    small = make_fragment(0, 10)
    assert buffer.store(small) == StoreResult(0, 0, 1)
    assert list(buffer) == [row, make_fragment(1)]


def test_two_rows_of_one_batch_share_no_memory(buffer):
    buffer.store(make_fragment(0, LARGE))
    one, other = buffer.sample(2, sampler=RandomSampler(replace=True))
    one.exp_data.state["obs"]["image"][:] = 7
    assert other == make_fragment(0, LARGE)


def fill(buffer, numbers, **meta):
    for n in numbers:
        buffer.store(make_fragment(n, **meta))


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_evicted_rows_leave_no_parts(buffer_url, evict_by):
    with ReplayBuffer(buffer_url, max_capacity=3, evict_by=evict_by) as buffer:
        fill(buffer, range(7))
        assert [row.exp_meta.step for row in buffer] == [4, 5, 6]
    assert parts_of(buffer_url) == {5: 2, 6: 2, 7: 2}


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_what_a_batch_evicts_of_its_own_rows_leaves_no_parts(buffer_url, evict_by):
    with ReplayBuffer(buffer_url, max_capacity=2, evict_by=evict_by) as buffer:
        fill(buffer, range(2))
        buffer.store_batch([make_fragment(n) for n in range(10, 15)])
        assert [row.exp_meta.step for row in buffer] == [13, 14]
        assert list(buffer) == [make_fragment(13), make_fragment(14)]
    assert len(parts_of(buffer_url)) == 2
    assert lost_parts(buffer_url) == 0


def test_evicted_episodes_leave_no_parts(buffer_url):
    with ReplayBuffer(buffer_url, max_episodes=1) as buffer:
        for n in range(3):
            with buffer.episode(f"t{n}") as episode:
                episode.append(state=make_fragment(n).exp_data.state)
        assert [row.exp_meta.task_id for row in buffer] == ["t2"]
    assert len(parts_of(buffer_url)) == 1


REMOVALS = {
    "delete": lambda url, buffer: buffer.delete(QueryBuilder().lt("exp_meta.step", 2)),
    "clear": lambda url, buffer: buffer.clear(),
    "resize": lambda url, buffer: buffer.resize(1),
    "by hand": lambda url, buffer: run(url, "DELETE FROM experiences WHERE step < 2"),
    "drop": lambda url, buffer: ReplayBuffer.drop(url, "default"),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_removed_rows_leave_no_parts(buffer_url, remove):
    with ReplayBuffer(buffer_url, max_capacity=10) as buffer:
        fill(buffer, range(3))
        before = set(parts_of(buffer_url))
        remove(buffer_url, buffer)
        left = {seq for (seq,) in run(buffer_url, "SELECT seq FROM experiences")}
        assert set(parts_of(buffer_url)) == left < before


def test_a_refused_transaction_leaves_no_parts(buffer_url, monkeypatch):
    with ReplayBuffer(buffer_url) as buffer:
        original = payload_parts.insert_parts

        def fail_half_way(connection, buffer_id, parts):
            original(connection, buffer_id, list(islice(parts, 3)))
            raise RuntimeError("half-way")

        monkeypatch.setattr(payload_parts, "insert_parts", fail_half_way)
        with pytest.raises(RuntimeError, match="half-way"):
            buffer.store_batch([make_fragment(0), make_fragment(1)])
        monkeypatch.undo()
        assert parts_of(buffer_url) == {}
        assert len(buffer) == 0
        buffer.store(make_fragment(0))
        assert list(buffer) == [make_fragment(0)]


def store_again_and_again(url, numbers):
    with ReplayBuffer(url) as buffer:
        for _ in range(3):
            buffer.store_batch([make_fragment(n) for n in numbers])


@pytest.mark.thorough
@pytest.mark.slow
def test_writers_of_the_same_ids_store_each_fragment_once_and_whole(buffer_url):
    calls = [(store_again_and_again, buffer_url, range(k, k + 4)) for k in range(3)]
    run_at_once(calls)
    with ReplayBuffer(buffer_url) as buffer:
        found = sorted(buffer, key=lambda row: row.exp_meta.step)
        assert found == [make_fragment(n) for n in range(6)]
    assert set(parts_of(buffer_url).values()) == {2}
    assert lost_parts(buffer_url) == 0


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_fragment_whose_connection_is_cut_at_the_commit_is_stored_once(make_database_url, cut):
    url = make_database_url("postgresql", schema=True)
    with proxied(url) as proxy:
        buffer = ReplayBuffer(proxy.url)
        buffer.store(make_fragment(0))
        proxy.cuts = [cut]
        assert buffer.store(make_fragment(1, LARGE)).inserted == 1
        assert proxy.n_cut == 1
        assert list(buffer) == [make_fragment(0), make_fragment(1, LARGE)]
        engine_for(resolve_url(proxy.url)).dispose()
    assert sorted(parts_of(url).values()) == [2, 3]
    assert lost_parts(url) == 0


def test_a_row_that_is_evicted_while_it_is_read_is_whole(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=2) as buffer:
        fill(buffer, range(2))
        with buffer._store.source.candidates(EVERYTHING) as candidates:
            first, second = candidates.probe([1, 2])
            if is_sqlite(buffer_url):
                fill(ReplayBuffer(buffer_url), range(2, 4))
            else:
                with psycopg.connect(buffer_url) as other:
                    other.execute("DELETE FROM experiences")
            found = decoded(buffer, candidates.rows([first, second]))
        assert found == [make_fragment(0), make_fragment(1)]
        assert make_fragment(0) not in list(buffer)


def test_a_row_that_lacks_a_part_is_named(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        fill(buffer, range(2))
        run(buffer_url, "DELETE FROM payload_parts WHERE seq = 2 AND part = 1")
        with pytest.raises(FieldError, match="the row with seq 2 lacks a part of its payload"):
            buffer.sample(2)
        with pytest.raises(FieldError, match="seq 2"):
            list(buffer)
        assert len(buffer.sample(2, fields=["reward_t"])) == 2


def test_large_rows_come_in_small_pages(buffer_url, monkeypatch):
    monkeypatch.setattr(reading, "PAGE_BYTES", 3 * PART_BYTES)
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch([make_fragment(n) for n in range(5)])
        buffer.add(state=1)
        pages = [len(page) for page in buffer._store.rows.pages(EVERYTHING)]
        assert sum(pages) == 6
        assert max(pages) <= 3
        assert [row.seq for row in buffer] == list(range(1, 7))
        settled, seen = SettledRows(buffer._store), []
        while rows := settled.read(4):
            seen += [row[0] for row in rows]
        assert seen == list(range(1, 7))
        no_fields, _ = RowDecoding(buffer._store.source, None, None).of([])
        keys = [len(page) for page in buffer._store.rows.pages(EVERYTHING, no_fields)]
        assert keys == [6]


LIMIT = 3 * PART_BYTES


@pytest.mark.parametrize(
    "payload",
    [
        {"state": np.zeros(LIMIT + 1, np.uint8)},
        {"state": "x" * (LIMIT + 1)},
        {"state": "é" * (LIMIT // 2), "extra": {"a": np.zeros(100)}},
        {"messages": ["x" * 2 * PART_BYTES], "actions": [np.zeros(PART_BYTES, np.uint8)]},
    ],
    ids=["arrays", "text", "bytes of text", "both"],
)
def test_a_row_above_the_limit_is_refused_before_anything_is_written(buffer_url, payload):
    with ReplayBuffer(buffer_url, max_row_bytes=LIMIT) as buffer:
        rows = [make_fragment(n, 100) for n in range(3)]
        for name, value in payload.items():
            setattr(rows[1].exp_data, name, value)
        with pytest.raises(
            FieldError,
            match=r"row 1: the payload has 3,\d+,\d+ bytes .* the buffer takes 3,145,728 .* several"
            r" rows, or make a buffer with a larger max_row_bytes",
        ):
            buffer.store_batch(rows)
        with pytest.raises(FieldError, match="row 0: the payload"):
            buffer.add(**payload)
        with buffer.episode() as episode:
            episode.append(state=1)
            with pytest.raises(FieldError, match="step 1: the payload"):
                episode.append(**payload)
            episode.append(state=2)
        assert len(buffer) == 2
        assert buffer.add(state=np.zeros(LIMIT - 500, np.uint8)).inserted == 1
    with pytest.raises(BufferConfigError, match="max_row_bytes=3145728"):
        ReplayBuffer(buffer_url, max_row_bytes=2 * LIMIT)


def test_typed_rows_above_the_limit_are_refused(buffer_url):
    fields = {"obs": ("uint8", (-1,))}
    with ReplayBuffer(buffer_url, fields=fields, max_row_bytes=1_000) as buffer:
        with pytest.raises(FieldError, match="row 1: the payload has 1,00"):
            buffer.extend({"obs": [np.zeros(10, np.uint8), np.zeros(1_001, np.uint8)]})
        assert len(buffer) == 0


def test_json_that_the_database_could_not_hold_is_refused(buffer_url, monkeypatch):
    for module in (payload_parts, records):
        monkeypatch.setattr(module, "MAX_JSON_BYTES", 1_000)
    with (
        ReplayBuffer(buffer_url) as buffer,
        pytest.raises(FieldError, match=r"row 0: state: 1\.2 kB of JSON.*numpy arrays"),
    ):
        buffer.add(state="x" * 1_200)
    monkeypatch.setattr(payload_parts, "MAX_INLINE_BYTES", 1_000)
    fields = {"obs": ("uint8", (2_000,))}
    with (
        ReplayBuffer(buffer_url, name="typed", fields=fields) as buffer,
        pytest.raises(FieldError, match=r"row 0: the payload has 2,000 bytes .* takes 1,000"),
    ):
        buffer.extend({"obs": np.zeros((1, 2_000), np.uint8)})


REFUSE = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "IF NEW.step = 2 THEN RAISE 'total size of jsonb array elements exceeds the maximum' "
    "USING ERRCODE = 'program_limit_exceeded'; END IF; RETURN NEW; END $$"
)


def test_json_that_grows_beyond_what_the_server_takes_is_named_and_not_sent_again(postgres_url):
    with ReplayBuffer(postgres_url, create=True) as buffer:
        rows = [make_fragment(n, 100) for n in range(4)]
        for step, row in enumerate(rows):
            row.exp_meta.step = step
        buffer.store(rows[0])
        run(postgres_url, "CREATE SEQUENCE attempts")
        run(postgres_url, REFUSE)
        run(
            postgres_url,
            "CREATE TRIGGER refuse BEFORE INSERT ON experiences FOR EACH ROW "
            "WHEN (NEW.step <> 2 OR nextval('attempts') > 0) EXECUTE FUNCTION refuse()",
        )
        with pytest.raises(FieldError, match=rf"row '{rows[2].id}': too large .*jsonb array ele"):
            buffer.store_batch(rows)
        assert scalar(postgres_url, "SELECT last_value FROM attempts") == 1
        assert len(buffer) == 1


def copy_states(url, states):
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE rows (id text, state jsonb)")
        with cursor.copy("COPY rows FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["text", "jsonb"])
            for state in states:
                copy.write_row(["id", state])


def test_the_field_that_a_server_refuses_is_named(postgres_url):
    url = make_url(postgres_url).set(drivername="postgresql").render_as_string(False)
    with pytest.raises(psycopg.Error) as caught:
        copy_states(url, [Jsonb(1), Jsonb(1, dumps=lambda _: "no json")])
    assert str(too_large(caught.value, ["a", "b"])).startswith("row 'b': state: too large")


def test_a_value_that_sqlite_cannot_hold_is_the_callers_error(sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        store = buffer._store
        with (
            pytest.raises(FieldError, match=r"too large for the database \(string or blob too big"),
            translated(store.url),
            store.engine.connect() as connection,
        ):
            connection.exec_driver_sql("SELECT zeroblob(2000000000)")
