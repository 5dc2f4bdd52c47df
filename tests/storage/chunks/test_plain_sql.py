"""Rows that plain SQL does not insert among chunks, and steps of chunks that it deletes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sqlbuffer import LatestSampler, PrioritizedSampler, QueryBuilder, ReplayBuffer
from tests.support.sql import buffer_id, is_sqlite, numbered, run, scalar

FIELDS = {"obs": "float32"}
VALUES = {
    "id": "'x'", "task_id": "'t1'", "agent_id": "'a1'", "step": "7", "execute_time": "1.5",
    "state": """'{"by": "hand"}'""", "extra": "'[1, 2.50]'", "reward_t": "0.1",
}  # fmt: skip
# What belongs to steps, beside the tables of chunks themselves.
OVERLAYS = ("priorities", "uses", "labels", "label_history", "quarantine", "queue_items")


def insert(url, target, **values):
    """Insert a row into a view, or the table, of a buffer that is the only one."""
    values = {**VALUES, **values}
    names = {"v_experiences": {"reward_t": "reward"}}.get(target, {})
    is_numbered, target = target == "numbered", target.replace("numbered", "experiences")
    columns = ", ".join(names.get(name, name) for name in values)
    given = ", ".join(values.values())
    if target == "v_experiences":
        columns, given = f"buffer, {columns}", f"'default', {given}"
    elif is_numbered or (target == "experiences" and is_sqlite(url)):
        own, numbers = numbered(url, str(buffer_id(url)), "4")
        columns, given = f"{own}, {columns}", f"{numbers}, {given}"
    else:
        columns, given = f"buffer_id, {columns}", f"{buffer_id(url)}, {given}"
    run(url, f"INSERT INTO {target} ({columns}) VALUES ({given})".replace(":", "\\:"))


def n_stored(url):
    """Return how many rows, chunks, values of chunks, ids and deletions are stored."""
    tables = ("experiences", "chunks", "chunk_data", "step_ids", "deleted_steps")
    return [scalar(url, f"SELECT count(*) FROM {table}") for table in tables]


def obs(n):
    return {"obs": np.arange(float(n)), "reward": np.ones(n)}


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("target", ["experiences", "new_experiences", "v_experiences", "numbered"])
@pytest.mark.parametrize("default", [None, 0.5], ids=["required", "default"])
def test_a_row_is_refused_since_it_has_no_fields(buffer_url, target, default):
    fields = {"obs": ("float32", (), default)}
    with ReplayBuffer(buffer_url, fields=fields, priorities=True) as buffer:
        buffer.extend(obs(3))
        held = n_stored(buffer_url)
        with pytest.raises(Exception, match=r"typed fields, which SQL cannot write; store its st"):
            insert(buffer_url, target)
        assert (n_stored(buffer_url), len(buffer)) == (held, 3)
        with buffer.mirror() as mirror:
            for source in (buffer, mirror):
                batch = source.sample_arrays(9, sampler=PrioritizedSampler())
                assert set(batch["obs"].tolist()) <= {0.0, 1.0, 2.0}
        assert sum(batch.n_rows for batch in buffer.loader("step", 2, epochs=1)) == 3
        assert buffer.extend(obs(1)).seqs.tolist() == [4]


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("statement", ["DELETE FROM chunks", "TRUNCATE chunks"])
@pytest.mark.parametrize("limits", [{}, {"evict_by": "task"}, {"max_episodes": 9}], ids=repr)
def test_deleted_chunks_take_all_along(buffer_url, statement, limits):
    if statement.startswith("TRUNCATE") and is_sqlite(buffer_url):
        return
    limits = limits if "max_episodes" in limits else {"max_capacity": 100, **limits}
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True, max_use=3, **limits) as buffer:
        buffer.extend({"id": list("abcde"), **obs(5)})
        buffer.store_episode(obs(4), episode_id="e")
        buffer.sample_arrays(9)
        buffer.update_priorities([1, 2, 7], 3.0)
        buffer.annotate([1, 2, 8], reward=2.0)
        buffer.quarantine([3])
        buffer.delete(query_condition=QueryBuilder().eq("exp_meta.step", 3).build())
        assert (len(buffer), n_stored(buffer_url)) == (7, [0, 2, 2, 5, 2])
        run(buffer_url, statement)
        assert (len(buffer), n_stored(buffer_url)) == (0, [0, 0, 0, 0, 0])
        assert [scalar(buffer_url, f"SELECT count(*) FROM {name}") for name in OVERLAYS] == [0] * 6
        counts = "SELECT live_rows, live_episodes FROM buffers"
        assert run(buffer_url, counts) == [(0, 0)]
        buffer.extend(obs(2))
        assert len(buffer) == 2
        assert buffer.sample_arrays(2)["obs"].shape == (2,)


def test_one_chunk_that_is_deleted_is_not_counted(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        for _ in range(3):
            buffer.extend(obs(5))
        run(buffer_url, "DELETE FROM chunks WHERE first_seq = 6")
        assert len(buffer) == 10
        assert sorted(buffer.sample_arrays(10, sampler=LatestSampler()).info["seq"].tolist()) == [
            1, 2, 3, 4, 5, 11, 12, 13, 14, 15,
        ]  # fmt: skip


def test_a_dropped_buffer_leaves_nothing(buffer_url):
    for name in ("kept", "dropped"):
        with ReplayBuffer(buffer_url, name=name, fields=FIELDS, priorities=True) as buffer:
            buffer.extend({"id": [f"{name}{i}" for i in range(300)], **obs(300)})
            buffer.delete(query_condition=QueryBuilder().eq("exp_meta.step", 3).build())
            buffer.update_priorities([1], 3.0)
    before = n_stored(buffer_url)
    ReplayBuffer.drop(buffer_url, "dropped")
    assert n_stored(buffer_url) == [n // 2 for n in before]
    assert scalar(buffer_url, "SELECT count(*) FROM priorities") == 1
    with ReplayBuffer(buffer_url, name="kept") as buffer:
        assert len(buffer) == 299


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("fields", [None, FIELDS], ids=["rows", "chunks"])
@pytest.mark.parametrize("limits", [{}, {"evict_by": "task"}, {"max_episodes": 9}], ids=repr)
def test_the_view_deletes_steps_and_what_belongs_to_them(buffer_url, fields, limits):
    limits = limits if "max_episodes" in limits else {"max_capacity": 100, **limits}
    with ReplayBuffer(buffer_url, fields=fields, priorities=True, max_use=3, **limits) as buffer:
        columns = {k: v for k, v in obs(6).items() if k != "obs" or fields}
        buffer.extend({"id": list("abcdef"), "task_id": list("ttttuu"), **columns})
        buffer.store_episode(columns, episode_id="e", task_id="v")
        buffer.sample_arrays(9)
        buffer.update_priorities([1, 2, 7], 3.0)
        buffer.annotate([1, 2, 8], reward=2.0)
        buffer.quarantine([3])
        where = "WHERE buffer = 'default' AND task_id"
        run(buffer_url, f"DELETE FROM v_experiences {where} IN ('t', 'v') AND step >= 2")
        assert [row.seq for row in buffer.get_all()] == [1, 2, 5, 6, 7, 8]
        assert len(buffer) == buffer.size() == 6
        assert scalar(buffer_url, "SELECT count(*) FROM quarantine") == 0
        run(buffer_url, f"DELETE FROM v_experiences {where} = 't'")
        run(buffer_url, f"DELETE FROM v_experiences {where} = 'none'")
        assert [row.seq for row in buffer.get_all()] == [5, 6, 7, 8]
        run(buffer_url, "DELETE FROM v_experiences")
        assert (len(buffer), n_stored(buffer_url)) == (0, [0] * 5)
        assert [scalar(buffer_url, f"SELECT count(*) FROM {name}") for name in OVERLAYS] == [0] * 6
        assert run(buffer_url, "SELECT live_rows, live_episodes FROM buffers") == [(0, 0)]
        buffer.extend({**columns, "id": list("abcdef")})
        assert buffer.sample_arrays(6, sampler=LatestSampler()).reward.tolist() == [1.0] * 6


def test_the_view_leaves_other_buffers_alone(buffer_url):
    for name, fields in (("a", FIELDS), ("b", FIELDS), ("c", None)):
        with ReplayBuffer(buffer_url, name=name, fields=fields) as buffer:
            buffer.extend({k: v for k, v in obs(5).items() if k != "obs" or fields})
    run(buffer_url, "DELETE FROM v_experiences WHERE buffer = 'a' AND step < 3")
    run(buffer_url, "DELETE FROM v_experiences WHERE buffer = 'c' AND step < 2")
    lengths = [len(ReplayBuffer(buffer_url, name=name)) for name in "abc"]
    assert lengths == [2, 5, 3]


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [None, FIELDS], ids=["rows", "chunks"])
def test_the_view_and_the_library_delete_the_same_steps_at_once(buffer_url, fields):
    with ReplayBuffer(buffer_url, fields=fields, max_capacity=5_000, evict_by="task") as buffer:
        columns = {k: v for k, v in obs(2_000).items() if k != "obs" or fields}
        columns["step"] = np.arange(2_000) // 40
        buffer.extend({"task_id": [f"t{n % 40}" for n in range(2_000)], **columns})

        def by_hand(task):
            run(buffer_url, f"DELETE FROM v_experiences WHERE task_id = 't{task}' AND step < 5")

        def by_library(task):
            of_task = QueryBuilder().eq("exp_meta.task_id", f"t{task}")
            buffer.delete(of_task.and_().lt("exp_meta.step", 9).build())

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(f, t) for t in range(8) for f in (by_hand, by_library)]:
                done.result()
        assert len(buffer) == buffer.size() == len(list(buffer)) == 2_000 - 8 * 9
        counted = "SELECT live_rows, (SELECT sum(n_rows) FROM tasks) FROM buffers"
        assert run(buffer_url, counted) == [(len(buffer), len(buffer))]
