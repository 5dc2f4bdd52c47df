"""What a user types first: short rows, the arrays of a batch, how long a loader is."""

import inspect
import time
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import (
    DataRow,
    EpisodeWriter,
    Experience,
    ExpMeta,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
)
from sqlbuffer.aio import AsyncEpisodeWriter, AsyncReplayBuffer
from sqlbuffer.cli import app
from sqlbuffer.errors import BufferConfigError, ConditionError, FieldError
from sqlbuffer.fields import Casting
from sqlbuffer.front.leasing import Leasing
from sqlbuffer.front.reading import Conditions, RowDecoding, RowReader
from sqlbuffer.front.row_changes import RowChanges
from sqlbuffer.front.sampling import BatchSampler, converted
from sqlbuffer.front.writing import StepWriter
from sqlbuffer.loading.modes import TAKES, LoaderSettings, Mode
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.steps import StepKeys
from tests.support.rows import make_row
from tests.support.storage_hooks import open_store

FIELDS = {"x": "int64"}


@pytest.fixture(params=[None, FIELDS], ids=["rows", "chunks"])
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, fields=request.param) as buffer:
        yield buffer


def fields_of(buffer, value):
    return {name: np.int64(value) for name in buffer.fields}


def test_a_task_is_enough_for_a_row(buffer):
    meta = ExpMeta("t1")
    assert (meta.task_name, meta.agent_id, meta.step, meta.execute_time) == (
        None,
        "default",
        0,
        None,
    )
    before = time.time()
    rows = [
        DataRow(ExpMeta("t1"), Experience(), fields=fields_of(buffer, 0)),
        DataRow(ExpMeta("t1", execute_time=5.0), Experience(), fields=fields_of(buffer, 1)),
    ]
    assert buffer.store_batch(rows).inserted == 2
    first, second = sorted(buffer.get_all(), key=lambda row: row.seq)
    assert before <= first.exp_meta.execute_time <= time.time()
    assert second.exp_meta.execute_time == 5.0
    assert rows[0].exp_meta.execute_time is None


def test_a_row_without_a_time_is_the_same_row_when_it_is_stored_again(buffer):
    row = DataRow(ExpMeta("t1"), Experience(), fields=fields_of(buffer, 0))
    assert buffer.store(row).inserted == 1
    time.sleep(0.01)
    result = buffer.store(row)
    assert (result.duplicates, result.conflicts) == (1, 0)


def test_a_batch_lists_its_arrays():
    with ReplayBuffer("sqlite://", fields=FIELDS) as buffer:
        buffer.extend({"x": range(4)})
        assert {"x", "info", "n_rows", "keys"} <= set(dir(buffer.sample_arrays(2)))


@pytest.mark.parametrize(("epochs", "drop_last", "n"), [(1, False, 3), (2, False, 6), (2, True, 4)])
def test_a_loader_of_passes_has_a_length(buffer_url, epochs, drop_last, n):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        buffer.extend({"x": range(10)})
        loader = buffer.loader("step", 4, epochs=epochs, drop_last=drop_last)
        assert len(loader) == n == sum(1 for _ in loader)


def test_a_loader_without_an_end_has_no_length():
    with ReplayBuffer("sqlite://", fields=FIELDS) as buffer:
        buffer.extend({"x": range(10)})
        loader = buffer.loader("step", 4)
        with pytest.raises(TypeError, match="give epochs"):
            len(loader)
        assert loader


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_names_of_commands(shell):
    words = {"bash": {"COMP_WORDS": "sqlbuffer sam", "COMP_CWORD": "1"}}.get(
        shell, {"_TYPER_COMPLETE_ARGS": "sqlbuffer sam", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    )
    result = CliRunner().invoke(
        app, [], prog_name="sqlbuffer", env={"_SQLBUFFER_COMPLETE": f"complete_{shell}", **words}
    )
    assert "sample" in result.output
    assert "delete" not in result.output


# The parts of `ReplayBuffer`, each made and used alone.


@pytest.fixture
def store(buffer_url):
    opened = open_store(buffer_url, priorities=True)
    yield opened
    opened.close()


@pytest.fixture
def decoding(store):
    return RowDecoding(store.source, None, None)


def stored(store, n=4):
    rows = [make_row(task=i % 2, step=i) for i in range(n)]
    result = StepWriter(store).store_rows(rows)
    assert (result.inserted, result.duplicates, result.conflicts) == (n, 0, 0)
    return rows, result


def test_the_writer_returns_the_numbers_in_the_order_of_the_call(store):
    rows, result = stored(store)
    assert result.seqs.tolist() == [1, 2, 3, 4]
    again = StepWriter(store).store_rows([make_row(step=9), *rows[::-1]])
    assert (again.inserted, again.duplicates) == (1, 4)
    assert again.seqs.tolist() == [5, 4, 3, 2, 1]


def test_the_reader_reads_what_the_writer_stored(store, decoding):
    rows, _ = stored(store)
    reader = RowReader(store.rows, decoding)
    assert [row.id for row in reader.all(EVERYTHING, None)] == [row.id for row in rows]
    assert [row.id for row in reader.page(EVERYTHING, 2, 3, None)] == [rows[3].id]
    assert [row.id for row in reader.tasks(["task_1"], None)["task_1"]] == [rows[1].id, rows[3].id]


def test_the_decoding_reads_the_fields_that_are_named(store, decoding):
    stored(store, 1)
    (row,) = RowReader(store.rows, decoding).all(EVERYTHING, ["reward_t"])
    assert row.exp_data.reward_t is not None
    assert row.exp_data.state is None
    with pytest.raises(FieldError):
        decoding.of(["nothing"])


def test_the_sampler_draws_rows_and_tasks(store, decoding):
    rows, _ = stored(store)
    sampler = BatchSampler(store, decoding)
    drawn = sampler.sample(RandomSampler(seed=1), 9, EVERYTHING, None, False, None)
    assert {row.id for row in drawn} == {row.id for row in rows}
    assert {len(task) for task in sampler.tasks(None, 9, EVERYTHING)} == {2}
    assert len(sampler.peek(RandomTaskSample(), 9, EVERYTHING)) == 2
    assert len(sampler.peek(None, 3, EVERYTHING)) == 3
    assert converted(len, drawn) == 4


def test_the_conditions_check_what_a_call_is_about(store):
    conditions = Conditions(store.info)
    assert conditions.node(None) == EVERYTHING
    assert conditions.rows([3, 1, 3], "quarantine") == [1, 3]
    with pytest.raises(ConditionError, match="quarantine"):
        conditions.rows(None, "quarantine")


def test_the_changes_reach_the_rows(store, decoding):
    _, result = stored(store)
    changes, seqs = RowChanges(store, Conditions(store.info)), sorted(result.seqs.tolist())
    assert changes.annotate(seqs[:2], {"reward_t": 0.5}, None, None, {}) == 2
    update = changes.update_priorities(np.array([*seqs, 99]), 0.25, 0.0)
    assert (update.updated, update.missing) == (4, 1)
    assert changes.quarantine([seqs[0]], "bad") == 1
    assert len(BatchSampler(store, decoding).sample(None, 9, EVERYTHING, None, False, None)) == 3
    assert changes.release([seqs[0]]) == 1


def test_leases_need_a_buffer_that_has_them(store, decoding):
    with pytest.raises(BufferConfigError, match="leases=True"):
        Leasing(store, decoding.whole).lease(
            1, EVERYTHING, EVERYTHING, group_by=None, min_group_size=None, group_size=None,
            group_timeout_s=None, on_partial="use", on_late="keep", incomplete="exclude",
            min_spread=None, on_flat="keep",
            require_reward=False, order="fifo", timeout_s=0, lease_s=1.0,
                consumer=None,
        )  # fmt: skip


KEYWORD = inspect.Parameter.KEYWORD_ONLY


def named(call: Callable[..., Any]) -> list[str]:
    """Return the parameters of a call that are given by name."""
    parameters = inspect.signature(call).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is KEYWORD]


def test_add_and_append_show_their_fixed_names() -> None:
    assert {"state", "reward", "task_id", "step", "priority"} <= set(named(ReplayBuffer.add))
    assert {"state", "reward", "terminated", "extra"} <= set(named(EpisodeWriter.append))
    assert "**fields" in str(inspect.signature(ReplayBuffer.add))
    assert "**fields" in str(inspect.signature(EpisodeWriter.append))


@pytest.mark.thorough
@pytest.mark.parametrize("name", named(ReplayBuffer.add))
@pytest.mark.parametrize("fields", [None, {"obs": "float32"}], ids=["rows", "typed"])
def test_a_fixed_name_of_add_that_is_none_is_left_out(
    fields: dict[str, str] | None, name: str, sqlite_url: str
) -> None:
    values = {"obs": 1.0} if fields else {"extra": {"x": 1}} if name != "extra" else {"state": 1}
    with ReplayBuffer(sqlite_url, fields=fields) as buffer:
        buffer.add(**values, **{name: None})
        buffer.add(**values)
        given, left_out = buffer.get_all()
    for row in (given, left_out):
        row.exp_meta.execute_time = row.exp_meta.step = 0
        row.id = ""
    assert given == left_out


def test_append_takes_each_of_its_fixed_names(sqlite_url: str) -> None:
    values = {name: 0.5 if name == "priority" else None for name in named(EpisodeWriter.append)}
    with ReplayBuffer(sqlite_url, priorities=True) as buffer, buffer.episode("t") as episode:
        episode.append(**values)
    assert episode.length == 1


def test_a_loader_takes_the_options_that_its_types_name() -> None:
    options = {*get_type_hints(LoaderSettings), "to_named_tuple", "mirror"}
    assert set(named(ReplayBuffer.loader)) == options
    assert get_args(Mode) == tuple(TAKES)


@pytest.mark.parametrize("casting", get_args(Casting))
def test_extend_takes_the_keys_and_castings_that_its_types_name(
    casting: Casting, sqlite_url: str
) -> None:
    keys = dict.fromkeys(get_type_hints(StepKeys))
    with ReplayBuffer(sqlite_url, fields={"obs": "float32"}) as buffer:
        assert buffer.extend({"obs": [1.0]}, casting=casting, **keys).inserted == 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (AsyncReplayBuffer.open, ReplayBuffer),
        (AsyncEpisodeWriter.append, EpisodeWriter.append),
        (AsyncEpisodeWriter.end, EpisodeWriter.end),
    ],
    ids=["open", "append", "end"],
)
def test_asyncio_takes_the_same_arguments(ours: Any, theirs: Any) -> None:
    own, given = (
        inspect.signature(call, eval_str=True).parameters.values() for call in (ours, theirs)
    )
    assert list(map(str, own)) == list(map(str, given))
