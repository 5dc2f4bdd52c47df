"""A page of a rollout reads the steps that it shows, however long the rollout and the buffer."""

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.query.tree import check
from sqlbuffer.storage.browsing.rollouts import (
    Rollout,
    RolloutQuery,
    browsed_buffer,
    find_episode,
    relatives_of,
    rollout_page,
)
from sqlbuffer.storage.browsing.steps import (
    MOST_BATCHES,
    StepKey,
    draws_of,
    key_page,
    keys_of_episodes,
    notes_of,
    read_steps,
    spaced_keys,
)
from sqlbuffer.storage.buffers.catalog import find_buffer
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.transactions import snapshot
from tests.support.sql import buffer_id, fill, is_sqlite, numbered, run
from tests.support.watch import wait_for_cleaner, watched

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_STEPS = 100_000
LONG, SHORT, PER_TASK = 60_000, 100, 20
N_BATCHES = 2_000
TABLES = (
    "experiences", "chunks", "chunk_data", "deleted_steps", "episodes", "labels", "label_history",
    "uses", "quarantine", "priorities", "samples",
)  # fmt: skip
PLACES = {
    "first": {},
    "middle": {"after": StepKey(30_000, 0)},
    "before": {"before": StepKey(30_000, 0)},
    "last": {"is_last": True},
}


def fill_large(url):
    """Fill a buffer of rows and one of chunks: each with an episode of 60,000 steps and 400 of 100;
    the rows with labels, and with batches that held some of them.
    """
    with fill(url, N_STEPS, name="rows", rows_per_task=PER_TASK, track_samples=True) as buffer:
        wait_for_cleaner(buffer)
    number = buffer_id(url, "rows")
    of_step = f"CASE WHEN seq <= {LONG} THEN 0 ELSE 1 + (seq - {LONG} - 1) / {SHORT} END"
    run(
        url,
        f"INSERT INTO episodes (id, buffer_id, key, task_id, status, length, first_seq, last_seq) "
        f"SELECT 7000000 + n, {number}, 'e' || n, 't', 'complete', count(*), min(seq), max(seq) "
        f"FROM (SELECT seq, {of_step} AS n FROM experiences WHERE buffer_id = {number}) s "
        "GROUP BY n",
    )
    run(
        url,
        'INSERT INTO rollout_stats (buffer_id, task_id, episode_id, length, "return", first_seq, '
        "last_seq, group_id) SELECT buffer_id, task_id, id, length, 0.0, first_seq, last_seq, "
        "task_id FROM episodes "
        f"WHERE buffer_id = {number}",
    )
    # Every fifth task has no episode.
    run(
        url,
        f"UPDATE experiences SET episode_id = 7000000 + {of_step}, t = CASE WHEN seq <= {LONG} "
        f"THEN seq - 1 ELSE (seq - {LONG} - 1) % {SHORT} END WHERE buffer_id = {number} "
        f"AND (seq - 1) / {PER_TASK} % 5 <> 0",
    )
    columns, values = numbered(url, "buffer_id", "seq")
    for insert, made in (
        (f"labels ({columns}, reward_t)", f"{values}, 1.0"),
        ("label_history (buffer_id, seq, version, reward_t)", "buffer_id, seq, 1, 1.0"),
    ):
        run(
            url,
            f"INSERT INTO {insert} SELECT {made} FROM experiences WHERE buffer_id = {number}",
        )
    run(url, f"UPDATE buffers SET has_labels = true WHERE id = {number}")
    seqs, when = "ARRAY[1,2,3]::bigint[]", "now() - seq * interval '1 second'"
    if is_sqlite(url):
        seqs, when = "'[1,2,3]'", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || seq || ' seconds')"
    run(
        url,
        "INSERT INTO samples (buffer_id, sampler, n_rows, seqs, sampled_at) "
        f"SELECT buffer_id, 'random', 3, {seqs}, {when} FROM experiences "
        f"WHERE buffer_id = {number} AND seq <= {N_BATCHES}",
    )
    fields = {"obs": ("float32", (4,))}
    with ReplayBuffer(url, name="chunks", fields=fields) as buffer:
        for n, length in enumerate([LONG, *[SHORT] * ((N_STEPS - LONG) // SHORT)]):
            columns = {"obs": np.ones((length, 4), np.float32), "reward": np.ones(length)}
            buffer.store_episode(columns, task_id=f"t{n}", episode_id=f"e{n}")
        wait_for_cleaner(buffer)


def rollout_of(url, connection, buffer, key):
    found = run(
        url,
        "SELECT id FROM episodes WHERE buffer_id = :b AND key = :key",
        b=buffer.info.id,
        key=key,
    )
    return find_episode(connection, buffer, found[0][0])


def browsed(watch, name):
    return browsed_buffer(watch, resolve_url(watch.engine.url), name)


@pytest.mark.parametrize("name", ["rows", "chunks"])
def test_a_condition_reads_the_steps_of_the_rollouts_that_it_looks_at(large_url, name):
    query = RolloutQuery(condition=check(QueryBuilder().eq("step", -1).build()))
    with watched(large_url, tables=TABLES) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, name)
        assert rollout_page(connection, info, query).rollouts == []
        connection.rollback()
    assert watch.rows_scanned < 3_000
    assert watch.rows_fetched < 2 * N_STEPS
    assert watch.steps < 100 * N_STEPS


@pytest.mark.parametrize("name", ["rows", "chunks"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("key", ["e0", "e200"])
def test_a_page_of_an_episode_reads_its_steps_alone(large_url, name, place, key):
    with (
        watched(large_url, tables=TABLES) as watch,
        snapshot(watch.engine, in_order=True) as connection,
    ):
        buffer = browsed(connection, name)
        rollout = rollout_of(large_url, connection, buffer, key)
        keys = key_page(connection, buffer, rollout, 100, **PLACES[place]).keys
        steps, _ = read_steps(connection, buffer, keys)
        notes_of(connection, buffer, [key.seq for key in keys])
        assert len(steps) == len(keys)
        assert keys or (place, key) == ("middle", "e200")
        connection.rollback()
    assert watch.rows_scanned < 300  # PostgreSQL scans a table of few rows, such as `buffers`
    assert watch.rows_fetched < 2_000
    assert watch.steps < 60_000


def test_the_relatives_of_an_episode_are_looked_up(large_url):
    where = f"buffer_id = {buffer_id(large_url, 'chunks')} AND"
    run(large_url, f"UPDATE episodes SET parent_id = 'e0' WHERE {where} key IN ('e2', 'e3')")
    run(large_url, f"UPDATE episodes SET parent_id = 'gone' WHERE {where} key LIKE 'e%5'")
    with (
        watched(large_url, tables=TABLES) as watch,
        snapshot(watch.engine, in_order=True) as connection,
    ):
        buffer = browsed(connection, "chunks")
        numbers = {
            key: rollout_of(large_url, connection, buffer, key).number for key in ("e0", "e2", "e5")
        }
        found = {key: relatives_of(connection, buffer.info.id, n) for key, n in numbers.items()}
        connection.rollback()
    assert [key for _, key in found["e0"].children] == ["e2", "e3"]
    assert (found["e2"].parent, found["e5"].parent) == (numbers["e0"], None)
    assert found["e5"].parent_id == "gone"
    assert watch.rows_scanned < 300
    assert watch.rows_fetched < 100
    assert watch.steps < 20_000


def test_a_page_of_a_task_reads_its_steps_alone(large_url):
    with (
        watched(large_url, tables=TABLES) as watch,
        snapshot(watch.engine, in_order=True) as connection,
    ):
        buffer = browsed(connection, "rows")
        keys = key_page(connection, buffer, Rollout("t500"), 100).keys
        assert len(read_steps(connection, buffer, keys)[0]) == PER_TASK
        connection.rollback()
    assert watch.rows_scanned < 300
    assert watch.rows_fetched < 500
    assert watch.steps < 20_000


@pytest.mark.parametrize("name", ["rows", "chunks"])
def test_the_steps_of_many_short_episodes_are_looked_up(large_url, name):
    with (
        watched(large_url, tables=TABLES) as watch,
        snapshot(watch.engine, in_order=True) as connection,
    ):
        buffer = browsed(connection, name)
        number = rollout_of(large_url, connection, buffer, "e200").number
        found = keys_of_episodes(connection, buffer, range(number, number + 50))
        # Every fifth task of the rows has no episode.
        assert {len(keys) for keys in found.values()} == {80 if name == "rows" else SHORT}
        connection.rollback()
    assert watch.rows_scanned < 300
    assert watch.rows_fetched < 5_000
    assert watch.steps < 300_000


@pytest.mark.parametrize("name", ["rows", "chunks"])
def test_the_steps_of_curves_are_looked_up(large_url, name):
    with (
        watched(large_url, tables=TABLES) as watch,
        snapshot(watch.engine, in_order=True) as connection,
    ):
        buffer = browsed(connection, name)
        rollout = rollout_of(large_url, connection, buffer, "e0")
        keys, n = spaced_keys(connection, buffer, rollout, 50)
        # Every fifth task of the rows has no episode, and so no place in it.
        assert 35 <= len(keys) <= 50
        assert n >= LONG - PER_TASK
        connection.rollback()
    assert watch.rows_scanned < 300
    assert watch.rows_fetched < 1_000
    assert watch.steps < 60_000


def test_the_newest_batches_alone_are_searched(large_url):
    with (
        watched(large_url, tables=TABLES) as watch,
        snapshot(watch.engine, in_order=True) as connection,
    ):
        buffer = browsed(connection, "rows")
        found = draws_of(connection, buffer, [2])
        assert (found.n_searched, found.is_all) == (MOST_BATCHES, False)
        assert len(found.draws) == MOST_BATCHES
        connection.rollback()
    assert watch.rows_scanned < 300
    assert watch.rows_fetched < 2 * MOST_BATCHES + 100
    assert watch.steps < 100_000
