"""A mirror that was opened with a condition, or with some of the fields."""

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import ConditionError, FieldError, InsufficientDataError, MirrorFullError
from tests.support.episodes import EPISODES, FIELDS, empty, store
from tests.support.mirrors import LATE_CHUNK, drawn_rows, every_row, rows_of
from tests.support.sql import connected, delete_steps

VARIED = {
    "obs": ("float32", (3,)),
    "image": ("uint8", (40, 40)),
    "level": {"dtype": "int64", "column": True},
    "tokens": ("int32", (-1,)),
    "logits": ("float64", (-1, 2)),
}


def columns(n, first=0, **more):
    t = np.arange(first, first + n)
    arrays = {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}
    return {**arrays, "extra": [{"tag": int(i) % 5} for i in t], **more}


def tagged(*tags):
    return QueryBuilder().in_("extra.tag", list(tags))


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=300) as buffer:
        yield buffer


def assert_same(buffer, mirror, condition):
    """Assert that a mirror draws what the buffer draws by the condition."""
    mirror.refresh()
    assert len(mirror) == buffer.size(condition)
    for mode, options in (("step", {}), ("transition", {"n_step": 2, "stack": {"obs": 2}})):
        expected = every_row(buffer, mode, condition=condition, **options)
        if expected:
            n = len(expected) * (16 + len(expected).bit_length())
            assert drawn_rows(mirror, mode, n, **options) == expected
        else:
            with pytest.raises(InsufficientDataError):
                drawn_rows(mirror, mode, 1, **options)


@pytest.mark.thorough
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(EPISODES, st.sampled_from(["action", "reward"]), st.integers(0, 5))
def test_random_episodes_are_drawn_as_from_the_buffer(buffer_url, buffer, episodes, name, least):
    empty(buffer, buffer_url)
    wanted = QueryBuilder().gte("step" if name == "action" else name, least)
    with buffer.mirror(condition=wanted, refresh_s=3_600) as mirror:
        store(buffer, buffer_url, episodes)
        assert_same(buffer, mirror, wanted)
    with buffer.mirror(condition=wanted, refresh_s=3_600) as mirror:
        assert_same(buffer, mirror, wanted)


def test_all_kinds_of_changes_are_taken(buffer, buffer_url):
    wanted = tagged(1, 4)
    with buffer.mirror(condition=wanted, refresh_s=3_600) as mirror:
        assert_same(buffer, mirror, wanted)
        for number in range(4):
            buffer.store_episode(columns(30 - number, number), episode_id=f"e{number}")
            buffer.extend(columns(9, number), task_id="loose")
            assert_same(buffer, mirror, wanted)
        buffer.delete(QueryBuilder().eq("step", 7))
        assert_same(buffer, mirror, wanted)
        seqs = mirror.sample_arrays(20).info["seq"]
        buffer.quarantine(seqs)
        assert_same(buffer, mirror, wanted)
        buffer.release(seqs[:10])
        buffer.resize(100)
        assert_same(buffer, mirror, wanted)
        with connected(buffer_url) as connection:
            delete_steps(connection, "step BETWEEN 10 AND 20")
        assert_same(buffer, mirror, wanted)
        buffer.clear()
        buffer.extend(columns(20))
        assert_same(buffer, mirror, wanted)


@pytest.mark.thorough
def test_labels_decide_which_steps_match(buffer):
    for number in range(3):
        buffer.store_episode(columns(20), episode_id=f"e{number}")
    buffer.extend(columns(20), task_id="loose")
    buffer.annotate([3, 65], reward=500.0)
    buffer.quarantine([66])
    buffer.delete(QueryBuilder().in_("seq", [25, 67]))
    wanted = QueryBuilder().gte("reward", 100).or_().eq("extra.verdict", "good")
    with buffer.mirror(condition=wanted, refresh_s=3_600) as mirror:
        assert_same(buffer, mirror, wanted)
        # Of an episode, and of a chunk, that it did not have.
        buffer.annotate([30, 68], reward=300.0)
        buffer.annotate([24], reward=-5.0)
        assert_same(buffer, mirror, wanted)
        buffer.annotate([50, 65], extra={"verdict": "good"})
        buffer.annotate([30, 3], reward=1.0)
        assert_same(buffer, mirror, wanted)
        buffer.annotate([65], reward=2.0)
        buffer.annotate([65], extra={"verdict": "bad"})
        assert_same(buffer, mirror, wanted)


@pytest.mark.thorough
def test_an_open_episode_is_kept_from_its_first_match_on(buffer):
    wanted = QueryBuilder().eq("extra.tag", 4).and_().gt("step", 10)
    with (
        buffer.mirror(condition=wanted, refresh_s=3_600) as mirror,
        buffer.episode(episode_id="growing") as episode,
    ):
        for t in range(30):
            episode.append(obs=[t, t], action=t, reward=float(t), extra={"tag": t % 5})
            if t % 4 == 0:
                buffer.flush()
                assert_same(buffer, mirror, wanted)


def test_a_transaction_that_commits_late_is_not_missed(make_database_url):
    url = make_database_url("postgresql", schema=True)
    late = QueryBuilder().eq("task_id", "late")
    with ReplayBuffer(url, fields=FIELDS) as buffer:
        buffer.extend(columns(10))
        with buffer.mirror(condition=late, refresh_s=3_600) as mirror:
            with connected(url) as connection:
                connection.exec_driver_sql(LATE_CHUNK)
                buffer.extend(columns(500), task_id="soon")
                mirror.refresh()
                assert len(mirror) == 0
            mirror.refresh()
            assert len(mirror) == 10
            expected = every_row(buffer, "step", condition=late, fields=["obs"])
            assert drawn_rows(mirror, "step", 300, fields=["obs"]) == expected


def test_both_conditions_hold(buffer):
    buffer.store_episode(columns(50))
    with buffer.mirror(condition=tagged(2)) as mirror:
        late = QueryBuilder().gte("step", 30)
        drawn = mirror.sample_arrays(200, condition=late)
        assert set(drawn.action.tolist()) == {32, 37, 42, 47}
        with pytest.raises(InsufficientDataError, match="asked for 9, and 4 match"):
            mirror.sample_arrays(9, condition=late, sampler=RandomSampler(replace=False))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "condition",
    [
        QueryBuilder().gte("step", 15),
        QueryBuilder().eq("episode_id", "e2"),
        QueryBuilder().gt("reward", 100),
    ],
)
@pytest.mark.parametrize(
    ("mode", "options"),
    [("window", {"length": 4}), ("trajectory", {}), ("transition", {"n_step": 2}), ("step", {})],
)
def test_passes_hold_what_matches_in_each_mode(buffer, mode, options, condition):
    for number in range(4):
        buffer.store_episode(columns(20, number), episode_id=f"e{number}")
    buffer.annotate([5, 50], reward=500.0)
    expected = every_row(buffer, mode, condition=condition, **options)
    with buffer.mirror() as whole, buffer.mirror(condition=condition) as part:
        for mirror, given in ((whole, {"condition": condition}), (part, {})):
            found = {}
            for batch in mirror.loader(mode, 16, shuffle=False, epochs=1, **options, **given):
                found |= rows_of(batch)
            assert found == expected


def test_draws_are_uniform_over_the_steps_that_match(buffer):
    for number in range(12):
        buffer.store_episode(columns(40), episode_id=f"e{number}")
    with buffer.mirror(condition=tagged(0, 3)) as mirror:
        n = 60 * len(mirror)
        drawn = mirror.sample_transitions(n, sampler=RandomSampler(replace=True, seed=4))
    seqs, counts = np.unique(drawn.info["seq"], return_counts=True)
    assert len(seqs) == len(every_row(buffer, "transition", condition=tagged(0, 3)))
    assert chisquare(counts).pvalue > 1e-4


def test_a_file_put_in_the_place_of_the_database_is_noticed_without_a_match(tmp_path):
    path, backup = tmp_path / "own.db", tmp_path / "backup.db"
    with ReplayBuffer(path, fields=FIELDS) as buffer:
        buffer.extend(columns(10), task_id="before")
        buffer.close()
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        shutil.copy(path, backup)
    with ReplayBuffer(backup) as buffer:
        buffer.extend(columns(10), task_id="wanted")
        buffer.extend(columns(30), task_id="after")
    wanted = QueryBuilder().eq("task_id", "wanted")
    with ReplayBuffer(path) as buffer:
        buffer.extend(columns(10), task_id="after")
        with buffer.mirror(condition=wanted, refresh_s=3_600) as mirror:
            assert len(mirror) == 0
            buffer.close()
            for own in (path, backup):
                for suffix in ("-wal", "-shm"):
                    own.with_name(own.name + suffix).unlink(missing_ok=True)
            backup.replace(path)
            mirror.refresh()
            assert len(mirror) == 10


def test_a_malformed_condition_is_refused(buffer):
    with pytest.raises(ConditionError, match="unknown field 'stpe'"):
        buffer.mirror(condition=QueryBuilder().eq("stpe", 1))


def test_steps_are_counted_as_a_whole_for_min_size(buffer_url):
    with (
        ReplayBuffer(buffer_url, fields=FIELDS, min_size=30) as buffer,
        buffer.mirror(condition=tagged(1), refresh_s=3_600) as mirror,
    ):
        buffer.extend(columns(29))
        with pytest.raises(InsufficientDataError, match="holds 29 rows, and is sampled from 30"):
            mirror.sample_arrays(2)
        buffer.extend(columns(1))
        assert mirror.sample_arrays(2).n_rows == 2


@pytest.mark.thorough
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("fields", [["obs"], ["image", "level"], ["tokens", "reward"], []])
def test_only_the_named_fields_are_kept(buffer_url, compression, fields):
    rng = np.random.default_rng(0)
    with ReplayBuffer(buffer_url, fields=VARIED, compression=compression) as buffer:
        arrays = {
            "obs": rng.random((90, 3), dtype=np.float32),
            "image": rng.integers(0, 256, (90, 40, 40), np.uint8),
            "level": np.arange(90),
            "tokens": [np.arange(i % 5, dtype=np.int32) for i in range(90)],
            "logits": [rng.random((i % 3, 2)) for i in range(90)],
            "reward": np.arange(90.0),
        }
        buffer.store_episode(arrays)
        with buffer.mirror(fields=fields) as mirror:
            names = [*fields, "reward", "terminated", "truncated"]
            expected = every_row(buffer, "step", fields=names)
            assert rows_of(mirror.sample_arrays(90, sampler=RandomSampler())) == expected
            with pytest.raises(FieldError, match="'logits'"):
                mirror.sample_arrays(4, fields=["logits"])
            if "obs" in fields:
                found = drawn_rows(mirror, "transition", 3_000, n_step=2)
                assert found == every_row(buffer, "transition", n_step=2, fields=[
                    "obs", "reward", "discount", "terminated", "next_obs"
                ])  # fmt: skip
            else:
                with pytest.raises(FieldError, match="observation"):
                    mirror.sample_transitions(4)
            if "level" not in fields:
                with pytest.raises(ConditionError, match="opened without field 'level'"):
                    mirror.sample_arrays(4, condition=QueryBuilder().eq("level", 1))


def test_fewer_fields_and_steps_fit_where_all_do_not(buffer_url):
    with ReplayBuffer(buffer_url, fields=VARIED) as buffer:
        for n in (20, 380):
            arrays = {
                "obs": np.zeros((n, 3)),
                "image": np.zeros((n, 40, 40), np.uint8),
                "level": np.full(n, n),
                "tokens": [np.zeros(1, np.int32)] * n,
                "logits": [np.zeros((0, 2))] * n,
            }
            buffer.extend(arrays)
        room = 2**17
        with pytest.raises(MirrorFullError, match=r"without 'image' takes 1[0-9][0-9] bytes"):
            buffer.mirror(max_bytes=room)
        with buffer.mirror(max_bytes=room, fields=["obs"]) as mirror:
            assert len(mirror) == 400
        few = QueryBuilder().eq("level", 20)
        with buffer.mirror(max_bytes=room, condition=few, refresh_s=3_600) as mirror:
            assert len(mirror) == 20


def test_a_shared_mirror_has_a_condition_and_fields_of_its_own(buffer):
    buffer.store_episode(columns(40), episode_id="e")
    options = {"fields": ["obs"], "refresh_s": 3_600}
    with (
        buffer.mirror(shared=True, condition=tagged(1), **options) as first,
        buffer.mirror(shared=True, condition=tagged(1), **options) as second,
        buffer.mirror(shared=True, condition=tagged(2), **options) as other,
    ):
        assert first.path == second.path != other.path
        buffer.extend(columns(10), task_id="more")
        for mirror, tag in ((first, 1), (second, 1), (other, 2)):
            mirror.refresh()
            assert len(mirror) == buffer.size(tagged(tag)) == 10
            expected = every_row(buffer, "step", condition=tagged(tag), fields=["obs"])
            found = drawn_rows(mirror, "step", 300, fields=["obs"])
            assert found == expected
            late = QueryBuilder().gte("step", 30)
            assert {int(x) % 5 for x in mirror.sample_arrays(9, condition=late).obs[:, 0]} == {tag}


def test_an_unknown_field_is_refused(buffer):
    with pytest.raises(FieldError, match="unknown field 'acton'"):
        buffer.mirror(fields=["acton"])
