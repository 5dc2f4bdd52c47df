"""`annotate`: what it takes, and what of it holds."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.storage.labels.writing import Labelling
from tests.support.sql import buffer_id, run, scalar, stored_rows
from tests.support.typed_buffer import both_layouts


def filled(
    url: str, n: int = 6, make_buffer: Callable[..., ReplayBuffer] = ReplayBuffer, **settings: Any
) -> ReplayBuffer:
    """Return a buffer of rows with seq from 1; the reward of each is its seq."""
    buffer = make_buffer(url, create=True, **settings)
    for i in range(1, n + 1):
        buffer.add(state=i, task_id=f"t{i % 2}", step=i, reward=float(i), extra={"own": i})
    return buffer


def rewards(buffer: ReplayBuffer) -> dict[int | None, float | None]:
    return {row.seq: row.exp_data.reward_t for row in buffer}


def extras(buffer: ReplayBuffer) -> list[Any]:
    return [row.exp_data.extra for row in buffer]


@both_layouts
def test_rows_are_labelled_by_number_and_by_condition(buffer_url: str, make_buffer: Any) -> None:
    buffer = filled(buffer_url, make_buffer=make_buffer)
    assert buffer.annotate([4, 2], reward=[40, 20]) == 2
    of_t1 = QueryBuilder().eq("exp_meta.task_id", "t1").build()
    assert buffer.annotate(of_t1, reward_t=-1, adv_t=0.5, v_t=2, extra={"judge": "a"}) == 3
    assert rewards(buffer) == {1: -1.0, 2: 20.0, 3: -1.0, 4: 40.0, 5: -1.0, 6: 6.0}
    first = next(iter(buffer)).exp_data
    assert (first.adv_t, first.v_t, first.extra) == (0.5, 2.0, {"own": 1, "judge": "a"})


@both_layouts
def test_rows_that_are_not_held_are_skipped_with_a_warning(
    buffer_url: str, make_buffer: Any, caplog: Any
) -> None:
    buffer = filled(buffer_url, max_capacity=4, make_buffer=make_buffer)
    buffer.delete(QueryBuilder().eq("seq", 4))
    assert buffer.annotate([1, 2, 3, 4, 99, -5], reward=0.0) == 1
    assert buffer.annotate([1, 2], reward=0.0) == 0
    said = [record.message.partition("buffer 'default': ")[2] for record in caplog.records]
    assert said == [
        "5 of 6 rows are not annotated, it does not hold them: 2 evicted, 1 deleted, "
        "2 never stored; seq -5, 1, 2, 4, 99",
        "2 of 2 rows are not annotated, it does not hold them: 2 evicted; seq 1, 2",
    ]
    assert buffer.annotate([], reward=0.0) == 0
    nothing = QueryBuilder().eq("exp_meta.task_id", "unknown")
    assert buffer.annotate(nothing, reward=0.0) == 0
    assert buffer.annotate([3, 5], reward=0.0) == 2
    assert len(caplog.records) == 2
    assert rewards(buffer) == {3: 0.0, 5: 0.0, 6: 6.0}


@both_layouts
@pytest.mark.parametrize("keep", [False, True])
def test_rows_that_were_acknowledged_and_have_left_are_named_in_a_warning(
    buffer_url: str, make_buffer: Any, keep: bool, caplog: Any
) -> None:
    settings = {"leases": True, "max_use": 1, "keep_expired": keep}
    buffer = filled(buffer_url, make_buffer=make_buffer, **settings)
    with buffer.lease(2, order="fifo") as batch:
        seqs = batch.seqs
        assert buffer.annotate(seqs, adv_t=0.5) == 2
    of_batch = QueryBuilder().lte("seq", 2).build()
    assert [buffer.annotate(rows, adv_t=1.0) for rows in (seqs, of_batch)] == [2 * keep] * 2
    said = [record.message.partition("buffer 'default': ")[2] for record in caplog.records]
    left = "(keep_expired=True keeps them); seq 1, 2"
    expected = [
        "2 of 2 rows are not annotated, it does not hold them: 2 deleted or used up under a lease "
        + left,
        "no row matches the condition of annotate(); rows that were used up under a lease have "
        "left; keep_expired=True keeps them",
    ]
    assert said == ([] if keep else expected)


@both_layouts
def test_the_highest_version_holds_whichever_came_last(buffer_url: str, make_buffer: Any) -> None:
    buffer = filled(buffer_url, 1, make_buffer=make_buffer)
    buffer.annotate([1], reward=7.0, extra={"a": 7, "b": 7}, version=7)
    buffer.annotate([1], reward=5.0, adv_t=5.0, extra={"a": 5, "c": 5}, version=5)
    data = next(iter(buffer)).exp_data
    assert (data.reward_t, data.adv_t) == (7.0, 5.0)
    assert data.extra == {"own": 1, "a": 7, "b": 7, "c": 5}
    assert buffer.annotate([1], reward=8.0) == 1
    assert rewards(buffer) == {1: 8.0}
    history = "SELECT version, reward_t FROM label_history ORDER BY version"
    assert run(buffer_url, history) == [(5, 5.0), (7, 7.0), (8, 8.0)]


def test_versions_begin_at_one_and_go_on_from_the_highest_of_the_rows(buffer_url: str) -> None:
    buffer = filled(buffer_url, 3)
    buffer.annotate([1, 2], reward=0.0)
    buffer.annotate([2], reward=0.0)
    buffer.annotate([1, 2, 3], reward=0.0)
    history = run(buffer_url, "SELECT seq, version FROM label_history ORDER BY seq, version")
    assert history == [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 3)]


def test_the_same_version_again_adds_to_itself(buffer_url: str) -> None:
    buffer = filled(buffer_url, 1)
    for _ in range(2):
        buffer.annotate([1], reward=1.5, extra={"a": 1, "b": 1}, version=3)
    buffer.annotate([1], adv_t=2.5, extra={"b": 2}, version=3)
    assert scalar(buffer_url, "SELECT count(*) FROM label_history") == 1
    data = next(iter(buffer)).exp_data
    assert (data.reward_t, data.adv_t, data.extra) == (1.5, 2.5, {"own": 1, "a": 1, "b": 2})


@both_layouts
def test_late_keys_are_merged_into_the_extra_of_a_row(buffer_url: str, make_buffer: Any) -> None:
    buffer = make_buffer(buffer_url)
    array = np.arange(3)
    for extra in (None, {"deep": {"a": 1}}, {"array": array}, {1: "one", "x": 0}, {"$s": 1}, {}):
        buffer.add(state=0, extra=extra)
    late = {"deep": {"b": None}, "x": [1, None], "$s": "$", 'a"b.c\n': float("inf"), "ü": "\0"}
    assert buffer.annotate(range(1, 7), extra=late) == 6
    found = extras(buffer)
    assert np.array_equal(found[2].pop("array"), array)
    assert found == [late, late, late, {1: "one", **late}, late, late]
    is_there = QueryBuilder().eq("exp_data.extra.deep.b", None)
    assert buffer.size(is_there.and_().eq("exp_data.extra.x[0]", 1)) == 5  # not in one of pairs


def test_a_reward_that_no_column_holds_gives_way(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url, fields={"x": "int64"})
    buffer.extend({"x": [1, 2, 3], "reward": [np.nan, -0.0, 1.0], "extra": [None, {"a": 1}, None]})
    is_missing = QueryBuilder().is_null("exp_data.reward_t").build()
    assert buffer.size(is_missing) == 0
    buffer.annotate([1, 2], reward=[0.5, 0.25])
    assert list(rewards(buffer).values()) == [0.5, 0.25, 1.0]
    assert sorted(buffer.sample_arrays(64).reward)[:1] == [0.25]
    assert not np.isnan(buffer.sample_arrays(64).reward).any()
    assert extras(buffer) == [None, {"a": 1}, None]
    assert buffer.size(is_missing) == 0


def test_another_value_than_the_tagged_one_leaves_the_tag(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url)
    buffer.add(state=0, reward=float("nan"), adv_t=float("nan"))
    buffer.annotate([1], adv_t=1.0)
    data = next(iter(buffer)).exp_data
    assert np.isnan(data.reward_t)
    assert (data.adv_t, data.extra) == (1.0, None)


def test_what_is_stored_again_is_compared_with_the_rows_own_values(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url)
    sent = {"id": "a", "state": 0, "reward": 1.0, "extra": {"a": 1}, "execute_time": 1.0}
    buffer.add(**sent)
    buffer.annotate([1], reward=2.0, extra={"a": 2})
    assert buffer.add(**sent).duplicates == 1
    assert buffer.add(**{**sent, "reward": 2.0, "extra": {"a": 2}}).conflicts == 1


@both_layouts
def test_a_row_that_leaves_takes_its_labels_along(buffer_url: str, make_buffer: Any) -> None:
    buffer = filled(buffer_url, 4, max_capacity=4, make_buffer=make_buffer)
    buffer.annotate([1, 2, 3, 4], reward=0.0)
    buffer.add(state=5)
    buffer.delete(QueryBuilder().eq("seq", 3).build())
    for table in ("labels", "label_history"):
        assert run(buffer_url, f"SELECT seq FROM {table} ORDER BY seq") == [(2,), (4,)]
    buffer.clear()
    for table in ("labels", "label_history"):
        assert scalar(buffer_url, f"SELECT count(*) FROM {table}") == 0


def test_a_buffer_that_is_dropped_takes_its_labels_along(buffer_url: str) -> None:
    buffer = filled(buffer_url, 2)
    buffer.annotate([1], reward=0.0)
    ReplayBuffer.drop(buffer_url, "default")
    for table in ("labels", "label_history"):
        assert scalar(buffer_url, f"SELECT count(*) FROM {table}") == 0


def test_another_process_sees_labels_with_its_next_call(buffer_url: str) -> None:
    buffer = filled(buffer_url, 3)
    other = ReplayBuffer(buffer_url)
    assert {row.exp_data.reward_t for row in other.sample(3)} == {1.0, 2.0, 3.0}
    buffer.annotate([1, 2, 3], reward=9.0)
    assert {row.exp_data.reward_t for row in other.sample(3)} == {9.0}


def test_rows_themselves_are_not_written(buffer_url: str) -> None:
    buffer = filled(buffer_url, 2)
    before = run(buffer_url, "SELECT * FROM experiences ORDER BY seq")
    buffer.annotate([1, 2], reward=0.0, extra={"a": 1})
    assert run(buffer_url, "SELECT * FROM experiences ORDER BY seq") == before
    assert stored_rows(buffer_url) == 2


def test_equal_numbers_take_the_last(buffer_url: str) -> None:
    buffer = filled(buffer_url, 2)
    assert buffer.annotate([2, 1, 2], reward=[1, 2, 3], extra=[{"i": i} for i in range(3)]) == 2
    assert rewards(buffer) == {1: 2.0, 2: 3.0}
    assert extras(buffer) == [{"own": 1, "i": 1}, {"own": 2, "i": 2}]


def test_more_rows_than_are_written_at_once(buffer_url: str, monkeypatch: Any) -> None:
    from sqlbuffer.storage.labels import writing

    monkeypatch.setattr(writing, "ROWS_AT_ONCE", 3)
    buffer = filled(buffer_url, 8)
    seqs = np.arange(8, 0, -1)
    assert buffer.annotate(seqs, reward=seqs * 10.0) == 8
    assert rewards(buffer) == {i: 10.0 * i for i in range(1, 9)}
    buffer.annotate([8], reward=0.0)
    assert buffer.annotate(seqs, adv_t=1) == 8
    versions = run(buffer_url, "SELECT DISTINCT version FROM label_history ORDER BY version")
    assert versions == [(1,), (2,), (3,)]


def test_labels_of_other_buffers_do_not_matter(buffer_url: str) -> None:
    buffer = filled(buffer_url, 2)
    other = filled(buffer_url, 2, name="other")
    buffer.annotate([1, 2], reward=0.0)
    other.annotate([1], reward=9.0)
    assert rewards(buffer) == {1: 0.0, 2: 0.0}
    assert rewards(other) == {1: 9.0, 2: 2.0}
    assert buffer_id(buffer_url) != buffer_id(buffer_url, "other")


ROWS: dict[str, Any] = {
    "no number": "x",
    "float": [1.0],
    "bool": [True],
    "single": 1,
    "pairs": [[1]],
}
VALUES: dict[str, Any] = {
    "nothing": {},
    "nan": {"reward": float("nan")},
    "inf": {"adv_t": [0.0, float("inf")]},
    "bool": {"reward": True},
    "bools": {"v_t": [True, False]},
    "text": {"reward": "1"},
    "none inside": {"reward": [1.0, None]},
    "shape": {"reward": [1.0, 2.0, 3.0]},
    "twice": {"reward": 1.0, "reward_t": 1.0},
    "extra list": {"extra": [{"a": 1}]},
    "extra text": {"extra": "a"},
    "extra empty": {"extra": {}},
    "extra none": {"extra": [{"a": 1}, None]},
    "extra array": {"extra": {"a": np.zeros(3)}},
    "extra bytes": {"extra": {"a": b"x"}},
    "extra key": {"extra": {1: 2}},
    "extra object": {"extra": {"a": object()}},
    "version": {"reward": 1.0, "version": True},
    "version text": {"reward": 1.0, "version": "1"},
    "version large": {"reward": 1.0, "version": 2**63},
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_refuses_rows_that_are_none(sqlite_url: str, rows: Any) -> None:
    buffer = filled(sqlite_url, 2)
    with pytest.raises(FieldError, match="seqs"):
        buffer.annotate(rows, reward=1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_refuses_values_that_no_label_has(sqlite_url: str, values: dict[str, Any]) -> None:
    buffer = filled(sqlite_url, 2)
    with pytest.raises(FieldError):
        buffer.annotate([1, 2], **values)
    assert scalar(sqlite_url, "SELECT count(*) FROM label_history") == 0


@pytest.mark.parametrize("empty", [None, {}, QueryBuilder()], ids=["none", "dict", "builder"])
def test_refuses_an_empty_condition(sqlite_url: str, empty: Any) -> None:
    with pytest.raises(ConditionError, match="condition"):
        filled(sqlite_url, 1).annotate(empty, reward=1.0)


def test_a_condition_takes_one_value_for_all(sqlite_url: str) -> None:
    every = QueryBuilder().gte("seq", 0).build()
    for values in ({"reward": [1.0, 2.0]}, {"extra": [{"a": 1}, {"a": 2}]}):
        with pytest.raises(FieldError):
            filled(sqlite_url, 2).annotate(every, **values)


@pytest.mark.parametrize("wrong", ["one number", "rows"])
def test_says_how_rows_are_named(buffer_url: str, wrong: str) -> None:
    buffer = filled(buffer_url, 2)
    given = {"one number": 1, "rows": list(buffer)}[wrong]
    with pytest.raises(FieldError, match=r"\[row\.seq for row in rows\]") as raised:
        buffer.annotate(given, reward=0.0)
    assert len(str(raised.value)) < 200
    assert rewards(buffer) == {1: 1.0, 2: 2.0}


def test_takes_numbers_of_any_library(
    sqlite_url: str, make_database_url: Callable[..., str]
) -> None:
    torch = pytest.importorskip("torch")
    buffer = filled(sqlite_url, 2)
    assert buffer.annotate(torch.tensor([1, 2]), reward=torch.tensor([1.5, 2.5])) == 2
    assert buffer.annotate((1,), reward=np.float32(0.5), version=np.int64(9)) == 1
    assert rewards(buffer) == {1: 0.5, 2: 2.5}


def test_the_highest_version_there_is_leaves_no_next(sqlite_url: str) -> None:
    buffer = filled(sqlite_url, 1)
    buffer.annotate([1], reward=1.0, version=2**63 - 1)
    with pytest.raises(FieldError, match="highest version"):
        buffer.annotate([1], reward=2.0)


def test_texts_that_look_like_tags_are_texts(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url)
    odd = {"x": "$reals", "y": ["$none"], "$reals": 1}
    buffer.add(state=0, extra=odd)
    assert extras(buffer) == [odd]
    buffer.annotate([1], extra={"z": "$reals"})
    assert extras(buffer) == [{**odd, "z": "$reals"}]


def test_labels_whose_rows_left_meanwhile_are_swept(postgres_url: str) -> None:
    buffer = filled(postgres_url, 4, max_capacity=3)
    buffer.annotate([2, 3], reward=0.0)
    orphan = "INSERT INTO {} (buffer_id, seq{}) SELECT id, 1{} FROM buffers"
    run(postgres_url, orphan.format("labels", "", ""))
    run(postgres_url, orphan.format("label_history", ", version", ", 1"))
    run(postgres_url, "SELECT sqlbuffer_sweep_v1()")
    for table in ("labels", "label_history"):
        assert run(postgres_url, f"SELECT seq FROM {table} ORDER BY seq") == [(2,), (3,)]


def test_a_set_of_rows_takes_one_value_for_all(buffer_url: str) -> None:
    buffer = filled(buffer_url, 4)
    assert buffer.annotate({4, 2, 99}, reward=7.0, extra={"judge": "a"}) == 2
    assert buffer.annotate(frozenset(), reward=1.0) == 0
    assert rewards(buffer) == {1: 1.0, 2: 7.0, 3: 3.0, 4: 7.0}
    with pytest.raises(FieldError, match=r"reward_t: .* a set of rows, takes one number for all"):
        buffer.annotate({4, 2}, reward=[7.0, 8.0])
    with pytest.raises(FieldError, match="annotate"):
        buffer.annotate({"a"}, reward=7.0)


# Rows that leave while they are annotated.


LEFT = (
    "SELECT seq FROM {} n WHERE NOT EXISTS "
    "(SELECT 1 FROM experiences e WHERE e.buffer_id = n.buffer_id AND e.seq = n.seq)"
)


def left_behind(url: str) -> list[Any]:
    """Return what the tables of labels have of rows that are gone."""
    return [run(url, LEFT.format(table)) for table in ("labels", "label_history")]


def interrupted(name: str, by: Callable[[], object]) -> Callable[..., Any]:
    """Return a method of `Labelling` that has something else happen first."""
    method = getattr(Labelling, name)

    def interrupting(*args: Any, **kwargs: Any) -> Any:
        by()
        return method(*args, **kwargs)

    return interrupting


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["_begin_labels", "_write_portion", "change_returns"])
def test_rows_that_are_evicted_meanwhile_leave_no_labels(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with ReplayBuffer(postgres_url, max_capacity=4, create=True) as buffer:
        buffer.extend({"reward": [1.0] * 4})
        buffer.annotate([4], reward=2.0)  # no first one, which holds the row of the buffer

        def evict() -> None:
            buffer.extend({"reward": [1.0] * 2})

        monkeypatch.setattr(Labelling, method, interrupted(method, evict))
        n_rows = buffer.annotate([1, 2, 3], reward=3.0)
        monkeypatch.undo()
        assert n_rows == (1 if method == "_begin_labels" else 3)
        evict()
        assert left_behind(postgres_url) == [[], []]
        assert [row.seq for row in buffer] == [5, 6, 7, 8]


@pytest.mark.thorough
@pytest.mark.slow
def test_annotations_race_with_writers_and_leave_nothing_behind(buffer_url: str) -> None:
    with ReplayBuffer(buffer_url, max_capacity=30, create=True) as buffer:
        buffer.extend({"reward": [0.0] * 30})
        annotated, done = threading.Event(), threading.Event()

        def write() -> None:
            for n_writes in range(2_000):  # a busy machine may evict for long what is annotated
                buffer.extend({"reward": [0.0] * 10})
                if n_writes >= 60 and annotated.is_set():
                    break
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not done.is_set():
            high = max(row.seq or 0 for row in buffer.sample(4))
            if buffer.annotate(range(high - 40, high + 1), reward=1.0):
                annotated.set()
        writer.join()
        buffer.extend({"reward": [0.0] * 10})  # what was held when it was its turn
        assert annotated.is_set()
        assert left_behind(buffer_url) == [[], []]
