"""No hot statement scans the table (I9): at 100,000 rows, with and without statistics.

Two witnesses for each operation. The plan of every statement it sends; and what the database did
meanwhile, which covers triggers and functions too: rows read on PostgreSQL, steps of its virtual
machine on SQLite. A scan of the table costs 100,000 of the one and 500,000 of the other. There are
fewer chunks, since each holds many steps, and their limits are lower.
"""

import re

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import (
    FifoSampler,
    LatestSampler,
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
)
from sqlbuffer.batches.forms import TrajectoryForm, TransitionForm, WindowForm
from sqlbuffer.errors import FieldError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.browsing import curves
from sqlbuffer.storage.browsing.buffers import overviews
from sqlbuffer.storage.browsing.curves import TimeSpan, episode_points, rollout_points
from sqlbuffer.storage.browsing.run_facts import open_episodes, run_facts
from sqlbuffer.storage.database import vacuum
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.inspect import buffer_stats
from sqlbuffer.storage.inspect.buffer_stats import HeldRows
from tests.support.sql import buffer_id, connected, fill, is_sqlite, numbered, run, scalar
from tests.support.stepped_rows import make_row, make_rows
from tests.support.watch import (
    STATEMENTS,
    TABLES,
    Watch,
    rows_read,
    wait_for_cleaner,
    watched,
)

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_ROWS = 100_000
ROWS_PER_TASK = 20
N_LABELLED = 20_000
MOST_ROWS_READ = 10_000
MOST_STEPS = 200_000
# Of chunks a buffer has 5,000 and more, of four or ten steps.
MOST_CHUNK_ROWS_READ = 5_500
MOST_CHUNK_STEPS = 170_000
SCAN = re.compile(
    r"Seq Scan on (experiences|episodes|priorities|quarantine|label)|"
    r"^\s*SCAN (experiences|earlier|episodes|ends|priorities|quarantine|late\b|label|[eplq]\b)",
    re.MULTILINE,
)
# A search by the buffer alone, or from a number on, is a scan of its chunks. The newest chunk
# without an episode is an exception: it is the last of an index, as the counted work shows.
SCAN_OF_CHUNKS = re.compile(
    r"Seq Scan on (chunks|chunk_data|deleted_steps)\b|"
    r"^\s*SCAN (chunk|step|of_episode|before|gone|next_gone|deleted|[bcdikxy]\b(?! VIRTUAL))|"
    r"^\s*SEARCH (chunk|step|[bcdikxy]\b)(?!.*_no_episode).*"
    r"\((buffer_id=\?|buffer_id=\? AND first_seq>\?|rowid>\?)\)",
    re.MULTILINE,
)
ONE_TASK = QueryBuilder().eq("exp_meta.task_id", "t2500").build()
ONE_TASK_LATE = QueryBuilder().nested(QueryBuilder().eq("exp_meta.task_id", "t2500")).and_().gt(
    "exp_meta.step", 50_005
).build()  # fmt: skip
TWO_TASKS = QueryBuilder().in_("exp_meta.task_id", ["t100", "t4000"]).build()
ONE_ID = QueryBuilder().eq("id", "id77777").build()
LABELLED_TASK = QueryBuilder().eq("exp_meta.task_id", "t500").and_().gte(
    "exp_data.reward_t", 0
).build()  # fmt: skip
HALF = QueryBuilder().lt("exp_data.state.mod", 50).build()
HALF_OF_STEPS = QueryBuilder().lt("exp_data.reward_t", 50).build()
RARE = QueryBuilder().gt("exp_data.state.mod", 98).build()
RARE_STEPS = QueryBuilder().gt("exp_data.reward_t", 98).build()
SOME_ARRAYS = QueryBuilder().in_("seq", list(range(25_003, 30_000, 400)))
SOME_STEPS = QueryBuilder().in_("seq", list(range(50_003, 60_000, 400)))


def fill_large(url):
    """Fill two buffers of 100,000 rows, by row and by task, a small one, and what else is asked."""
    settings = {"max_capacity": N_ROWS, "rows_per_task": ROWS_PER_TASK}
    fill(url, N_ROWS, name="rows", **settings)
    fill(url, N_ROWS, name="tasks", evict_by="task", **settings)
    fill(url, 100, name="small")
    fill(url, N_ROWS, name="weighted", priorities=True, **settings)
    number = buffer_id(url, "weighted")
    run(
        url,
        "INSERT INTO priorities (buffer_id, seq, priority) SELECT buffer_id, seq, 1.0 "
        f"FROM experiences WHERE buffer_id = {number} AND seq % 2 = 0",
    )
    with ReplayBuffer(url, name="weighted") as weighted:
        weighted._store.priorities.summarize(range(N_ROWS // weighted._store.info.block_size))
    fill_limited(url)
    fill_barred(url)
    fill_arrays(url)
    fill_episodes(url)
    fill_labelled(url)
    fill_steps(url)
    fill_log(url)


def fill_log(url):
    """Fill the buffer `logged` with 20,000 rows, and note 100,000 batches of it."""
    with fill(url, 20_000, name="logged", rows_per_task=ROWS_PER_TASK) as buffer:
        buffer.set_clock(9)
    number = buffer_id(url, "logged")
    seqs, since, numbers = (
        (
            "'[1,2,20000]'",
            "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (-s) || ' seconds')",
            "WITH RECURSIVE g(s) AS (SELECT 0 UNION ALL SELECT s + 1 FROM g WHERE s < 99999)",
        )
        if is_sqlite(url)
        else (
            "ARRAY[1,2,20000]",
            "now() - s * interval '1 second'",
            "WITH g AS (SELECT s FROM generate_series(0, 99999) s)",
        )
    )
    run(
        url,
        "INSERT INTO samples (buffer_id, clock, sampler, n_rows, seqs, sampled_at) "
        f"{numbers} SELECT {number}, 9, 'RandomSampler', 3, {seqs}, {since} FROM g",
    )


def fill_limited(url):
    """Fill the buffer `limited` with 100,000 rows, of every other task used up, and a clock."""
    limits = {"max_use": 3, "max_staleness": 5, "track_samples": True, "min_size": 1_000}
    with fill(url, N_ROWS, name="limited", rows_per_task=ROWS_PER_TASK, **limits) as buffer:
        buffer.set_clock(9)
    number = buffer_id(url, "limited")
    run(
        url,
        f"INSERT INTO uses (buffer_id, seq, n_uses) SELECT {number}, seq, 3 FROM experiences "
        f"WHERE buffer_id = {number} AND (seq - 1) / {ROWS_PER_TASK} % 2 = 1",
    )


def fill_barred(url):
    """Fill the buffer `ineligible` with 100,000 rows, a row of every fourth task in quarantine."""
    limits = {"current_session_only": True, "max_staleness": 5, "keep_expired": True}
    with fill(url, N_ROWS, name="ineligible", rows_per_task=ROWS_PER_TASK, **limits) as buffer:
        buffer.start_session("now")
        buffer.set_clock(9)
        buffer.quarantine(range(1, N_ROWS, 4 * ROWS_PER_TASK))


def fill_labelled(url):
    """Fill the buffers `labelled`, as `rows`, and `labelled arrays`, as `arrays`, and annotate
    two thirds of them.
    """
    settings = {"max_capacity": N_LABELLED, "rows_per_task": ROWS_PER_TASK}
    with (
        fill(url, N_LABELLED, name="labelled", **settings) as rows,
        fill_arrays(url, "labelled arrays") as arrays,
    ):
        seqs = [seq for seq in range(1, N_LABELLED + 1) if seq % 3]
        rows.annotate(seqs, reward=2.0, extra={"a": 1})
        arrays.annotate(seqs, reward=2.0)


def fill_arrays(url, name="arrays"):
    """Fill a buffer with 30 episodes of 1,000 steps, in chunks of four: each ends where the version
    of the model changes. Two episodes have lost three of four steps in their first half.
    """
    with ReplayBuffer(url, name=name, fields={"obs": ("float32", (4,))}) as buffer:
        versions, rewards = np.arange(1_000) // 4, np.ones(1_000)
        for episode in range(30):
            obs = np.full((1_000, 4), episode, np.float32)
            columns = {"obs": obs, "reward": rewards, "model_version": versions}
            buffer.store_episode(columns, final={"obs": obs[0]})
        lost = [1_000 * e + t for e in (0, 1) for t in range(1, 501) if t % 4]
        assert buffer.delete(QueryBuilder().in_("seq", lost)) == len(lost)
    return buffer


def fill_steps(url):
    """Fill the buffer `steps` with 100,000 typed steps in tasks of 20, each in a chunk; the first
    20,000 have ids, and 5,000 are deleted.
    """
    fields = {"obs": ("float32", (4,))}
    settings = {"priorities": True, "max_capacity": N_ROWS}
    with ReplayBuffer(url, name="steps", fields=fields, **settings) as buffer:
        for first in range(0, N_ROWS, 20_000):
            buffer.extend(steps_of_tasks(20_000, first, "" if first else "id"))
        lost = [*range(20_001, 30_000, 4), *range(20_002, 30_000, 4)]
        assert buffer.delete(QueryBuilder().in_("seq", lost)) == len(lost)
        buffer.update_priorities(np.arange(1, N_ROWS, 2), 1.0)
        buffer._store.priorities.summarize(range(N_ROWS // buffer._store.info.block_size))


def steps_of_tasks(n, first=0, prefix=""):
    """Return the columns of n steps, with ids that have a prefix."""
    numbers = np.arange(first, first + n)
    columns = {
        "obs": np.ones((n, 4), np.float32), "reward": numbers % 100.0, "agent_id": "a",
        "task_id": [f"t{i // ROWS_PER_TASK}" for i in numbers], "step": numbers + 1,
    }  # fmt: skip
    return {**columns, "id": [f"{prefix}{i}" for i in numbers]} if prefix else columns


def fill_episodes(url):
    """Fill the buffer `episodes` with 5,000 episodes of 10 steps, and 100,000 whose steps left."""
    buffer = ReplayBuffer(url, name="episodes", fields={"obs": ("float32", (1,))})
    number = buffer_id(url, "episodes")
    blob, records, rewards, id_, numbers = (
        (
            "X'00000000'",
            "zeroblob(40)",
            "'[1,1,1,1,1,1,1,1,1,1]'",
            "hex(randomblob(16))",
            "WITH RECURSIVE g(s) AS (SELECT 0 UNION ALL SELECT s + 1 FROM g WHERE s < :n)",
        )
        if is_sqlite(url)
        else (
            r"'\\x00000000'::bytea",
            "decode(repeat('00', 40), 'hex')",
            "array_fill(1.0::double precision, ARRAY[10])",
            "gen_random_uuid()",
            "WITH g AS (SELECT s FROM generate_series(0, CAST(:n AS int)) s)",
        )
    )
    columns, values = numbered(url, str(number), "1000001 + s")
    of_chunks = numbered(url, str(number), "1000001 + 10 * s")
    of_chunks = (of_chunks[0].replace("seq", "first_seq"), of_chunks[1])
    with connected(url) as connection:
        if scalar(url, f"SELECT has_chunks FROM buffers WHERE id = {number}"):
            names, own = of_chunks
            for statement in (
                f"INSERT INTO chunk_data ({names}, n_steps, task_id, agent_id, step, episode_id, "
                f"t, records, block_steps) {numbers} SELECT {own}, 10, 't', 'a', 10 * s, "
                f"1100000 + s, 0, {records}, 10 FROM g",
                f"INSERT INTO chunks ({names}, n_steps, id, task_id, agent_id, step, episode_id, "
                f"t, reward_t) {numbers} SELECT {own}, 10, {id_}, 't', 'a', 10 * s, 1100000 + s, "
                f"0, {rewards} FROM g",
            ):
                connection.execute(text(statement), {"n": 4_999})
        else:
            connection.execute(
                text(
                    f"INSERT INTO experiences ({columns}, id, task_id, agent_id, step, episode_id, "
                    f"t, reward_t, arrays) {numbers} SELECT {values}, 'r' || s, 't', 'a', "
                    f"s, 1100000 + s / 10, s % 10, 1.0, {blob} FROM g"
                ),
                {"n": 49_999},
            )
        # Last: an episode that has ended takes no step.
        connection.execute(
            text(
                "INSERT INTO episodes (id, buffer_id, key, task_id, status, length, first_seq, "
                f"last_seq) {numbers} SELECT 1000000 + s, {number}, 'e' || s, 't', 'complete', 10, "
                "s * 10 + 1, s * 10 + 10 FROM g"
            ),
            {"n": 104_999},
        )
        connection.execute(text(f"UPDATE buffers SET low_seq = 1000000 WHERE id = {number}"))
    return buffer


def tasks_stored(buffer):
    return buffer.store_batch([make_row(i, task=f"new{i // 8}") for i in range(64)])


def fields_of(buffer):
    return buffer._store.info.config.fields


def read(buffer, form, n=32, sampler=None):
    reader = buffer._store.draws.reader_of(form)
    # Few draws meet so few first steps that they look at many more numbers.
    sampler = RandomSampler(replace=True, seed=1) if sampler is None else sampler
    batch = buffer._store.draws.draw(
        EVERYTHING, lambda found: reader.draw(found, sampler, n), reader.columns
    )
    assert batch.n_rows == n


def refused(draw, **options):
    """Draw transitions of steps without an episode."""
    with pytest.raises(FieldError, match="has no episode"):
        draw(8, **options)


def drawn(n, found):
    assert len(found) == n


TASK_2 = QueryBuilder().eq("exp_meta.task_id", "t2").build()

OPERATIONS = {
    "store": ("rows", lambda b: b.store_batch(make_rows(range(64)))),
    "store one row": ("rows", lambda b: b.store(make_row(1))),
    "re-send": ("rows", lambda b: b.store_batch(make_rows(range(64), prefix="id9900"))),
    "store with episodes": ("rows", lambda b: b.store(make_row(1, episode="e"))),
    "store by task": ("tasks", tasks_stored),
    "random": ("rows", lambda b: b.sample(256)),
    "random, seeded": ("rows", lambda b: b.sample(256, sampler=RandomSampler(seed=1))),
    "random, replaced": ("rows", lambda b: b.sample(256, sampler=RandomSampler(replace=True))),
    "random, half match": ("rows", lambda b: b.sample(256, condition=HALF)),
    "random, of a task": ("rows", lambda b: b.sample(8, condition=ONE_TASK)),
    "random, by task": ("tasks", lambda b: b.sample(256)),
    "latest": ("rows", lambda b: b.sample(256, sampler=LatestSampler())),
    "latest, half match": ("rows", lambda b: b.sample(64, sampler=LatestSampler(), condition=HALF)),
    "latest, of a task": (
        "rows",
        lambda b: b.sample(8, sampler=LatestSampler(), condition=ONE_TASK),
    ),
    "fifo": ("rows", lambda b: b.sample(256, sampler=FifoSampler())),
    "fifo, of a task": ("rows", lambda b: b.sample(8, sampler=FifoSampler(), condition=ONE_TASK)),
    "tasks": ("rows", lambda b: b.sample_tasks(8, sampler=RandomTaskSample(seed=1))),
    "tasks, half match": (
        "rows",
        lambda b: b.sample_tasks(8, sampler=RandomTaskSample(seed=1), condition=HALF),
    ),
    "tasks, one matches": ("rows", lambda b: b.sample_tasks(1, condition=ONE_TASK)),
    "get a task": ("rows", lambda b: b.get_by_task_id("t2500")),
    "get 20 tasks": ("rows", lambda b: b.get_batch_by_task_ids([f"t{i}" for i in range(900, 920)])),
    "get absent tasks": ("rows", lambda b: b.get_batch_by_task_ids(["no", "none"])),
    "size of a task": ("rows", lambda b: b.size(ONE_TASK)),
    "size of an id": ("rows", lambda b: b.size(ONE_ID)),
    "all of a task": ("rows", lambda b: list(b.get_all(ONE_TASK))),
    "all of a task, late": ("rows", lambda b: list(b.get_all(ONE_TASK_LATE))),
    "all of two tasks": ("rows", lambda b: list(b.get_all(TWO_TASKS))),
    "first rows of all": ("rows", lambda b: next(b.get_all())),
    "first page": ("rows", lambda b: b.get_paginated(1, 100)),
    "first page of a task": ("rows", lambda b: b.get_paginated(1, 10, ONE_TASK)),
    "delete a task": ("rows", lambda b: b.delete(QueryBuilder().eq("exp_meta.task_id", "t4500"))),
    "capacity": ("rows", lambda b: b.max_capacity),
    "length": ("rows", len),
    "length by task": ("tasks", len),
    "arrays": ("arrays", lambda b: b.sample_arrays(256)),
    "transitions": ("arrays", lambda b: b.sample_transitions(256)),
    "transitions, 5 steps": ("arrays", lambda b: b.sample_transitions(256, n_step=5)),
    "transitions, stacked": ("arrays", lambda b: b.sample_transitions(64, stack={"obs": 4})),
    "transitions, sequences": (
        "arrays",
        lambda b: read(b, TransitionForm.of(fields_of(b), 3, sequence_fields=["obs"])),
    ),
    "windows": ("arrays", lambda b: read(b, WindowForm.of(fields_of(b), 8, 4, 2))),
    "trajectories": ("arrays", lambda b: read(b, TrajectoryForm.of(fields_of(b)), 2)),
    "trajectories, partial": (
        "arrays",
        lambda b: read(b, TrajectoryForm.of(fields_of(b), include_partial=True), 2),
    ),
    "trajectories, short": ("episodes", lambda b: read(b, TrajectoryForm.of(fields_of(b)), 16)),
    "trajectories, newest": (
        "episodes",
        lambda b: read(b, TrajectoryForm.of(fields_of(b)), 16, LatestSampler()),
    ),
    "store an episode": (
        "arrays",
        lambda b: b.store_episode({"obs": np.zeros((64, 4)), "reward": np.ones(64)}),
    ),
    "steps": ("steps", lambda b: b.sample_arrays(256)),
    "steps, half match": ("steps", lambda b: b.sample_arrays(256, condition=HALF_OF_STEPS)),
    "steps, of a task": ("steps", lambda b: b.sample_arrays(8, condition=ONE_TASK)),
    "steps, some": ("steps", lambda b: b.sample_arrays(8, condition=SOME_STEPS)),
    "steps, latest": ("steps", lambda b: b.sample_arrays(256, sampler=LatestSampler())),
    "steps, latest, half match": (
        "steps",
        lambda b: b.sample_arrays(64, sampler=LatestSampler(), condition=HALF_OF_STEPS),
    ),
    "steps, latest, of a task": (
        "steps",
        lambda b: b.sample_arrays(8, sampler=LatestSampler(), condition=ONE_TASK),
    ),
    "steps, fifo": ("steps", lambda b: b.sample_arrays(256, sampler=FifoSampler())),
    "steps, tasks": ("steps", lambda b: b.sample_tasks(8, sampler=RandomTaskSample(seed=1))),
    "steps, tasks, half match": (
        "steps",
        lambda b: b.sample_tasks(8, sampler=RandomTaskSample(seed=1), condition=HALF_OF_STEPS),
    ),
    "steps, get a task": ("steps", lambda b: b.get_by_task_id("t2500")),
    "steps, get 20 tasks": (
        "steps",
        lambda b: b.get_batch_by_task_ids([f"t{i}" for i in range(900, 920)]),
    ),
    "steps, get absent tasks": ("steps", lambda b: b.get_batch_by_task_ids(["no", "none"])),
    "steps, size of a task": ("steps", lambda b: b.size(ONE_TASK)),
    "steps, size of an id": ("steps", lambda b: b.size(QueryBuilder().eq("id", "id7777"))),
    "steps, size of some": ("steps", lambda b: b.size(SOME_STEPS)),
    "steps, all of a task, late": ("steps", lambda b: list(b.get_all(ONE_TASK_LATE))),
    "steps, all of some": ("steps", lambda b: list(b.get_all(SOME_STEPS))),
    "steps, first of all": ("steps", lambda b: next(b.get_all())),
    "steps, last of all": (
        "steps",
        lambda b: next(b.get_all(QueryBuilder().gt("seq", N_ROWS - 100))),
    ),
    "steps, first page": ("steps", lambda b: b.get_paginated(1, 100)),
    "steps, first page of a task": ("steps", lambda b: b.get_paginated(1, 10, ONE_TASK)),
    "steps, length": ("steps", len),
    "steps, update priorities": (
        "steps",
        lambda b: b.update_priorities(np.arange(30_001, 99_000, 400), 2.0),
    ),
    "steps, summarize blocks": ("steps", lambda b: b._store.priorities.summarize([3, 20, 21])),
    "steps, by priority": ("steps", lambda b: b.sample_arrays(256, sampler=PrioritizedSampler())),
    "steps, by priority, half match": (
        "steps",
        lambda b: b.sample_arrays(64, sampler=PrioritizedSampler(seed=1), condition=HALF_OF_STEPS),
    ),
    "steps, quarantine": ("steps", lambda b: b.quarantine(range(30_005, N_ROWS, 400))),
    "steps, release": ("steps", lambda b: b.release(range(30_005, N_ROWS, 400))),
    "steps, store": ("steps", lambda b: b.extend(steps_of_tasks(64))),
    "steps, store with ids": ("steps", lambda b: b.extend(steps_of_tasks(64, 0, "new"))),
    "steps, re-send": ("steps", lambda b: b.extend(steps_of_tasks(64, 9_000, "id"))),
    "arrays, delete": ("arrays", lambda b: b.delete(SOME_ARRAYS)),
    "steps, delete a task": (
        "steps",
        lambda b: b.delete(QueryBuilder().eq("exp_meta.task_id", "t4500")),
    ),
    "steps, transitions": ("steps", lambda b: refused(b.sample_transitions)),
    "steps, transitions of a task": (
        "steps",
        lambda b: refused(b.sample_transitions, condition=ONE_TASK),
    ),
    "store with priorities": (
        "weighted",
        lambda b: b.store_batch(make_rows(range(64)), priority=np.arange(64.0)),
    ),
    "update priorities": (
        "weighted",
        lambda b: b.update_priorities(np.arange(1, 99_000, 400), 2.0),
    ),
    "summarize blocks": ("weighted", lambda b: b._store.priorities.summarize([3, 100, 200, 201])),
    "by priority": ("weighted", lambda b: b.sample(256, sampler=PrioritizedSampler())),
    "by priority, half match": (
        "weighted",
        lambda b: b.sample(64, sampler=PrioritizedSampler(seed=1), condition=HALF),
    ),
    "by priority, not replaced": (
        "weighted",
        lambda b: b.sample(256, sampler=PrioritizedSampler(replace=False, normalize="buffer")),
    ),
    "by priority, strata": (
        "weighted",
        lambda b: b.sample(64, sampler=PrioritizedSampler(stratified=True)),
    ),
    "random, limited": ("limited", lambda b: drawn(256, b.sample(256))),
    "random, limited, replaced": (
        "limited",
        lambda b: drawn(256, b.sample(256, sampler=RandomSampler(replace=True))),
    ),
    "latest, limited": ("limited", lambda b: drawn(64, b.sample(64, sampler=LatestSampler()))),
    "fifo, limited": ("limited", lambda b: drawn(64, b.sample(64, sampler=FifoSampler()))),
    "of a task, limited": ("limited", lambda b: drawn(8, b.sample(8, condition=TASK_2))),
    "tasks, limited": (
        "limited",
        lambda b: drawn(8, b.sample_tasks(8, sampler=RandomTaskSample(seed=2))),
    ),
    "random, ineligible": ("ineligible", lambda b: drawn(256, b.sample(256))),
    "latest, ineligible": (
        "ineligible",
        lambda b: drawn(64, b.sample(64, sampler=LatestSampler())),
    ),
    "tasks, ineligible": (
        "ineligible",
        lambda b: drawn(8, b.sample_tasks(8, sampler=RandomTaskSample(seed=2))),
    ),
    "quarantine": ("ineligible", lambda b: b.quarantine(range(5, N_ROWS, 400))),
    "quarantine a task": ("ineligible", lambda b: b.quarantine(ONE_TASK)),
    "release": ("ineligible", lambda b: b.release(range(5, N_ROWS, 400))),
    "random, labelled": ("labelled", lambda b: b.sample(256)),
    "random, labelled, of a task": ("labelled", lambda b: b.sample(8, condition=LABELLED_TASK)),
    "latest, labelled": ("labelled", lambda b: b.sample(256, sampler=LatestSampler())),
    "tasks, labelled": ("labelled", lambda b: b.sample_tasks(8, sampler=RandomTaskSample(seed=1))),
    "get 20 tasks, labelled": (
        "labelled",
        lambda b: b.get_batch_by_task_ids([f"t{i}" for i in range(800, 820)]),
    ),
    "first rows of all, labelled": ("labelled", lambda b: next(b.get_all())),
    "last rows of all, labelled": (
        "labelled",
        lambda b: next(b.get_all(QueryBuilder().gt("seq", N_LABELLED - 100))),
    ),
    "arrays, labelled": ("labelled arrays", lambda b: b.sample_arrays(256)),
    "transitions, labelled": ("labelled arrays", lambda b: b.sample_transitions(256, n_step=5)),
    "windows, labelled": (
        "labelled arrays",
        lambda b: read(b, WindowForm.of(fields_of(b), 8, 4, 2)),
    ),
    "trajectories, labelled": (
        "labelled arrays",
        lambda b: read(b, TrajectoryForm.of(fields_of(b)), 2),
    ),
    "annotate": (
        "labelled arrays",
        lambda b: b.annotate(range(500, 756), reward=1, extra={"a": 1}),
    ),
    "store, labelled": ("labelled", lambda b: b.store_batch(make_rows(range(64)))),
    "annotate a task": ("labelled", lambda b: b.annotate(LABELLED_TASK, reward=1)),
    "random, small": ("small", lambda b: b.sample(64)),
    "tasks, small": ("small", lambda b: b.sample_tasks(1)),
}


CHANGES = re.compile(
    r"(steps, |arrays, )?(store|re-send|update|summarize|quarantine|release|annotate|delete)|"
    r".*\blimited$"  # which counts uses
)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if CHANGES.match(name)])
def test_hot_changes_do_not_scan_the_table(large_url, operation):
    assert_no_scan(large_url, operation)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if not CHANGES.match(name)])
def test_hot_reads_do_not_scan_the_table(unchanged_url, operation):
    assert_no_scan(unchanged_url, operation)


# They take less than what SQLite counts steps by.
LEAST = ("capacity", "length by task", "size of an id")


def assert_no_scan(url, operation):
    name, call = OPERATIONS[operation]
    buffer = ReplayBuffer(url, name=name)
    len(buffer)  # remembers whole blocks from here on
    with Watch(buffer._store.engine) as watch:
        call(buffer)
    patterns, most_rows, most_steps = [SCAN], MOST_ROWS_READ, MOST_STEPS
    if buffer._store.info.has_chunks:
        patterns = [SCAN, SCAN_OF_CHUNKS]
        most_rows, most_steps = MOST_CHUNK_ROWS_READ, MOST_CHUNK_STEPS
    scans = [plan for plan in watch.plans() if any(each.search(plan) for each in patterns)]
    assert not scans, "\n\n".join(scans)
    assert watch.rows_scanned == 0
    assert watch.rows_fetched < most_rows
    assert watch.steps < most_steps
    assert watch.steps or watch.rows_fetched or operation in LEAST


@pytest.mark.parametrize(
    ("name", "more"),
    [("rows", lambda: make_rows(range(64))), ("steps", lambda: steps_of_tasks(64))],
)
def test_a_remembered_rare_condition_is_not_scanned_for_again(large_url, name, more):
    """Steps that were stored since, and changed ones, are looked at alone."""
    rare = RARE_STEPS if name == "steps" else RARE
    buffer, writer = ReplayBuffer(large_url, name=name), ReplayBuffer(large_url, name=name)
    draws = [
        lambda: buffer.sample(256, condition=rare),
        lambda: buffer.sample(256, condition=rare, sampler=RandomSampler(replace=True)),
        lambda: buffer.sample(64, condition=rare, sampler=LatestSampler()),
    ]
    if name == "steps":
        draws.append(lambda: buffer.sample_arrays(256, condition=rare))
    draws[0]()
    if name == "steps":
        writer.extend(more())
    else:
        writer.store_batch(more())
    writer.annotate(range(60_001, 60_100), reward=99.0)
    writer.quarantine([60_051])
    writer.delete([60_052])
    with Watch(buffer._store.engine) as watch:
        for draw in draws:
            draw()
    patterns = [SCAN, SCAN_OF_CHUNKS] if name == "steps" else [SCAN]
    scans = [plan for plan in watch.plans() if any(each.search(plan) for each in patterns)]
    assert not scans, "\n\n".join(scans)
    assert watch.rows_scanned == 0
    assert watch.rows_fetched < len(draws) * MOST_CHUNK_ROWS_READ
    assert watch.steps < len(draws) * MOST_STEPS


def written_by(connection, number):
    """Ask how many steps were written by each of as many times as a curve has."""
    steps = curves.step_times(connection, number, TimeSpan())
    times = np.linspace(steps.written_at[0], steps.written_at[-1], 121)
    curves.written_before(connection, number, steps, times)


# What the pages of the browser ask: a part of 10,000 episodes at most, and no steps but some.
PAGES = {
    "buffers": ("rows", lambda c, _: overviews(c)),
    "buffers in small parts": ("steps", lambda c, _: overviews(c, most=2)),
    "episodes": ("episodes", lambda c, n: episode_points(c, n, TimeSpan())),
    "new episodes": ("episodes", lambda c, n: episode_points(c, n, TimeSpan(1e9))),
    "old episodes": ("episodes", lambda c, n: episode_points(c, n, TimeSpan(0, 1e9))),
    "episodes of sessions": ("episodes", lambda c, n: episode_points(c, n, TimeSpan(), "session")),
    "episodes of agents": ("episodes", lambda c, n: episode_points(c, n, TimeSpan(), "agent")),
    "facts": ("episodes", lambda c, _: run_facts(c, "episodes")),
    "open episodes": ("arrays", lambda c, n: open_episodes(c, n)),
    "rollouts": ("rows", lambda c, n: rollout_points(c, n, TimeSpan())),
    "times": ("rows", lambda c, n: curves.step_times(c, n, TimeSpan())),
    "times since": ("rows", lambda c, n: curves.step_times(c, n, TimeSpan(1e9))),
    "times, chunks": ("steps", lambda c, n: curves.step_times(c, n, TimeSpan())),
    "times since, chunks": ("steps", lambda c, n: curves.step_times(c, n, TimeSpan(1e9))),
    "written": ("rows", written_by),
    "written, chunks": ("steps", written_by),
    "counts": ("limited", lambda c, n: curves.drawn_counts(c, n)),
    "staleness": ("logged", lambda c, n: curves.drawn_staleness(c, n, TimeSpan())),
    "staleness since": ("logged", lambda c, n: curves.drawn_staleness(c, n, TimeSpan(1e9))),
    "figures": ("weighted", lambda c, n: buffer_stats.look(c, {n: HeldRows(N_ROWS)}, 60.0)),
    "figures, chunks": ("steps", lambda c, n: buffer_stats.look(c, {n: HeldRows(N_ROWS)}, 60.0)),
}
MOST_ROWS_OF_A_PAGE = 25_000
MOST_STEPS_OF_A_PAGE = 450_000
# 121 times are searched together.
MOST_STEPS_OF_PARTS = {"written, chunks": 1_300_000}


@pytest.mark.parametrize("part", PAGES)
def test_pages_do_not_scan_the_table(unchanged_url, part):
    name, look = PAGES[part]
    buffer = ReplayBuffer(unchanged_url, name=name)
    engine, noted = buffer._store.engine, f"{STATEMENTS}|episodes|samples"
    with Watch(engine, (*TABLES, "samples"), noted) as watch, snapshot(engine) as seen:
        look(seen, buffer._store.info.id)
    # The first chunks from a number on are few, which the plan does not say.
    patterns = [SCAN] if is_sqlite(unchanged_url) else [SCAN, SCAN_OF_CHUNKS]
    scans = [plan for plan in watch.plans() if any(each.search(plan) for each in patterns)]
    print(part, watch.rows_fetched, watch.steps)
    assert not scans, "\n\n".join(scans)
    assert watch.rows_scanned == 0
    assert watch.rows_fetched < MOST_ROWS_OF_A_PAGE
    assert watch.steps < MOST_STEPS_OF_PARTS.get(part, MOST_STEPS_OF_A_PAGE)


LOOKS = {
    "all": None,
    "a task": QueryBuilder().eq("task_id", "t4321"),
    "half of the steps": HALF_OF_STEPS,
    "labels": QueryBuilder().eq("extra.verdict", "good"),
}


@pytest.mark.parametrize("which", LOOKS)
def test_looks_of_mirrors_do_not_scan_the_table(large_url, which):
    with (
        ReplayBuffer(large_url, name="steps") as buffer,
        buffer.mirror(condition=LOOKS[which], refresh_s=3_600) as mirror,
    ):
        buffer.store_episode({"obs": np.zeros((200, 4)), "reward": np.arange(200)})
        buffer.annotate(range(60_000, 70_000, 1_000), reward=200, extra={"verdict": "good"})
        with Watch(buffer._store.engine) as watch:
            mirror.refresh()
            assert mirror.lag().steps == 0
    # From a number on lie the steps that are new, and no others.
    patterns = [SCAN] if is_sqlite(large_url) else [SCAN, SCAN_OF_CHUNKS]
    scans = [plan for plan in watch.plans() if any(each.search(plan) for each in patterns)]
    assert not scans, "\n\n".join(scans)
    assert watch.rows_scanned == 0
    assert watch.rows_fetched < MOST_CHUNK_ROWS_READ
    assert watch.steps < MOST_CHUNK_STEPS


def test_the_witnesses_would_see_a_scan(large_url):
    """A condition that no index serves has to read everything."""
    buffer = ReplayBuffer(large_url, name="rows")
    with Watch(buffer._store.engine) as watch:
        buffer.size(HALF)
    assert watch.rows_scanned + watch.rows_fetched > 0.9 * N_ROWS or watch.steps > MOST_STEPS


def test_the_witnesses_would_see_a_scan_of_chunks(large_url):
    buffer = ReplayBuffer(large_url, name="arrays")
    with Watch(buffer._store.engine) as watch:
        buffer.size(QueryBuilder().lt("exp_data.reward_t", 0.5))
    n_read = watch.rows_scanned + watch.rows_fetched
    assert n_read > MOST_CHUNK_ROWS_READ or watch.steps > MOST_CHUNK_STEPS
    if is_sqlite(large_url):
        assert any(SCAN_OF_CHUNKS.search(plan) for plan in watch.plans())


# Inside functions PostgreSQL may settle on a plan that knows no values: the worst case is forced.
BODIES = {
    "the rows to evict": (
        "sqlbuffer_after_insert_v1",
        r"SELECT e\.seq FROM experiences e.*?SKIP LOCKED",
        {"written.buffer_id": 0, "bound": 1, "below": 2, "n_most": 3},
        "integer, bigint, bigint, bigint",
        "{rows}, 50000, 48464, 144",
    ),
    "the ids held": (
        "sqlbuffer_reserve_seqs_v1",
        r"SELECT coalesce\(array_agg\(e\.id\).*?\) AS e",
        {"p_buffer_id": 0, "low": 1, "p_ids": 2},
        "integer, bigint, text[]",
        "{rows}, 0, ARRAY['id1', 'id2', 'id3']",
    ),
    "the rows to remove": (
        "sqlbuffer_remove_v1",
        r"DELETE FROM experiences WHERE buffer_id = p_buffer_id AND seq = ANY \(p_seqs\)",
        {"p_buffer_id": 0, "p_seqs": 1},
        "integer, bigint[]",
        "{rows}, ARRAY[1, 2, 3]",
    ),
    "the rows of a victim": (
        "sqlbuffer_evict_tasks_v1",
        r"SELECT seq FROM experiences WHERE buffer_id = p_buffer_id AND task_id = victims\[1\]",
        {"p_buffer_id": 0, r"victims[1]": 1},
        "integer, text",
        "{tasks}, 't100'",
    ),
    "the oldest rows of a lone task": (
        "sqlbuffer_oldest_v1",
        r"SELECT e.seq FROM experiences e WHERE e.buffer_id = p_buffer_id ORDER BY e.seq LIMIT p_n",
        {"p_buffer_id": 0, "p_n": 1},
        "integer, bigint",
        "{tasks}, 64",
    ),
    "the task to evict": (
        "sqlbuffer_evict_tasks_v1",
        r"SELECT task_id FROM tasks WHERE buffer_id = p_buffer_id ORDER BY last_seq LIMIT 2",
        {"p_buffer_id": 0},
        "integer",
        "{tasks}",
    ),
}


@pytest.mark.parametrize("body", BODIES)
def test_statements_inside_functions_have_plans_that_need_no_values(large_url, body):
    if is_sqlite(large_url):
        return
    function, pattern, names, types, values = BODIES[body]
    values = values.format(**{name: buffer_id(large_url, name) for name in ("rows", "tasks")})
    with connected(large_url) as connection:
        source, settings = connection.execute(
            text("SELECT prosrc, proconfig FROM pg_proc WHERE proname = :f"), {"f": function}
        ).one()
        for setting in settings:
            if not setting.startswith(("search_path", "plan_cache_mode")):
                connection.exec_driver_sql(f"SET {setting}")
        statement = re.sub(r"\s+INTO held, gone\s+", " ", source)
        statement = re.search(pattern, statement, re.DOTALL)[0]
        for name, position in names.items():
            statement = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", f"${position + 1}", statement)
        for mode in ("force_generic_plan", "force_custom_plan"):
            connection.exec_driver_sql(f"SET plan_cache_mode = {mode}")
            connection.exec_driver_sql(f"PREPARE hot ({types}) AS {statement}")
            plan = connection.exec_driver_sql(f"EXPLAIN EXECUTE hot ({values})").scalars().all()
            assert not [line for line in plan if "Seq Scan" in line or "->  Sort" in line], plan
            assert any("Index" in line for line in plan)
            connection.exec_driver_sql("DEALLOCATE hot")


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize(
    "call",
    [
        "sqlbuffer_update_priorities_v1({}, ARRAY[50, 60000, 99001], ARRAY[1.0, 2.0, 3.0])",
        "sqlbuffer_summarize_v1({}, ARRAY[5, 200], 99000, 100000)",
        "sqlbuffer_remove_v1({}, ARRAY[90001, 90002])",
    ],
    ids=["update", "summarize", "remove"],
)
def test_functions_of_priorities_have_plans_that_need_no_values(large_url, call, mode):
    if is_sqlite(large_url):
        return
    number = buffer_id(large_url, "weighted")
    with connected(large_url) as connection:
        connection.exec_driver_sql(f"SET plan_cache_mode = {mode}")
        before = rows_read(connection)
        connection.exec_driver_sql(f"SELECT {call.format(number)}")
        scanned, fetched = rows_read(connection)
        assert scanned == before[0]
        assert 0 < fetched - before[1] < MOST_ROWS_READ
        connection.rollback()


def test_a_session_that_began_on_an_empty_table_goes_on_looking_ids_up(
    make_database_url, monkeypatch
):
    """Functions keep their plans, and no plan for an empty table is a bad one."""
    monkeypatch.setattr(vacuum, "ROWS_BETWEEN_LOOKS", 10**9)  # an ANALYZE would have it plan again
    monkeypatch.setattr(vacuum, "SECONDS_BETWEEN_LOOKS", 1e9)
    url = make_database_url("postgresql", schema=True)
    run(url, "ALTER TABLE experiences SET (autovacuum_enabled = false)")
    with ReplayBuffer(url) as buffer:
        for first in range(0, 3_200, 64):
            buffer.store_batch(make_rows(range(first, first + 64)))
        with Watch(buffer._store.engine) as watch:
            assert buffer.store_batch(make_rows(range(64), prefix="new")).inserted == 64
        assert watch.rows_fetched + watch.rows_scanned < 1_000


@pytest.mark.parametrize("rows_between_looks", [1, 10**9], ids=["analyzed", "no statistics"])
def test_few_chunks_are_looked_up_by_their_numbers(
    make_database_url, monkeypatch, rows_between_looks
):
    """Any index that begins with the buffer seems as good for them, and may return all of them."""
    monkeypatch.setattr(vacuum, "ROWS_BETWEEN_LOOKS", rows_between_looks)
    monkeypatch.setattr(vacuum, "SECONDS_BETWEEN_LOOKS", 1e9)
    url = make_database_url("postgresql", schema=True)
    for table in ("chunks", "chunk_data"):
        run(url, f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    numbers = QueryBuilder().in_("seq", list(range(1, 600, 10))).build()
    reads = [
        lambda buffer: buffer.sample(64),
        lambda buffer: buffer.sample_arrays(64),
        lambda buffer: list(buffer.get_all(numbers)),
        lambda buffer: buffer.update_priorities(list(range(1, 65)), 2.0),
    ]
    with ReplayBuffer(url, fields={"obs": "float32"}, priorities=True) as buffer:
        for n_chunks in (100, 200, 300, 600):
            n_new = n_chunks - scalar(url, "SELECT count(*) FROM chunks")
            tasks = [f"t{i}" for i in range(n_new)]
            buffer.extend({"obs": np.zeros(40 * n_new, np.float32)}, task_id=np.repeat(tasks, 40))
            wait_for_cleaner(buffer)
            for read in reads:
                with Watch(buffer._store.engine) as watch:
                    read(buffer)
                assert watch.rows_fetched < 3_000, n_chunks
                # A few pages are scanned as fast as they are searched.
                assert n_chunks <= 200 or watch.rows_scanned < 3_000, n_chunks


# Reads of steps with late facts are linear: four times the steps cost about four times as much.


FEW, MANY = 1_000, 4_000
# A quadratic read does 16 times the work, and a linear one does 4 times.
MOST_GROWTH = 8
COUNTED = (*TABLES, "quarantine", "uses")
WHOLE = QueryBuilder().gte("reward", 0.5)
OVERLAYS = {
    "labels": lambda buffer, seqs: buffer.annotate(seqs, reward=2.0, adv_t=1.0, extra={"a": 1}),
    "quarantine": lambda buffer, seqs: buffer.quarantine(seqs[: len(seqs) // 2]),
    "deletions": lambda buffer, seqs: buffer.delete(QueryBuilder().in_("seq", seqs[::2])),
    "priorities": lambda buffer, seqs: buffer.update_priorities(seqs, 2.0),
    "given ids": lambda buffer, seqs: None,
}
READS = {
    "get_all": lambda buffer: sum(1 for _ in buffer.get_all()),
    "get_all, condition": lambda buffer: sum(1 for _ in buffer.get_all(WHOLE)),
    "get_by_task_id": lambda buffer: len(buffer.get_by_task_id("t")),
    "sample_tasks": lambda buffer: sum(map(len, buffer.sample_tasks(1))),
    "size": lambda buffer: buffer.size(WHOLE),
    "delete": lambda buffer: buffer.delete(WHOLE),
}
FORMS = {"rows": None, "typed steps": {"obs": ("float32", (2,))}}


def work_of(reads, url, name, fields, overlay, n):
    """Return the number of steps or rows that the database visits for each read of n steps."""
    columns = {"task_id": "t", "agent_id": "a", "reward": np.ones(n), "step": np.arange(n)}
    if overlay == "given ids":
        columns["id"] = [f"step-{i}" for i in range(n)]
    columns |= {"obs": np.ones((n, 2))} if fields else {"state": [{"x": i} for i in range(n)]}
    work = {}
    with ReplayBuffer(url, name, fields=fields, priorities=True) as buffer:
        buffer.extend(columns)
        seqs = list(range(1, n + 1))
        OVERLAYS[overlay](buffer, seqs)
        n_left = len(buffer)
        for read, call in reads.items():
            with watched(url, tables=COUNTED, noted=None) as watch:
                n_read = call(buffer)
            # A task with a step in quarantine is not sampled.
            assert n_read == (0 if (read, overlay) == ("sample_tasks", "quarantine") else n_left)
            work[read] = watch.steps + watch.rows_fetched + watch.rows_scanned
    return work


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_reads_of_overlaid_steps_are_linear(schema_url, overlay, form):
    few = work_of(READS, schema_url, f"{FEW}", FORMS[form], overlay, FEW)
    # The database knows the first buffer, and believes that the second has no rows.
    with engine_for(resolve_url(schema_url)).connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()
    many = work_of(READS, schema_url, f"{MANY}", FORMS[form], overlay, MANY)
    growth = {read: many[read] / max(few[read], FEW) for read in READS}
    assert {read: g for read, g in growth.items() if g > MOST_GROWTH} == {}
