"""`resize` and `delete` say what they destroy, and ask."""

import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import ODD_TASK
from tests.support.array_rows import make_array_row
from tests.support.cli_errors import error_lines
from tests.support.stepped_rows import steps_of, tasks_of


def held(url, name="arrays"):
    with ReplayBuffer(url, name=name, create=False) as buffer:
        return list(buffer)


@pytest.fixture
def arrays(run, filled):
    """Run a command on the buffer `arrays`."""
    return lambda command, *words: run(command, filled, *words, "--buffer", "arrays")


def test_growing_does_not_ask(arrays, filled):
    result = arrays("resize", "1,000")
    assert result.exit_code == 0
    assert result.stdout == (
        "buffer 'arrays': capacity 100 -> 1,000; 0 rows left it, it holds 20\n"
    )
    assert arrays("resize", "unlimited").exit_code == 0
    with ReplayBuffer(filled, name="arrays") as buffer:
        assert buffer.max_capacity is None


def test_shrinking_to_what_is_held_does_not_ask(arrays):
    assert arrays("resize", "20").exit_code == 0


@pytest.mark.thorough
def test_shrinking_says_how_many_rows_leave_and_wants_yes(arrays, filled):
    result = arrays("resize", "8")
    assert result.exit_code == 2
    assert "12 of 20 rows leave buffer 'arrays' for good" in result.stderr
    assert "--yes" in result.stderr
    assert len(held(filled)) == 20
    result = arrays("resize", "8", "--yes")
    assert result.exit_code == 0
    assert "capacity 100 -> 8; 12 rows left it, it holds 8" in result.stdout
    assert [row.exp_meta.step for row in held(filled)] == [2, 3, 4, 0, 1, 2, 3, 4]


@pytest.mark.thorough
def test_holes_count_when_a_buffer_shrinks(arrays, filled):
    assert arrays("delete", "--task", "task_2", "--yes").exit_code == 0
    result = arrays("resize", "8")
    assert "10 of 15 rows leave" in result.stderr
    assert "10 rows left it, it holds 5" in arrays("resize", "8", "--yes").stdout


def test_a_buffer_that_evicts_by_task_loses_whole_tasks(run, schema_url):
    with ReplayBuffer(schema_url, max_capacity=100, evict_by="task") as buffer:
        buffer.store_batch([make_array_row(task=n // 5, step=n % 5) for n in range(20)])
    result = run("resize", schema_url, "12")
    assert "8 of 20 rows, and the rest of their tasks, leave" in result.stderr
    assert "10 rows left it, it holds 10" in run("resize", schema_url, "12", "-y").stdout


@pytest.mark.thorough
@pytest.mark.parametrize("capacity", ["0", "five", "1.5", "", "1e3", "²"])
def test_a_capacity_that_is_none_is_a_usage_error(arrays, capacity):
    result = arrays("resize", capacity)
    assert result.exit_code == 2
    assert "unlimited" in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--task", "task_1"), {"task_0", "task_2", "task_3"}),
        (("--task", "task_1", "--task", "task_2"), {"task_0", "task_3"}),
        (("--eq", "task_id=task_0"), {"task_1", "task_2", "task_3"}),
        (
            ("--condition", '{"field": "exp_meta.task_id", "op": "ne", "value": "task_3"}'),
            {"task_3"},
        ),
        (("--all-rows",), set()),
    ],
)
def test_delete_says_how_many_rows_and_wants_yes(arrays, filled, options, left):
    gone = 5 * (4 - len(left))
    result = arrays("delete", *options)
    assert result.exit_code == 2
    assert f"{gone} of 20 rows of buffer 'arrays' are deleted for good" in result.stderr
    assert len(held(filled)) == 20
    result = arrays("delete", *options, "--yes")
    assert result.exit_code == 0
    assert f"deleted {gone} rows of buffer 'arrays'; {20 - gone} are left" in result.stdout
    assert set(tasks_of(held(filled))) == left
    assert len(held(filled, "talks")) == 2


@pytest.mark.thorough
def test_a_task_of_any_name_is_deleted_and_no_other(run, filled):
    with ReplayBuffer(filled, name="talks") as buffer:
        buffer.add(task_id=ODD_TASK[:-1], step=7)
    assert run("delete", filled, "--buffer", "talks", "--task", ODD_TASK, "-y").exit_code == 0
    assert steps_of(held(filled, "talks")) == [7]


def test_a_whole_buffer_is_deleted_with_its_name(run, filled):
    result = run("delete", filled, "--buffer", "talks", "--whole-buffer")
    assert result.exit_code == 2
    assert "buffer 'talks' is deleted for good, with 2 rows" in result.stderr
    result = run("delete", filled, "--buffer", "talks", "--whole-buffer", "--yes")
    assert result.stdout == "deleted buffer 'talks' with 2 rows; 2 buffers are left\n"
    assert ReplayBuffer.list(filled) == ["arrays", "empty"]


def test_a_whole_buffer_has_to_be_named(run, schema_url):
    ReplayBuffer(schema_url).close()
    result = run("delete", schema_url, "--whole-buffer", "--yes")
    assert result.exit_code == 2
    assert "--buffer NAME" in result.stderr
    assert ReplayBuffer.list(schema_url) == ["default"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--yes",),
        ("--task", "task_1", "--all-rows", "--yes"),
        ("--eq", "step=1", "--task", "task_1", "--yes"),
        ("--all-rows", "--whole-buffer", "--yes"),
        ("--condition", "{}", "--yes"),
        ("--condition", "[]", "--yes"),
    ],
)
def test_nothing_is_deleted_unless_one_thing_is_chosen(arrays, filled, options):
    result = arrays("delete", *options)
    assert result.exit_code == 2
    assert len(error_lines(result.stderr)) == 1
    assert len(held(filled)) == 20


def test_one_misspelt_task_keeps_the_others(arrays, filled):
    result = arrays("delete", "--task", "task_1", "--task", "task_11", "--yes")
    assert result.exit_code == 3
    assert "no task 'task_11' in buffer 'arrays'; did you mean 'task_1'" in result.stderr
    assert len(held(filled)) == 20


def test_nothing_that_matches_is_nothing_to_delete(arrays):
    result = arrays("delete", "--eq", "step=99")
    assert result.exit_code == 0
    assert "nothing to delete" in result.stdout
