"""The roles that `sqlbuffer db roles` makes, used by logins that are no superusers."""

from contextlib import closing

import numpy as np
import psycopg
import pytest
from psycopg import sql

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.compat import memmap
from sqlbuffer.compat.minestudio import ReplayBufferInterface
from sqlbuffer.errors import InsufficientDataError, StorageReadOnlyError
from sqlbuffer.interchange import export_parquet, import_parquet
from sqlbuffer.storage import use_counts
from sqlbuffer.storage.changes import Follower
from sqlbuffer.storage.schema.metadata import roles_script
from sqlbuffer.storage.use_counts import CLEANED_AT_ONCE
from tests.cli.conftest import execute_script
from tests.compat.minestudio.fragments import send
from tests.support.array_rows import make_array_row
from tests.support.fragments import make_fragment, parts_of
from tests.support.passed_time import let_pass
from tests.support.rows import TASK_0
from tests.support.sql import run
from tests.support.typed_buffer import both_layouts


def refused(url, statement):
    with (
        psycopg.connect(url) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


@both_layouts
@pytest.mark.parametrize("evict_by", ["row", "task"])
@pytest.mark.parametrize("group", ["sqlbuffer_writer", "sqlbuffer_learner"])
def test_writers_and_learners_create_buffers_store_and_sample(
    with_roles, login, make_buffer, group, evict_by
):
    url = login(group)
    with make_buffer(url, name="newer", max_capacity=5, evict_by=evict_by) as buffer:
        rows = [make_array_row(step=step, episode_id="e", session_id="s") for step in range(8)]
        assert buffer.store_batch(rows).inserted == 8
        assert buffer.store(rows[-1]).duplicates == 1
        assert len(buffer) == 5
        assert len(buffer.sample(3)) == 3
        assert len(buffer.sample_tasks(1)[0]) == 5
        assert len(list(buffer.get_all())) == buffer.size(TASK_0) == 5
        assert buffer.max_capacity == 5
        if buffer.fields:
            return
    with psycopg.connect(url) as connection:
        insert = (
            "INSERT INTO {} (buffer_id, task_id, agent_id, step) "
            "SELECT id, 'typed', 'a', 1 FROM buffers WHERE name = 'newer' "
        )
        for table in ("experiences", "new_experiences"):
            connection.execute(sql.SQL(insert).format(sql.Identifier(table)))
        connection.execute(
            "INSERT INTO v_experiences (buffer, task_id, agent_id, step) "
            "VALUES ('newer', 'typed', 'a', 1)"
        )
    assert ReplayBuffer.list(url) == ["newer", "older"]


@both_layouts
def test_all_roles_use_shared_messages(with_roles, login, make_buffer):
    said = [["system", "one"], ["system", "one", "two"], ["system", "three"]]
    with make_buffer(login("sqlbuffer_writer"), "chats", shared_messages=True) as buffer:
        for step, messages in enumerate(said):
            buffer.add(messages=messages, task_id="t", step=step)
    with ReplayBuffer(login("sqlbuffer_learner"), "chats") as buffer:
        assert [row.exp_data.messages for row in buffer] == said
        assert buffer.delete([1]) == 1
    url = login("sqlbuffer_analyst")
    with ReplayBuffer(url, "chats") as buffer:
        assert [row.exp_data.messages for row in buffer] == said[1:]
    shown = run(url, "SELECT messages FROM v_experiences WHERE buffer = 'chats' ORDER BY seq")
    assert [messages for (messages,) in shown] == said[1:]
    refused(url, "SELECT sqlbuffer_erase_messages_v1(1)")
    refused(login("sqlbuffer_writer"), "DELETE FROM messages")


@pytest.mark.parametrize("group", ["sqlbuffer_writer", "sqlbuffer_learner"])
def test_writers_and_learners_reserve_numbers(with_roles, login, group):
    with psycopg.connect(login(group)) as connection:
        assert connection.execute("SELECT sqlbuffer_reserve_v1(1, 3)").fetchone() == (5,)


@pytest.mark.parametrize(
    "change",
    [
        lambda buffer: buffer.delete(TASK_0),
        lambda buffer: buffer.clear(),
        lambda buffer: buffer.resize(2),
        lambda buffer: ReplayBuffer.drop(buffer._store.url, "older"),
    ],
    ids=["delete", "clear", "resize", "drop"],
)
def test_writers_destroy_nothing(with_roles, login, change):
    with ReplayBuffer(login("sqlbuffer_writer"), name="older") as buffer:
        with pytest.raises(StorageReadOnlyError):
            change(buffer)
        assert len(buffer) == 4


@both_layouts
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_writers_let_steps_leave_by_age_and_nothing_else(with_roles, login, make_buffer, evict_by):
    url = login("sqlbuffer_writer")
    with make_buffer(url, "aged", max_age="1h", evict_by=evict_by) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(5)])
        refused(url, "UPDATE buffers SET low_seq = 9")
        refused(url, "UPDATE buffers SET max_age_s = 1")
        let_pass(with_roles, 3_610)
        assert buffer.expire().aged == 5
        assert len(buffer) == 0
        let_pass(with_roles, 20)
        buffer._store.sweep.due_at = 0.0
        buffer.store_batch([make_array_row(step=5)])
        assert run(login("sqlbuffer_analyst"), "SELECT reason, steps FROM v_evictions") == [
            ("age", 5)
        ]
    with ReplayBuffer(login("sqlbuffer_analyst"), "aged") as buffer:
        assert buffer.max_age == 3_600
        with pytest.raises(StorageReadOnlyError):
            buffer.expire()
    with ReplayBuffer(login("sqlbuffer_learner"), "aged") as buffer:
        buffer.resize(max_age="2h", max_bytes="1 GB")
        assert buffer.delete(older_than="2h") == 0


def test_learners_add_fields_and_writers_learn_of_them(with_roles, login):
    weight = ("float32", (), 1.0)
    with ReplayBuffer(login("sqlbuffer_writer"), "grown", fields={"x": "int8"}) as writer:
        writer.extend({"x": [1, 2]})
        with pytest.raises(StorageReadOnlyError, match="sqlbuffer_learner"):
            writer.add_field("weight", weight)
        with ReplayBuffer(login("sqlbuffer_learner"), "grown") as learner:
            assert learner.add_field("weight", weight)
        writer.extend({"x": [3]})
        assert len(writer) == 3
        assert not writer.add_field("weight", weight)
        writer.extend({"x": [4], "weight": [2.0]})
        assert [float(row.fields["weight"]) for row in writer] == [1.0, 1.0, 1.0, 2.0]


@both_layouts
def test_learners_lease_and_writers_may_not(with_roles, login, make_buffer):
    options = {"leases": True, "max_use": 1, "max_capacity": 6, "track_samples": True}
    with make_buffer(login("sqlbuffer_writer"), name="leased", **options) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(8)])
        with pytest.raises(StorageReadOnlyError), buffer.lease(1, timeout_s=0):
            pass
        with pytest.raises(StorageReadOnlyError):
            buffer.checkpoint("start", consumer="a")
    with ReplayBuffer(login("sqlbuffer_learner"), name="leased") as buffer:
        with buffer.lease(2) as batch:
            batch.renew()
        assert len(buffer) == 4
        buffer.checkpoint("start", consumer="a")
        with buffer.lease(2, consumer="a"):
            pass
        assert buffer.restore("start", consumer="a").n_freed == 2
        buffer.checkpoint("one", consumer="a", keep=1)
        assert buffer.delete_checkpoints("a") == 1
        with pytest.raises(KeyError), buffer.lease(1, group_by="task_id", timeout_s=0):
            raise KeyError
        late = {"min_group_size": 9, "group_timeout_s": 1e-6, "on_partial": "drop"}
        with (
            pytest.raises(InsufficientDataError),
            buffer.lease(9, group_by="task_id", timeout_s=0, **late),
        ):
            pass
        assert len(buffer) == 0


@both_layouts
@pytest.mark.parametrize("group", ["sqlbuffer_writer", "sqlbuffer_learner"])
def test_writers_and_learners_put_and_take_work(with_roles, login, make_buffer, group):
    settings = {"max_episodes": 9, "evict_by": "episode"}
    with make_buffer(login(group), name="worked", **settings) as buffer:
        step = {"number": 1} if buffer.fields else {"state": 1}
        assert buffer.work.put(["t"], group_size=4, max_attempts=2) == 4
        items = buffer.work.take(9, lease_s=0.001, max_ahead=3)
        for item in items:
            item.episode().append(**step)
        buffer.flush()
        again = buffer.work.take(3, max_ahead=3, timeout_s=30)
        assert [item.attempt for item in again] == [2, 2, 2]
        again[0].heartbeat()
        with again[0].episode() as episode:
            episode.append(**step)
        again[1].episode().append(**step)
        again[1].fail(retry=False)
        again[2].fail()
        assert buffer.work.put(["t"], retry_failed=True) == 2
        assert len(buffer.work.take(9, max_ahead=9)) == 3
    with psycopg.connect(login("sqlbuffer_analyst")) as connection:
        query = "SELECT status, count(*) FROM v_work GROUP BY status ORDER BY status"
        assert connection.execute(query).fetchall() == [("done", 1), ("taken", 3)]
    with ReplayBuffer(login("sqlbuffer_analyst"), name="worked") as buffer:
        for call in (lambda: buffer.work.put(["u"]), lambda: buffer.work.put(["t"])):
            with pytest.raises(StorageReadOnlyError):
                call()


LIMITS = {"max_use": 2, "track_samples": True, "max_staleness": 3}


@both_layouts
def test_learners_count_and_note_what_they_sample_and_set_the_clock(with_roles, login, make_buffer):
    url = login("sqlbuffer_learner")
    with make_buffer(url, name="newer", max_capacity=9_000, **LIMITS) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(4)])
        buffer.set_clock(3)
        assert len(buffer.sample(3)) == 3
        assert len(buffer.sample_tasks(1)[0]) == 4
        use_counts.give_back(buffer._store.uses, [(1,)])
        buffer._store.uses.housekeeping.cleaned_to = -2 * CLEANED_AT_ONCE
        assert len(buffer.sample(1)) == 1
    with psycopg.connect(login("sqlbuffer_analyst")) as connection:
        found = connection.execute("SELECT DISTINCT clock, buffer FROM v_samples").fetchall()
        assert found == [(3, "newer")]


def test_a_writer_that_samples_what_is_counted_is_told_who_may(with_roles, login):
    with ReplayBuffer(login("sqlbuffer_writer"), name="newer", **LIMITS) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(4)])
        expected = r"sampling from buffer 'newer' writes \(max_use\).*ask the owner for a role"
        for call in (lambda: buffer.sample(2), lambda: buffer.sample_tasks(1)):
            with pytest.raises(StorageReadOnlyError, match=expected):
                call()
        with pytest.raises(StorageReadOnlyError):
            buffer.set_clock(1)


@pytest.mark.parametrize("fields", [None, {"obs": "float32"}], ids=["rows", "chunks"])
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_learners_delete_clear_and_resize(with_roles, login, evict_by, fields):
    url = login("sqlbuffer_learner")
    settings = {"max_capacity": 8, "evict_by": evict_by, "fields": fields}
    with ReplayBuffer(url, name="newer", **settings) as buffer:
        values = {name: np.zeros(8, np.float32) for name in fields or ()}
        values["reward"] = np.ones(8)
        buffer.extend({**values, "task_id": [f"task_{n % 4}" for n in range(8)]})
        assert buffer.delete(TASK_0) == 2
        with psycopg.connect(url) as connection:
            connection.execute(
                "DELETE FROM v_experiences WHERE buffer = 'newer' AND task_id = 'task_1'"
            )
        assert len(buffer) == 4
        buffer.resize(2)
        assert len(buffer) == 2
        assert buffer.clear() == 2


@pytest.mark.parametrize("fields", [None, {"obs": "float32"}], ids=["rows", "chunks"])
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_a_writer_that_deletes_clears_or_resizes_is_told_which_role_may(
    with_roles, login, evict_by, fields
):
    url = login("sqlbuffer_writer")
    settings = {"max_capacity": 8, "evict_by": evict_by, "fields": fields}
    with ReplayBuffer(url, name="newer", **settings) as buffer:
        values = {name: np.zeros(8, np.float32) for name in fields or ()}
        values["reward"] = np.ones(8)
        buffer.extend({**values, "task_id": [f"task_{n % 4}" for n in range(8)]})
        for call in (
            lambda: buffer.delete(TASK_0),
            buffer.clear,
            lambda: buffer.resize(2),
            lambda: buffer.resize(20),
        ):
            with pytest.raises(StorageReadOnlyError, match="sqlbuffer_learner also deletes, clear"):
                call()
        assert len(buffer) == 8


@pytest.mark.parametrize("role", ["sqlbuffer_writer", "sqlbuffer_learner"])
def test_writers_and_learners_write_episodes_that_leave_whole(with_roles, login, role):
    url = login(role)
    with ReplayBuffer(url, name="newer", max_episodes=2) as buffer:
        for i in range(3):
            with buffer.episode(episode_id=f"e{i}", seed=i) as episode:
                episode.append(state=i, reward=1.0)
                buffer.flush()
                episode.append(state=i, reward=1.0)
        assert len(buffer) == 4
    with psycopg.connect(url) as connection:
        listed = connection.execute("SELECT status, length FROM v_episodes WHERE buffer = 'newer'")
        assert listed.fetchall() == [("complete", 2)] * 3


def test_learners_resize_and_clear_buffers_of_episodes(with_roles, login):
    with ReplayBuffer(login("sqlbuffer_learner"), name="newer", max_episodes=2) as buffer:
        for _ in range(2):
            with buffer.episode() as episode:
                episode.append(state=1)
        buffer.resize(max_episodes=1)
        assert buffer.clear() == 1


@both_layouts
def test_learners_update_priorities_and_writers_do_not(with_roles, login, make_buffer):
    settings = {"name": "newer", "priorities": True, "max_capacity": 600}
    with make_buffer(login("sqlbuffer_writer"), **settings) as writer:
        writer.store_batch([make_array_row(step=step) for step in range(600)], priority=3.0)
        with pytest.raises(StorageReadOnlyError):
            writer.update_priorities([1], 2.0)
        assert writer._store.priorities.summarize([0, 1]) == 0
        with ReplayBuffer(login("sqlbuffer_learner"), name="newer") as learner:
            assert learner.update_priorities([1, 300], 4.0, eps=0).updated == 2
            assert learner._store.priorities.summarize([0, 1]) == 2
            assert learner.delete(QueryBuilder().eq("seq", 300).build()) == 1
        writer.add(state=1)
    with psycopg.connect(login("sqlbuffer_analyst")) as connection:
        found = connection.execute(
            "SELECT priority, count(*) FROM v_priorities GROUP BY 1"
        ).fetchall()
        assert dict(found) == {3.0: 598, 4.0: 1}
        assert connection.execute("SELECT block FROM priority_blocks").fetchall() == [(0,)]


def test_learners_annotate_and_writers_do_not(with_roles, login):
    with ReplayBuffer(login("sqlbuffer_writer"), name="newer", max_capacity=4) as writer:
        with writer.episode(episode_id="e") as episode:
            episode.append(state=1, reward=1.0)
            episode.end(reward=0.5)
        with pytest.raises(StorageReadOnlyError):
            writer.annotate([1], reward=2.0)
        with ReplayBuffer(login("sqlbuffer_learner"), name="newer") as learner:
            for _ in range(2):
                assert learner.annotate([1], reward=2.0, extra={"judge": "a"}) == 1
            assert learner.annotate(TASK_0, reward=2.0) == 0
        with pytest.raises(StorageReadOnlyError):
            writer.annotate([1], reward=3.0)
        assert writer.sample(1)[0].exp_data.reward_t == 2.0
        writer.store_batch([make_array_row(step=step) for step in range(4)])  # evicts the labelled
    with psycopg.connect(login("sqlbuffer_analyst")) as connection:
        shown = connection.execute("SELECT episode_return, reward FROM v_episodes").fetchall()
        assert shown == [(2.0, 0.5)]
        assert connection.execute("SELECT count(*) FROM v_labels").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM labels").fetchone() == (0,)


def test_learners_log_and_follow_changes_and_writers_trim_them(with_roles, login):
    url = login("sqlbuffer_writer")
    with (
        ReplayBuffer(url, name="newer", max_capacity=2, evict_by="task") as writer,
        ReplayBuffer(login("sqlbuffer_learner"), name="newer") as learner,
    ):
        follower = Follower(learner._store)
        follower.register()
        assert follower.renew()
        with pytest.raises(StorageReadOnlyError):
            Follower(writer._store).register()
        for task in range(2):
            writer.store_batch([make_array_row(task=task, step=step) for step in range(2)])
        learner.annotate([3], reward=2.0)
        learner.quarantine([3])
        assert learner.delete(QueryBuilder().eq("seq", 4)) == 1
        follower.leave()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT sqlbuffer_trim_changes_v1()").fetchone() == (0,)
    with psycopg.connect(login("sqlbuffer_analyst")) as connection:
        found = connection.execute("SELECT kind, seqs FROM change_log ORDER BY id").fetchall()
        assert found == [
            ("deleted", [1, 2]), ("labelled", [3]), ("quarantined", [3]), ("deleted", [4]),
        ]  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM change_log",
        "INSERT INTO change_log (buffer_id, kind) VALUES (1, 'deleted')",
        "INSERT INTO followers (buffer_id, follower_id, live_until) "
        "VALUES (1, gen_random_uuid(), now())",
        "UPDATE buffers SET has_followers = true",
    ],
)
def test_writers_touch_neither_the_log_nor_its_followers(with_roles, login, statement):
    refused(login("sqlbuffer_writer"), statement)


@pytest.mark.parametrize("role", ["sqlbuffer_writer", "sqlbuffer_learner"])
def test_writers_and_learners_store_fragments_in_parts(with_roles, login, role):
    with ReplayBuffer(login(role), name="parts", max_capacity=1) as buffer:
        for n in range(2):
            assert buffer.store(make_fragment(n)).inserted == 1
        assert list(buffer) == [make_fragment(1)]
    assert len(parts_of(with_roles)) == 1
    with ReplayBuffer(login("sqlbuffer_analyst"), name="parts") as buffer:
        assert buffer.sample(1) == [make_fragment(1)]


def test_learners_drop_no_buffer(with_roles, login):
    with pytest.raises(StorageReadOnlyError):
        ReplayBuffer.drop(login("sqlbuffer_learner"), "older")


def test_analysts_read_tables_and_views_with_sql_and_in_python(with_roles, login, run):
    url = login("sqlbuffer_analyst")
    with psycopg.connect(url) as connection:
        for view in ("v_experiences", "experiences", "new_experiences"):
            count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(view))
            assert connection.execute(count).fetchone() == (4,)
        for view in ("v_tasks", "v_agents", "v_groups", "v_buffers", "labels"):
            connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(view)))
    with ReplayBuffer(url, name="older", create=False) as buffer:
        assert len(buffer) == len(buffer.sample(10)) == 4
    assert run("info", url).exit_code == 0


def test_an_analyst_whose_transactions_only_read_counts_and_streams(with_roles, login):
    url = login("sqlbuffer_analyst")
    with psycopg.connect(url) as connection:
        connection.execute("ALTER ROLE CURRENT_USER SET default_transaction_read_only = on")
    with ReplayBuffer(with_roles, name="older") as writer, psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("INSERT INTO buffers (name) VALUES ('mine')")
        connection.rollback()
        with ReplayBuffer(url, name="older", create=False) as buffer:
            assert len(buffer) == buffer.size() == len(list(buffer)) == 4
            # The reader takes the writers' lock for a moment, which takes no right to write.
            writer.store(make_array_row(step=9))
            assert len(buffer) == len(list(buffer)) == 5


@pytest.mark.thorough
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO experiences (buffer_id, task_id, agent_id, step) VALUES (1, 't', 'a', 1)",
        "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) VALUES (1, 't', 'a', 1)",
        "INSERT INTO v_experiences (buffer, task_id, agent_id, step) VALUES ('older', 't', 'a', 1)",
        "INSERT INTO buffers (name) VALUES ('mine')",
        "UPDATE experiences SET reward_t = 1",
        "UPDATE buffers SET max_capacity = 1",
        "DELETE FROM experiences",
        "DELETE FROM v_experiences",
        "TRUNCATE experiences",
        "DROP VIEW v_tasks",
        "SELECT sqlbuffer_reserve_v1(1, 1)",
        "SELECT sqlbuffer_reserve_seqs_v1(1, ARRAY['x'])",
        "SELECT sqlbuffer_remove_v1(1, ARRAY[1])",
        "SELECT nextval('sqlbuffer_seq_1')",
        "SELECT nextval('buffers_id_seq')",
    ],
)
def test_analysts_change_nothing(with_roles, login, statement):
    refused(login("sqlbuffer_analyst"), statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE experiences SET reward_t = 1",
        "UPDATE buffers SET max_capacity = 1",
        "DELETE FROM experiences",
        "DELETE FROM v_experiences",
        "SELECT sqlbuffer_remove_v1(1, ARRAY[1])",
        "SELECT sqlbuffer_evict_tasks_v1(1)",
        "SELECT sqlbuffer_update_priorities_v1(1, '{1}', '{1}')",
        "SELECT sqlbuffer_summarize_v1(1, '{1}', 1, 1)",
        "UPDATE priorities SET priority = 1",
        "SELECT setval('sqlbuffer_seq_1', 1)",
        "SELECT nextval('sqlbuffer_seq_1')",
        "DROP SEQUENCE sqlbuffer_seq_1",
    ],
)
def test_writers_change_nothing_that_is_stored(with_roles, login, statement):
    refused(login("sqlbuffer_writer"), statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE experiences SET reward_t = 1",
        "UPDATE buffers SET name = 'x'",
        "DELETE FROM buffers",
        "SELECT setval('sqlbuffer_seq_1', 1)",
        "SELECT nextval('sqlbuffer_seq_1')",
    ],
)
def test_learners_rewrite_no_row_and_no_name(with_roles, login, statement):
    refused(login("sqlbuffer_learner"), statement)


def test_a_login_without_a_role_reads_nothing(with_roles, login):
    refused(login(), "SELECT * FROM v_tasks")


def test_the_script_says_what_is_missing_where_there_is_no_schema(postgres_url):
    with pytest.raises(psycopg.errors.RaiseException, match="sqlbuffer db init"):
        execute_script(postgres_url)


def test_the_command_prints_the_script(run):
    assert run("db", "roles").output == roles_script()


MEMMAP = {
    "name": "slots", "max_episodes": 2, "max_timesteps": 3, "circular": True,
    "fields": {"r": "float"}, "meta_fields": {"task": "int"},
}  # fmt: skip


def test_learners_use_slots_and_what_they_show_again(with_roles, login):
    url = login("sqlbuffer_learner")
    with closing(memmap.ReplayBuffer(url, **MEMMAP)) as buffer:
        for number in range(3):
            with buffer.one_episode(task=number):
                buffer.store(r=number)
                buffer.flush()
                buffer.store(r=number)
        buffer.store_episode(r=[7.0], task=7)
        buffer.data["r"][:, :] = 9.0
        buffer.meta_data["task"][0] = 5
        assert buffer.episode_lens[:].tolist() == [2, 1]
        assert buffer.data["r"][:].tolist() == [[9.0] * 3] * 2
    with closing(memmap.ReplayBuffer(url, **MEMMAP, overwrite=False)) as buffer:
        buffer.store(r=1.0)
        buffer.flush()
        buffer.timestep_index = 0
        buffer.clear()
        buffer.store_batch(r=[1.0, 2.0])
        buffer.advance_episode(2)
    with ReplayBuffer(url, name="slots", create=False) as core:
        assert core.delete(QueryBuilder().eq("r", 1).build()) == 1
    with psycopg.connect(login("sqlbuffer_analyst")) as connection:
        steps = "SELECT count(*) FROM v_experiences WHERE buffer = 'slots'"
        assert connection.execute(steps).fetchall() == [(1,)]


@pytest.mark.parametrize("role", ["sqlbuffer_writer", "sqlbuffer_analyst"])
def test_others_read_slots_and_change_nothing(with_roles, login, role):
    with closing(memmap.ReplayBuffer(login("sqlbuffer_learner"), **MEMMAP)) as buffer:
        buffer.store_episode(r=[1.0, 2.0], task=3)
    url = login(role)
    for opened in (
        lambda: memmap.ReplayBuffer(url, **MEMMAP),
        lambda: memmap.ReplayBuffer.from_folder(url, name="slots"),
        lambda: memmap.ReplayBuffer(url, **{**MEMMAP, "name": "new"}),
    ):
        with pytest.raises(StorageReadOnlyError, match=r"sqlbuffer_learner.*read_only=True"):
            opened()
    # What a writer began to make, whoever may goes on with.
    memmap.ReplayBuffer(login("sqlbuffer_learner"), **{**MEMMAP, "name": "new"}).close()
    with closing(memmap.ReplayBuffer.from_folder(url, read_only=True, name="slots")) as buffer:
        assert buffer.data["r"][0].tolist() == [1.0, 2.0, 0.0]
        assert (buffer.num_episodes, len(buffer)) == (1, 1)
        assert buffer.meta_data["task"][0] == 3
    with ReplayBuffer(url, name="slots", create=False) as core:
        assert len(core.sample_arrays(4).r) == 4
        with pytest.raises(StorageReadOnlyError):
            core.delete(QueryBuilder().eq("r", 1).build())


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM payload_changes",
        "INSERT INTO replaced_steps (buffer_id, seq, record) VALUES (1, 1, 'x')",
        "SELECT sqlbuffer_replace_v1(1, '{1}', '{x}', '{null}', '{1}', '{null}', '{null}', 'r')",
    ],
)
def test_writers_change_no_slots_and_no_payload(with_roles, login, statement):
    refused(login("sqlbuffer_writer"), statement)


def test_learners_add_and_fetch_fragments(with_roles, login):
    config = {"max_chunks": 2, "max_staleness": 1, "max_reuse": 1, "fragments_per_chunk": 1}
    with ReplayBufferInterface(config, url=login("sqlbuffer_learner")) as buffer:
        buffer.update_model_version("one", 1)
        for fid in range(3):
            send(buffer, "w", fid, 1, "one", obs=b"x" * 2**21)
        assert len(buffer.fetch_fragments(2, timeout=0)) == 2
        assert buffer.release_prepared() == 2
        buffer.update_model_version("two", 2)
        assert buffer.store.get_disk_space() == 0  # they may delete what has left
        buffer.store.clear()
    with psycopg.connect(login("sqlbuffer_analyst")) as connection:
        assert connection.execute("SELECT count(*) FROM v_documents").fetchone() == (1,)


def test_a_writer_that_samples_leaves_expired_rows_to_others(with_roles, login):
    with ReplayBuffer(login("sqlbuffer_writer"), name="newer", max_staleness=0) as writer:
        writer.store_batch([make_array_row(step=i, model_version=i) for i in range(4)])
        with ReplayBuffer(login("sqlbuffer_learner"), name="newer") as learner:
            learner.set_clock(2)
        for _ in range(2):
            writer._store.expiry.due_at = 0.0
            assert len(writer.sample(4)) == 2
        assert len(writer) == 4
        with pytest.raises(StorageReadOnlyError):
            writer.expire()


@pytest.mark.thorough
def test_all_roles_copy_from_a_buffer_learners_hold_it_and_the_owner_copies_into_one(
    with_roles, login, tmp_path
):
    with ReplayBuffer(with_roles, "source") as source:
        source.store_batch([make_array_row(step=step) for step in range(5)])
    held = []
    for group in ("sqlbuffer_analyst", "sqlbuffer_writer", "sqlbuffer_learner"):
        with ReplayBuffer(login(group), "source", create=False) as source:
            copied = ReplayBuffer(tmp_path / f"{group}.db", config=source.config)

            def look(*_):
                held.extend(run(with_roles, "SELECT low_seq FROM holds"))

            assert source.copy_to(copied, on_progress=look).n_steps == 5
            with ReplayBuffer(with_roles, f"of {group}", config=source.config) as empty:
                name = empty.name
            if group != "sqlbuffer_analyst":
                with (
                    ReplayBuffer(login(group), name) as refused_copy,
                    pytest.raises(StorageReadOnlyError, match=r"only the owner .* copies into"),
                ):
                    copied.copy_to(refused_copy)
            with ReplayBuffer(with_roles, name) as owned:
                assert copied.copy_to(owned).n_steps == 5
    assert held == [(0,)]


@pytest.mark.thorough
@pytest.mark.parametrize("group", ["sqlbuffer_analyst", "sqlbuffer_writer", "sqlbuffer_learner"])
def test_a_role_that_may_not_restore_a_buffer_leaves_none_behind(
    with_roles, login, group, tmp_path
):
    with ReplayBuffer(with_roles, "older") as source:
        export_parquet(source, tmp_path / "out")
    with pytest.raises(StorageReadOnlyError, match="only the owner"):
        import_parquet(tmp_path / "out", login(group), "restored")
    assert ReplayBuffer.list(with_roles) == ["older"]
    assert import_parquet(tmp_path / "out", with_roles, "restored").is_restored
