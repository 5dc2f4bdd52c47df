"""A mirror takes what was changed in its buffer, and never serves another state."""

import os
import pickle
import subprocess
import sys
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    BufferConfigError,
    BufferNotFoundError,
    InsufficientDataError,
    MirrorBehindError,
    MirrorFullError,
    SchemaTooNewError,
    StorageUnreachableError,
)
from tests.support.episodes import FIELDS
from tests.support.mirrors import LATE_CHUNK, assert_same_draws
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.sql import connected, delete_steps, is_sqlite, run
from tests.support.statements import selects


def columns(n, first=0):
    t = np.arange(first, first + n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=200) as buffer:
        buffer.store_episode(columns(100), episode_id="first")
        yield buffer


@pytest.fixture
def mirror(buffer):
    # Looks only when it is told to.
    with buffer.mirror(refresh_s=3_600) as mirror:
        yield mirror


def check(buffer, mirror):
    mirror.refresh()
    assert_same_draws(buffer, mirror, "step")
    assert_same_draws(buffer, mirror, "transition", n_step=3)


def test_own_writes_are_drawn_at_once(buffer, mirror):
    buffer.extend(columns(3, 500))
    assert len(mirror) == 100
    mirror.sample_arrays(8)
    assert len(mirror) == 103
    assert_same_draws(buffer, mirror, "step")


def test_waiting_steps_are_drawn_once_they_are_many(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer, buffer.mirror() as mirror:
        for t in range(20):
            buffer.add(obs=[t, t], action=t, reward=0.0)
        assert set(mirror.sample_arrays(500).action.tolist()) == set(range(20))


@pytest.mark.thorough
def test_writes_of_others_are_drawn_after_a_refresh(buffer, mirror, buffer_url):
    store_elsewhere(buffer_url, buffer.name, 60)
    mirror.refresh()
    assert mirror.lag().high == 160
    assert_same_draws(buffer, mirror, "step")


def store_elsewhere(url, name, n):
    """Store steps from another process."""
    script = (
        "import sys, numpy as np; from sqlbuffer import ReplayBuffer; "
        "url, name, n = sys.argv[1], sys.argv[2], int(sys.argv[3]); t = np.arange(n); "
        "ReplayBuffer(url, name).extend({'obs': np.zeros((n, 2)), 'action': t}, task_id='other')"
    )
    subprocess.run([sys.executable, "-c", script, url, name, str(n)], check=True)


@pytest.mark.thorough
def test_the_thread_takes_writes_of_others(buffer, buffer_url):
    with buffer.mirror(refresh_s=0.05) as mirror:
        store_elsewhere(buffer_url, buffer.name, 60)
        wait_until(lambda: mirror.lag().high == 160, "the thread looks")
        assert_same_draws(buffer, mirror, "step")


def test_all_kinds_of_changes_are_taken(buffer, mirror):
    for number in range(6):
        buffer.store_episode(columns(70, number), episode_id=f"e{number}")
        check(buffer, mirror)
    buffer.delete(QueryBuilder().eq("exp_meta.step", 7).build())
    check(buffer, mirror)
    seqs = mirror.sample_arrays(20).info["seq"]
    buffer.annotate(seqs, reward=77.0)
    check(buffer, mirror)
    buffer.quarantine(seqs)
    check(buffer, mirror)
    buffer.release(seqs[:10])
    check(buffer, mirror)
    buffer.resize(60)
    check(buffer, mirror)
    buffer.resize(400)
    buffer.store_episode(columns(300), episode_id="last")
    check(buffer, mirror)
    buffer.clear()
    mirror.refresh()
    assert len(mirror) == 0
    buffer.store_episode(columns(20), episode_id="again")
    check(buffer, mirror)


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_info_of_a_batch_stays_when_its_episodes_leave(buffer_url, is_shared):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=256) as buffer, ExitStack() as stack:

        def store(number):
            arrays = columns(64)
            arrays["obs"][:] = number
            buffer.store_episode(arrays, episode_id=f"episode {number}")

        for number in range(4):
            store(number)
        mirrors = [buffer.mirror(shared=is_shared, refresh_s=3_600) for _ in range(2)]
        for mirror in mirrors:
            stack.enter_context(mirror)
        batches = []
        for number in range(4, 16):
            batches += [mirror.sample_transitions(32) for mirror in mirrors]
            store(number)
            for mirror in mirrors:
                mirror.refresh()
        for batch in batches:
            episodes = [f"episode {int(number)}" for number in batch.obs[:, 0]]
            assert batch.info["episode"].tolist() == episodes


def test_the_info_of_a_batch_stays_when_many_episodes_leave(database_url):
    n = 40_000
    with ReplayBuffer(database_url, create=True, fields={"obs": "int64"}, max_capacity=n) as buffer:

        def store(first):
            numbers = range(first, first + n)
            buffer.extend({"obs": np.array(numbers)}, episode_id=[f"e{k // 2}" for k in numbers])

        store(0)
        with buffer.mirror(refresh_s=3_600) as mirror:
            batch = mirror.sample_transitions(64)
            store(n)
            mirror.refresh()
            assert mirror.sample_transitions(64).obs.min() >= n
        assert batch.info["episode"].tolist() == [f"e{k // 2}" for k in batch.obs.tolist()]


def test_a_label_of_a_step_that_was_deleted_since_changes_the_return(buffer, mirror):
    stored = buffer.store_episode(columns(3), task_id="labelled")
    mirror.refresh()
    buffer.annotate(stored.seqs[:1], reward=8.0)
    buffer.delete(QueryBuilder().eq("seq", int(stored.seqs[0])))
    mirror.refresh()
    options = {"include_partial": True, "shuffle": False, "epochs": 1}
    returns = [
        {
            (episode, total)
            for batch in source.loader("trajectory", 64, **options)
            for episode, total in zip(batch.info["episode"], batch.info["return"], strict=True)
        }
        for source in (buffer, mirror)
    ]
    assert returns[0] == returns[1]


@pytest.mark.thorough
def test_open_episodes_grow_and_end(buffer, mirror):
    with buffer.episode(episode_id="growing") as episode:
        for t in range(40):
            episode.append(obs=[t, t], action=t, reward=float(t))
            if t % 7 == 0:
                buffer.flush()
                check(buffer, mirror)
        episode.end(obs=[40, 40])
    check(buffer, mirror)


@pytest.mark.thorough
def test_stale_steps_are_not_drawn(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_staleness=2, keep_expired=True) as buffer:
        for version in range(5):
            buffer.store_episode(columns(10, version), model_version=version)
        with buffer.mirror() as mirror:
            for clock in (0, 4, 6, 3):
                buffer.set_clock(clock)
                mirror.refresh()
                assert_same_draws(buffer, mirror, "step")
                assert_same_draws(buffer, mirror, "transition")


def test_steps_of_other_sessions_are_not_drawn(buffer_url):
    with (
        ReplayBuffer(
            buffer_url, fields=FIELDS, current_session_only=True, keep_expired=True
        ) as buffer,
        buffer.mirror() as mirror,
    ):
        for session in ("one", "two"):
            buffer.start_session(session)
            buffer.store_episode(columns(10), session_id=session)
            buffer.extend(columns(5))
            mirror.refresh()
            assert_same_draws(buffer, mirror, "step")


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{"evict_by": "task"}, {"max_episodes": 3}])
def test_tasks_and_episodes_leave_as_a_whole(buffer_url, settings):
    with (
        ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=100, **settings) as buffer,
        buffer.mirror() as mirror,
    ):
        for number in range(9):
            buffer.store_episode(columns(30, number), episode_id=f"e{number}")
            mirror.refresh()
            assert_same_draws(buffer, mirror, "transition", n_step=2)


def test_steps_that_plain_sql_deletes_are_not_drawn(buffer, mirror, buffer_url):
    with connected(buffer_url) as connection:
        delete_steps(connection, "step BETWEEN 10 AND 60")
    check(buffer, mirror)
    run(buffer_url, "DELETE FROM chunks")
    mirror.refresh()
    assert len(mirror) == 0


def test_a_buffer_made_again_under_its_name_is_not_mixed_with_the_old_one(buffer, buffer_url):
    with buffer.mirror(refresh_s=3_600) as mirror:
        ReplayBuffer.drop(buffer_url, buffer.name)
        with pytest.raises(BufferNotFoundError, match="was dropped"):
            mirror.refresh()
        with pytest.raises(BufferNotFoundError, match="was dropped"):
            mirror.sample_arrays(4)


def test_a_file_put_in_the_place_of_the_database_is_read_from_its_start(tmp_path):
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    for path, task in ((first, "one"), (second, "two")):
        with ReplayBuffer(path, fields=FIELDS) as buffer:
            buffer.extend(columns(100), task_id=task)
    with ReplayBuffer(first) as buffer, buffer.mirror(refresh_s=3_600) as mirror:
        assert set(mirror.sample_arrays(64).info["task_id"]) == {"one"}
        ReplayBuffer(first).close()  # the idle connections of this process
        for path in (first, second):
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        os.replace(second, first)
        mirror.refresh()
        assert set(mirror.sample_arrays(64).info["task_id"]) == {"two"}


def test_a_database_that_was_upgraded_is_read_again_or_refused(buffer, mirror, buffer_url):
    """By a release that only adds to the schema, and by one that this package cannot read."""
    run(buffer_url, "UPDATE sqlbuffer_alembic_version SET version_num = '9001'")
    run(buffer_url, "UPDATE schema_info SET min_client = '0001'")
    buffer.extend(columns(5, 300))
    check(buffer, mirror)
    run(buffer_url, "UPDATE schema_info SET min_client = '9002'")
    run(buffer_url, "UPDATE sqlbuffer_alembic_version SET version_num = '9002'")
    with pytest.raises(SchemaTooNewError, match="git pull"):
        mirror.refresh()
    with pytest.raises(SchemaTooNewError, match="git pull"):
        mirror.sample_arrays(4)


def test_a_transaction_that_commits_late_is_not_missed(make_database_url):
    """Numbers are given before the commit: a chunk appears below those that were read."""
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, fields=FIELDS) as buffer:
        buffer.extend(columns(10))
        with buffer.mirror(refresh_s=3_600) as mirror:
            with connected(url) as connection:
                connection.exec_driver_sql(LATE_CHUNK)
                buffer.extend(columns(10), task_id="soon")
                mirror.refresh()
                assert (len(mirror), mirror.lag().high) == (20, 30)
            mirror.refresh()
            assert len(mirror) == 30
            assert_same_draws(buffer, mirror, "step")


def test_an_open_transaction_elsewhere_does_not_delay_it(make_database_url):
    url, elsewhere = (make_database_url("postgresql", schema=True) for _ in range(2))
    with ReplayBuffer(url, fields=FIELDS) as buffer, connected(elsewhere) as connection:
        connection.exec_driver_sql("CREATE TABLE held (x integer)")
        with buffer.mirror(refresh_s=3_600) as mirror:
            buffer.extend(columns(10))
            mirror.refresh()
            assert len(mirror) == 10


def test_what_does_not_fit_is_refused_with_what_would(buffer):
    with pytest.raises(MirrorFullError, match=r"100 steps take .* enough for [0-9]+; raise max_by"):
        buffer.mirror(max_bytes=5_000)


def test_a_buffer_that_outgrows_its_mirror_is_no_longer_drawn_from_it(buffer):
    with buffer.mirror(max_bytes=72 * 160) as mirror:
        mirror.sample_arrays(4)
        buffer.extend(columns(180))
        for _ in range(2):
            with pytest.raises(MirrorFullError, match="raise max_bytes"):
                mirror.sample_arrays(4)
        buffer.clear()
        buffer.extend(columns(50))
        mirror.refresh()
        assert_same_draws(buffer, mirror, "step")


def test_draws_go_on_while_the_database_is_away(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with closing(Proxy(url)) as proxy, ReplayBuffer(proxy.url, fields=FIELDS, retry_s=0) as buffer:
        buffer.extend(columns(50))
        with (
            buffer.mirror(refresh_s=3_600) as mirror,
            buffer.mirror(refresh_s=3_600, max_lag_s=1e-9) as strict,
        ):
            proxy.closed = True
            proxy.cut_all()
            with pytest.raises(StorageUnreachableError):
                mirror.refresh()
            assert mirror.sample_arrays(8).n_rows == 8
            assert "cannot reach" in mirror.lag().error
            with pytest.raises(MirrorBehindError, match="behind, and max_lag_s is 1e-09"):
                strict.sample_arrays(8)
            proxy.closed = False
            mirror.refresh()
            assert mirror.lag().error is None


def test_buffers_that_cannot_be_mirrored_are_refused_by_name(buffer_url):
    for settings, message in (
        ({}, "has no typed fields"),
        ({"fields": FIELDS, "max_use": 2}, "counts the uses of its steps"),
        ({"fields": FIELDS, "leases": True}, "hands out its steps by leases"),
    ):
        name = f"b{len(message)}"
        with (
            ReplayBuffer(buffer_url, name, **settings) as buffer,
            pytest.raises(BufferConfigError, match=message),
        ):
            buffer.mirror()


def test_a_closed_mirror_says_so(buffer):
    mirror = buffer.mirror()
    mirror.close()
    mirror.close()
    with pytest.raises(BufferConfigError, match="the mirror is closed"):
        mirror.sample_arrays(4)


def test_a_mirror_cannot_be_pickled(mirror):
    with pytest.raises(TypeError, match="pickle the buffer"):
        pickle.dumps(mirror)


def test_a_forked_process_opens_its_own(mirror):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            mirror.sample_arrays(4)
        except BufferConfigError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"open one in each process" in os.read(read, 1_000)
    os.close(read)
    os.close(write)


def test_too_few_steps_of_episodes_say_why(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer, buffer.mirror() as mirror:
        buffer.extend(columns(5))
        with pytest.raises(InsufficientDataError, match="5 in no episode"):
            mirror.sample_transitions(4, skip_single=True)


def test_an_idle_mirror_asks_little(buffer, buffer_url):
    with buffer.mirror(refresh_s=3_600) as mirror:
        mirror.refresh()
        if is_sqlite(buffer_url):
            age(buffer_url)
            mirror.refresh()
        with selects(buffer) as noted:
            for _ in range(2):
                mirror.refresh()
        # One goes along with the beginning of each look at a server.
        assert len(noted) == (0 if is_sqlite(buffer_url) else 2)
        buffer.extend(columns(5))
        mirror.refresh()
        assert len(mirror) == 105


def age(url):
    """Have the file of a database look as if it had changed an hour ago."""
    path = url.removeprefix("sqlite:///")
    for own in (path, path + "-wal"):
        os.utime(own, (time.time() - 3_600,) * 2)
