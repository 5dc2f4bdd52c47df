"""Processes of one machine share a mirror: one follows the buffer, the others read its memory."""

import gc
import os
import resource
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    ArgumentError,
    BufferConfigError,
    MirrorBehindError,
    MirrorFullError,
    StorageUnreachableError,
)
from tests.support.episodes import FIELDS
from tests.support.mirrors import assert_same_draws
from tests.support.processes import running, wait_until
from tests.support.proxy import Proxy
from tests.support.sql import delete_steps_by_hand, is_sqlite, run


def columns(n, first=0):
    t = np.arange(first, first + n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=200) as buffer:
        buffer.store_episode(columns(100), episode_id="first")
        yield buffer


@pytest.fixture
def follower(buffer):
    # Looks only when it is told to.
    with buffer.mirror(shared=True, refresh_s=3_600) as mirror:
        yield mirror


@pytest.fixture
def reader(buffer, follower):
    with buffer.mirror(shared=True) as mirror:
        yield mirror


def check(buffer, mirror):
    mirror.refresh()
    assert_same_draws(buffer, mirror, "step")
    assert_same_draws(buffer, mirror, "transition", n_step=3)


@pytest.mark.thorough
def test_a_reader_draws_what_the_follower_has(buffer, follower, reader):
    check(buffer, reader)
    check(buffer, follower)
    assert reader.path == follower.path


@pytest.mark.thorough
def test_a_reader_draws_what_was_changed(buffer, buffer_url, reader):
    ends = {"terminated": np.arange(50) == 49}
    buffer.store_episode({**columns(50, 200), **ends}, episode_id="second")
    check(buffer, reader)
    seqs = list(range(10, 20))
    buffer.annotate(seqs[:5], reward=7.0)
    buffer.quarantine(seqs[5:])
    delete_steps_by_hand(buffer_url, "seq BETWEEN 40 AND 45")
    check(buffer, reader)
    buffer.release(seqs[5:])
    check(buffer, reader)
    for start in range(300, 700, 90):  # the ring wraps, and episodes leave
        buffer.store_episode(columns(90, start), episode_id=f"e{start}", task_id=f"t{start}")
        check(buffer, reader)


def test_a_reader_draws_what_its_process_has_written(buffer, reader):
    buffer.extend(columns(3, 500))
    assert {500, 501, 502} <= set(reader.sample_arrays(2_000).action.tolist())
    assert reader.lag().high == 103


def test_a_reader_refreshes_before_it_was_ever_drawn_from(buffer, follower):
    buffer.extend(columns(3, 500))
    with buffer.mirror(shared=True) as reader:
        assert len(reader) == 103


def test_a_seed_draws_the_same_from_both(buffer, follower, reader):
    with buffer.mirror() as alone:
        drawn = [
            next(iter(mirror.loader("step", 32, seed=7))).action
            for mirror in (follower, reader, alone)
        ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])


def test_the_memory_grows_under_a_reader(buffer_url):
    with (
        ReplayBuffer(buffer_url, fields=FIELDS) as buffer,
        buffer.mirror(shared=True, refresh_s=3_600) as follower,
        buffer.mirror(shared=True) as reader,
    ):
        for number in range(3):
            n = 60_000
            buffer.extend(columns(n, number * n), task_id=f"task-{number}")
            reader.refresh()
            assert len(reader) == len(follower) == (number + 1) * n
            drawn = reader.sample_arrays(2_000)
            np.testing.assert_array_equal(drawn.action + 1, drawn.info["seq"])
            expected = [f"task-{action // n}" for action in drawn.action.tolist()]
            assert drawn.info["task_id"].tolist() == expected
        path = reader.path
    assert not path.exists()


@pytest.mark.thorough
def test_names_and_episodes_outgrow_their_room(buffer_url):
    long = "x" * 400
    with (
        ReplayBuffer(buffer_url, fields=FIELDS) as buffer,
        buffer.mirror(shared=True, refresh_s=3_600),
        buffer.mirror(shared=True) as reader,
    ):
        for number in range(3):
            keys = [f"{number}-{part}-{long}" for part in range(400)]
            buffer.extend(columns(400), task_id=keys, agent_id=keys, episode_id=keys)
            reader.refresh()
        assert_same_draws(buffer, reader, "step")


RAGGED = {"ids": ("int32", (-1,)), "obs": "float32"}


def ragged(n, first=0):
    """Return steps whose number, length and values tell each other."""
    t = np.arange(first, first + n)
    return {"ids": [np.full(at % 97, at, np.int32) for at in t], "obs": t.astype("f4")}


def check_ragged(batch):
    at = batch.obs.astype(int)
    np.testing.assert_array_equal(batch.ids_lens, at % 97)
    for ids, n, value in zip(batch.ids, batch.ids_lens, at, strict=True):
        assert (ids[:n] == value).all()
        assert (ids[n:] == 0).all()


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_values_of_varying_length_outgrow_their_room(buffer_url, compression):
    settings = {"fields": RAGGED, "compression": compression, "max_capacity": 5_000}
    with (
        ReplayBuffer(buffer_url, **settings) as buffer,
        buffer.mirror(shared=True, refresh_s=3_600) as follower,
        buffer.mirror(shared=True) as reader,
        buffer.mirror() as alone,
    ):
        # Each round of the ring is as much as the first heap holds.
        for first in range(0, 20_000, 4_000):
            buffer.extend(ragged(4_000, first))
            for mirror in (follower, reader, alone):
                mirror.refresh()
                batch = mirror.sample_arrays(300)
                check_ragged(batch)
                assert batch.obs.min() >= first - 1_000
    path = reader.path
    with (
        ReplayBuffer(buffer_url) as buffer,
        buffer.mirror(shared=True) as follower,
        buffer.mirror(shared=True) as reader,
    ):
        assert follower.path == path
        follower.close()
        buffer.extend(ragged(100, 20_000))
        check_ragged(reader.sample_arrays(300))


def test_values_of_varying_length_count_as_memory(buffer_url):
    with ReplayBuffer(buffer_url, fields=RAGGED) as buffer:
        buffer.extend({"ids": [np.zeros(5_000, np.int32)] * 400, "obs": np.zeros(400)})
        with pytest.raises(MirrorFullError, match=r"values of varying length take .* raise max_b"):
            buffer.mirror(max_bytes=4_000_000)
        with buffer.mirror(max_bytes=40_000_000) as mirror:
            assert mirror.sample_arrays(3).ids_lens.tolist() == [5_000] * 3


@pytest.mark.thorough
def test_of_two_processes_the_one_that_is_left_takes_over(buffer):
    follower = buffer.mirror(shared=True)
    path = follower.path
    with buffer.mirror(shared=True) as reader:
        follower.close()
        buffer.extend(columns(3, 500))
        check(buffer, reader)
        with buffer.mirror(shared=True) as third:
            check(buffer, third)
        assert path.exists()
    assert not path.exists()
    assert not list(path.parent.glob(f"{path.name}.*")), "its locks are gone as well"


def follow_until_killed(url, said):
    with ReplayBuffer(url) as buffer, buffer.mirror(shared=True, refresh_s=0.01) as mirror:
        said.write_text(str(mirror.path))
        while True:
            mirror.sample_arrays(8)


@contextmanager
def killed(url, said):
    """Yield the path of a follower's segment, and a function that kills it."""
    with running([(follow_until_killed, url, said)], "forkserver") as followers:
        wait_until(lambda: said.exists() and said.read_text(), "a follower")
        (process,) = followers.processes

        def kill():
            process.kill()
            process.join()

        yield Path(said.read_text()), kill


@pytest.mark.thorough
def test_after_the_follower_is_killed_a_reader_takes_over(buffer, buffer_url, tmp_path):
    with killed(buffer_url, tmp_path / "said") as (path, kill):
        with buffer.mirror(shared=True) as reader:
            assert reader.path == path
            check(buffer, reader)
            kill()
            reader.sample_arrays(8)  # goes on
            buffer.store_episode(columns(50, 200), episode_id="second")
            check(buffer, reader)
        assert not path.exists()


def test_what_killed_processes_left_is_removed(buffer, buffer_url, make_database_url, tmp_path):
    with killed(buffer_url, tmp_path / "said") as (path, kill):
        kill()
    assert path.exists()
    with (
        ReplayBuffer(make_database_url("sqlite"), fields=FIELDS) as other,
        other.mirror(shared=True),
    ):
        assert not path.exists()


@pytest.mark.thorough
def test_a_mirror_that_is_not_closed_is_forgotten(buffer):
    mirror = buffer.mirror(shared=True)
    path = mirror.path
    assert path.exists()
    del mirror
    gc.collect()
    wait_until(lambda: not path.exists(), "the memory to be freed")


def test_a_file_is_gone_on_with(buffer, buffer_url, tmp_path):
    path = tmp_path / "mirror"
    with buffer.mirror(shared=True, path=path) as mirror:
        check(buffer, mirror)
    buffer.store_episode(columns(20, 300), episode_id="later", task_id="later")
    # Nothing tells followers of this: the steps were not read again.
    forget_values(buffer_url, 100)
    with buffer.mirror(shared=True, path=path) as mirror:
        drawn = mirror.sample_arrays(4_000)
        assert set(drawn.action.tolist()) == {*range(100), *range(300, 320)}
        assert set(drawn.info["task_id"].tolist()) == {"first", "later"}
        np.testing.assert_array_equal(drawn.reward, drawn.action)
        episodes = set(mirror.sample_transitions(2_000).info["episode"].tolist())
        assert episodes == {"first", "later"}
    assert list(tmp_path.glob("mirror*")) == [path]


def open_and_close(url, n):
    with ReplayBuffer(url) as buffer:
        for _ in range(n):
            with buffer.mirror(shared=True) as mirror:
                assert mirror.sample_arrays(8).n_rows == 8
    return n


@pytest.mark.thorough
def test_many_processes_open_and_close_at_once(buffer, buffer_url):
    with running([(open_and_close, buffer_url, 6)] * 3, "forkserver") as workers:
        assert workers.results() == [6] * 3


def forget_values(url, n):
    """Overwrite the values of the first steps where they are stored."""
    zeros = "zeroblob(length(records))" if is_sqlite(url) else None
    if zeros is None:
        zeros = "decode(repeat('00', length(records)), 'hex')"
    where = f"key & 1099511627775 <= {n}" if is_sqlite(url) else f"first_seq <= {n}"
    run(url, f"UPDATE chunk_data SET records = {zeros} WHERE {where}")


def test_a_file_of_another_state_is_not_used(buffer, buffer_url, tmp_path):
    path = tmp_path / "mirror"
    with buffer.mirror(shared=True, path=path) as mirror:
        assert len(mirror) == 100
    buffer.clear()
    buffer.store_episode(columns(30, 900), episode_id="first")
    with buffer.mirror(shared=True, path=path) as mirror:
        assert set(mirror.sample_arrays(1_000).action.tolist()) == set(range(900, 930))
        check(buffer, mirror)


@pytest.mark.thorough
def test_a_file_that_is_damaged_is_replaced(buffer, tmp_path):
    path = tmp_path / "mirror"
    with buffer.mirror(shared=True, path=path):
        pass
    whole = path.read_bytes()
    for content in (b"", whole[:5_000], whole[:8] + bytes(len(whole) - 8)):
        path.write_bytes(content)
        with buffer.mirror(shared=True, path=path) as mirror:
            check(buffer, mirror)


def test_a_file_that_is_not_a_mirror_is_left_alone(buffer, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    path = folder / "notes"
    path.write_text("important")
    for wrong, message in (
        (path, "holds something else"),
        (folder, "holds something else"),
        (tmp_path / "no" / "mirror", "there is no folder"),
    ):
        with pytest.raises(BufferConfigError, match=message):
            buffer.mirror(shared=True, path=wrong)
    assert path.read_text() == "important"
    assert list(folder.iterdir()) == [path]


def test_a_takeover_that_fails_again_and_again_leaves_nothing_open(buffer):
    follower = buffer.mirror(shared=True, refresh_s=3_600)
    with buffer.mirror(shared=True, max_bytes=2_000):
        buffer.clear()
        buffer.store_episode(columns(100), episode_id="new")
        follower.close()
        # The one that is left has too little memory to follow, and tries four times a second.
        time.sleep(1.5)
        assert len(open_pipes()) <= 1, "those of an attempt that is being made"


def open_pipes():
    """Return the pipes of mirrors that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if name.endswith(".wake")]


def test_a_file_of_another_buffer_is_refused_while_it_is_open(buffer, buffer_url, tmp_path):
    path = tmp_path / "mirror"
    with ReplayBuffer(buffer_url, name="other", fields=FIELDS) as other:
        other.extend(columns(5, 70))
        with (
            buffer.mirror(shared=True, path=path),
            pytest.raises(BufferConfigError, match="holds the mirror of another buffer"),
        ):
            other.mirror(shared=True, path=path)
        with other.mirror(shared=True, path=path) as mirror:
            check(other, mirror)


@pytest.mark.thorough
def test_a_copied_file_belongs_to_nobody_else(buffer, tmp_path):
    path = tmp_path / "mirror"
    with buffer.mirror(shared=True, path=path):
        pass
    path.chmod(0o400)
    path.rename(tmp_path / "moved")
    (tmp_path / "mirror").symlink_to(tmp_path / "moved")
    with buffer.mirror(shared=True, path=path) as mirror:  # links are not followed
        check(buffer, mirror)
    assert not path.is_symlink()


def mirror_in_little_room(url, path):
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    with ReplayBuffer(url) as buffer, pytest.raises(MirrorFullError) as caught:
        buffer.mirror(shared=True, path=path)
    return str(caught.value)


def test_space_is_reserved_before_it_is_used(buffer, buffer_url, tmp_path):
    path = tmp_path / "mirror"
    with running([(mirror_in_little_room, buffer_url, path)], "forkserver") as workers:
        (said,) = workers.results()
    assert "too little room" in said
    assert "path=" in said
    assert not path.exists()


def test_a_reader_is_told_that_the_follower_is_full(buffer_url):
    with (
        ReplayBuffer(buffer_url, fields=FIELDS) as buffer,
        buffer.mirror(shared=True, refresh_s=3_600, max_bytes=2_000_000),
        buffer.mirror(shared=True) as reader,
    ):
        buffer.extend(columns(10))
        assert len(reader.sample_arrays(3)) > 0
        buffer.extend(columns(60_000))
        with pytest.raises(MirrorFullError, match="max_bytes"):
            reader.sample_arrays(3)


def test_draws_of_readers_go_on_while_the_database_is_away(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with closing(Proxy(url)) as proxy, ReplayBuffer(proxy.url, fields=FIELDS, retry_s=0) as buffer:
        buffer.extend(columns(10))
        with (
            buffer.mirror(shared=True, refresh_s=3_600),
            buffer.mirror(shared=True) as reader,
            buffer.mirror(shared=True, max_lag_s=1e-9) as strict,
        ):
            proxy.closed = True
            proxy.cut_all()
            with pytest.raises(StorageUnreachableError):
                reader.refresh()
            assert reader.sample_arrays(8).n_rows == 8
            assert "cannot reach" in reader.lag().error
            with pytest.raises(MirrorBehindError, match="max_lag_s is 1e-09"):
                strict.sample_arrays(8)
            proxy.closed = False
            reader.refresh()
            assert reader.lag().error is None


def test_what_cannot_be_shared_is_refused(tmp_path):
    with (
        ReplayBuffer("sqlite://", fields=FIELDS) as buffer,
        pytest.raises(BufferConfigError, match="in memory has one process"),
    ):
        buffer.mirror(shared=True)
    with (
        ReplayBuffer(f"sqlite:///{tmp_path}/a.db", fields=FIELDS) as buffer,
        pytest.raises(ArgumentError, match="shared=True too"),
    ):
        buffer.mirror(path=tmp_path / "mirror")
