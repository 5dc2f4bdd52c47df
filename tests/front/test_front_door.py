"""What a user types first: short rows, the arrays of a batch, how long a loader is."""

import time

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.cli import app

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
