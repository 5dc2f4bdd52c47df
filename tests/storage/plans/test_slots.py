"""Slots of compat.memmap scan no table (I9): 100,000 steps beside other buffers, with and without
statistics.
"""

import re

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.compat import memmap
from sqlbuffer.compat.memmap.slots import BookChange
from sqlbuffer.storage.schema.metadata import whole_metadata
from tests.support.sql import buffer_id, connected, fill, is_sqlite, numbered, run
from tests.support.watch import watched

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_SLOTS, N_STEPS = 1_000, 100
MOST_ROWS_READ = 10_000
MOST_STEPS = 100_000
TABLES = (
    "experiences", "chunks", "chunk_data", "episodes", "payload_changes", "replaced_steps",
)  # fmt: skip
SCAN = re.compile(
    r"Seq Scan on (experiences|episodes|payload|replaced)"
    r"|^SCAN (experiences|episodes|payload|replaced|[dep])\b",
    re.MULTILINE,
)
# Read as a whole where no buffer has any.
SCAN_OF_CHUNKS = re.compile(
    r"Seq Scan on chunk(s|_data)\b|^SCAN (chunks|chunk_data|c)\b", re.MULTILINE
)
SHAPE = {
    "max_episodes": N_SLOTS, "max_timesteps": 2 * N_STEPS, "circular": True,
    "fields": {"x": ("float", 2), "r": "float"}, "meta_fields": {"task": "int"},
}  # fmt: skip


def fill_large(url):
    """Fill two buffers of slots, one of them with a note for every step that it was changed, and
    one of rows.
    """
    fill(url, 10_000, name="rows")
    fill_slots(url, "other", 100)
    fill_slots(url, "slots", N_SLOTS)
    run(
        url,
        "INSERT INTO payload_changes (buffer_id, seq, fields, n_changes) SELECT buffer_id, seq, "
        f"'r', 1 FROM step_numbers WHERE buffer_id = {buffer_id(url, 'slots')}",
    )
    run(
        url,
        "INSERT INTO replaced_steps (buffer_id, seq, record) SELECT s.buffer_id, s.seq, "
        "substr(d.records, 1, 12) FROM step_numbers s JOIN chunk_data d "
        "ON d.buffer_id = s.buffer_id AND d.first_seq = s.first_seq "
        f"WHERE s.buffer_id = {buffer_id(url, 'slots')}",
    )
    run(url, "UPDATE buffers SET has_changes = true WHERE name = 'slots'")


def fill_slots(url, name, n_slots):
    """Fill slots with what the library has stored in the first one."""
    buffer = memmap.ReplayBuffer(url, name=name, **SHAPE)
    buffer.store_episode(x=np.ones((N_STEPS, 2)), r=np.ones(N_STEPS), task=1)
    fill_book(buffer, n_slots)
    prefix = buffer._book.key(0)[:-1]
    buffer.close()
    number = buffer_id(url, name)
    numbers = (
        "WITH RECURSIVE g(s) AS (SELECT 1 UNION ALL SELECT s + 1 FROM g WHERE s < :n)"
        if is_sqlite(url)
        else "WITH g AS (SELECT s FROM generate_series(1, CAST(:n AS int)) s)"
    )
    hexadecimal = "printf('%x', g.s)" if is_sqlite(url) else "to_hex(g.s)"
    episode, key = f"{number}000000 + g.s", f"'{prefix}' || {hexadecimal}"
    seq = f"e.seq + g.s * {N_STEPS}"
    columns, values = numbered(url, "e.buffer_id", seq)
    given = {"n": n_slots - 1}
    copies = [
        copied_chunks(url, name_of_table, number, numbers, {"task_id": key, "episode_id": episode})
        for name_of_table in ("chunk_data", "chunks")
    ]
    with connected(url) as connection:
        for statement in (
            f"INSERT INTO experiences ({columns}, id, task_id, agent_id, step, episode_id, t, "
            f"fields, reward_t, arrays) {numbers} SELECT {values}, {key} || '/' || e.t, "
            f"{key}, e.agent_id, e.step, {episode}, e.t, e.fields, e.reward_t, e.arrays "
            f"FROM g CROSS JOIN experiences e WHERE e.buffer_id = {number}",
            *copies,
            # Last: an episode that has ended takes no step.
            f"INSERT INTO episodes (id, buffer_id, key, task_id, status, length, first_seq, "
            f"last_seq, meta) {numbers} SELECT {episode}, p.buffer_id, {key}, {key}, 'complete', "
            f"p.length, p.first_seq, p.last_seq, p.meta FROM g CROSS JOIN episodes p "
            f"WHERE p.buffer_id = {number}",
        ):
            connection.execute(text(statement), given)
        last = n_slots * N_STEPS
        if is_sqlite(url):
            connection.execute(
                text(f"UPDATE buffers SET next_seq = {last + 1} WHERE id = {number}")
            )
        else:
            connection.execute(text(f"SELECT setval('sqlbuffer_seq_{number}', {last})"))


def fill_book(buffer, n_slots):
    """Let slots show episodes, whose numbers are those of the slots."""

    def work(tx):
        change = BookChange(buffer._book, tx, range(n_slots))
        for slot in range(1, n_slots):
            change.show(slot, N_STEPS, slot)
        change.ring.next_turn = change.ring.num_episodes = n_slots
        change.store()

    buffer._core.transaction(work)


def copied_chunks(url, name, number, numbers, values):
    """Return the statement that copies the chunks of the first slot into the others."""
    first_seq = f"c.first_seq + g.s * {N_STEPS}"
    id_ = "lower(hex(randomblob(16)))" if is_sqlite(url) else "gen_random_uuid()"
    given = {**values, "first_seq": first_seq, "id": id_}
    columns = [c.name for c in whole_metadata().tables[name].c if c.name != "xid"]
    own = [given.get(column, f"c.{column}") for column in columns]
    if is_sqlite(url):
        columns, own = ["key", *columns], [f"{number} << 40 | ({first_seq})", *own]
    return (
        f"INSERT INTO {name} ({', '.join(columns)}) {numbers} SELECT {', '.join(own)} "
        f"FROM g CROSS JOIN {name} c WHERE c.buffer_id = {number}"
    )


@pytest.fixture(scope="module")
def buffer(large_url):
    buffer = memmap.ReplayBuffer.from_folder(large_url, name="slots")
    yield buffer
    buffer.close()


def whole(buffer, task):
    with buffer.one_episode(task=task):
        for t in range(8):
            buffer.store(r=t)
        buffer.flush()
        buffer.store(r=8)


def watching(buffer):
    """Return the witness of what all buffers of this process send to the database."""
    noted = "experiences|chunk|episodes|payload|replaced"
    return watched(buffer.folder, tables=TABLES, noted=noted)


def core_of(buffer):
    """Return the buffer inside. It is not closed: that would close the engine that is watched."""
    return ReplayBuffer(buffer.folder, name="slots", create=False)


def deleted(buffer):
    assert core_of(buffer).delete(QueryBuilder().eq("seq", 70_001).build()) == 1


def window(buffer, first=0, n=64):
    """Return n runs of two steps, in slots that lie apart."""
    slots = np.repeat(np.arange(n) * 7, 2)
    return slots, np.tile([first, first + 1], n)


OPERATIONS = {
    "store an episode": lambda b: b.store_episode(r=np.ones(10), task=2),
    "store step by step": lambda b: whole(b, 3),
    "store a batch": lambda b: (b.store_batch(r=np.ones(2)), b.advance_episode(2)),
    "let go": lambda b: (b.store(r=1.0), b.flush(), setattr(b, "timestep_index", 0)),
    "read a slot": lambda b: b.data["x"][500],
    "read steps": lambda b: b.data["r"][window(b)],
    "read behind the end": lambda b: b.data["r"][window(b, N_STEPS + 4)],
    "read one cell": lambda b: b.data["r"][600, 3],
    "read meta": lambda b: b.meta_data["task"][::50],
    "state of some slots": lambda b: b._state(np.arange(0, N_SLOTS, 50)),
    "count": lambda b: (len(b), b.num_episodes, b.episode_index),
    "change a slot": lambda b: b.data["r"].__setitem__((500, slice(0, 50)), 2.0),
    "change steps": lambda b: b.data["r"].__setitem__(window(b, 20), 2.0),
    "change behind the end": lambda b: b.data["r"].__setitem__(window(b, N_STEPS + 4), 2.0),
    "change a step": lambda b: b.store_datapoint(600, 3, "r", 5.0),
    "change meta": lambda b: b.store_meta_datapoint(600, "task", 5),
    "change a length": lambda b: b.update(700, episode_lens=90),
    "update an episode": lambda b: b.update(601, r=np.ones(N_STEPS), task=3),
    "open": lambda b: memmap.ReplayBuffer.from_folder(b.folder, name="slots"),
    "delete with the core": deleted,
}

# Fewer steps than SQLite tells of, or no table that is counted: documents alone.
SLIGHT = (
    "read behind the end", "read one cell", "read meta", "state of some slots", "count",
    "change behind the end", "change a step", "change meta", "change a length",
)  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_slots_do_not_scan_the_tables(buffer, operation):
    with watching(buffer) as watch:
        OPERATIONS[operation](buffer)
    patterns = [SCAN, SCAN_OF_CHUNKS] if buffer._core._store.info.has_chunks else [SCAN]
    scans = [plan for plan in watch.plans() if any(each.search(plan) for each in patterns)]
    assert not scans, "\n\n".join(scans)
    assert watch.rows_scanned == 0
    assert watch.rows_fetched < MOST_ROWS_READ
    assert watch.steps < MOST_STEPS
    assert watch.steps or watch.rows_fetched or operation in SLIGHT


def test_the_buffer_is_as_large_as_it_says(buffer):
    assert buffer.num_episodes == N_SLOTS
    assert len(buffer) > 0.9 * N_SLOTS
    assert len(core_of(buffer)) > 0.9 * N_SLOTS * N_STEPS


def test_the_witnesses_would_see_a_scan(buffer):
    core = core_of(buffer)
    with watching(buffer) as watch:
        core.size(QueryBuilder().lt("r", 0.5).build())
    assert watch.rows_scanned + watch.rows_fetched > 90_000 or watch.steps > MOST_STEPS
