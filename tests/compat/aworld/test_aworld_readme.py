"""The code blocks of the README of AWorld's replay buffer run with only their imports changed.

`aworld_readme.md` is that of AWorld 0.2.7. What its blocks take for granted (names of earlier
blocks, `import time`, a function for the writers) is given to them from here.
"""

import multiprocessing
import re
import textwrap
import time
from pathlib import Path

import pytest

from sqlbuffer.compat.aworld import (
    ActionModel,
    DefaultConverter,
    Observation,
    QueryBuilder,
    RandomTaskSample,
    ReplayBuffer,
)
from tests.compat.aworld.aworld_rows import row, write_processing
from tests.support.processes import FRESH

README = Path(__file__).with_name("aworld_readme.md").read_text()
BLOCKS = {
    title: textwrap.dedent(code)
    for title, code in re.findall(r"^#+ ([^\n]+)\n+```python\n(.*?)^```", README, re.M | re.S)
}
MODULES = {
    "from aworld.replay_buffer": "from sqlbuffer.compat.aworld",
    "from aworld.core.common": "from sqlbuffer.compat.aworld.common",
}


def run(title, **names):
    """Run a block in a namespace of these names; return it."""
    code = BLOCKS[title]
    for theirs, ours in MODULES.items():
        code = re.sub(rf"^{re.escape(theirs)}\b", ours, code, flags=re.M)
    assert "aworld" not in code.replace("sqlbuffer.compat.aworld", "")
    exec(compile(code, title, "exec"), names)
    return names


def evaluate(title):
    """Return the value of a block that is one expression, written without its parentheses."""
    return eval(f"({BLOCKS[title]})", {"QueryBuilder": QueryBuilder})


SAMPLING = {"RandomTaskSample": RandomTaskSample, "DefaultConverter": DefaultConverter}


def test_every_block_is_run_by_a_test():
    assert list(BLOCKS) == [
        "Writing Data",
        "Reading Data",
        "Multi-processing Example",
        "Simple Equality",
        "Complex Conditions",
        "Nested Conditions",
    ]
    assert len(BLOCKS) == README.count("```python")


def test_writing_block_stores_its_row():
    replay_buffer = ReplayBuffer()
    data = run("Writing Data", time=time, replay_buffer=replay_buffer)["data"]
    ((stored,),) = replay_buffer.sample_task()
    assert stored == data
    assert stored.exp_data.state == Observation()
    assert stored.exp_data.actions == [ActionModel()]


def test_reading_block_finds_nothing_in_its_own_new_buffer():
    assert run("Reading Data", ReplayBuffer=ReplayBuffer, **SAMPLING)["data"] == []


def test_reading_block_finds_the_tasks_of_an_agent():
    filled = ReplayBuffer()
    filled.store_batch([row("task_1", 1), row("task_1", 2, "agent_2"), row("task_2", 1, "agent_2")])
    found = run("Reading Data", ReplayBuffer=lambda: filled, **SAMPLING)["data"]
    assert [[r.exp_meta.step for r in task] for task in found] == [[1, 2]]


@pytest.fixture(params=["fork", FRESH])
def start_method(request):
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.thorough
@pytest.mark.slow
def test_multi_processing_block_keeps_the_rows_of_four_writers(start_method):
    names = run(
        "Multi-processing Example", ReplayBuffer=ReplayBuffer, write_processing=write_processing
    )
    for process in names["processes"]:
        process.start()
    for process in names["processes"]:
        process.join(60)
    assert [process.exitcode for process in names["processes"]] == [0] * 4
    tasks = names["replay_buffer"].sample_task()
    found = sorted((r.exp_meta.task_id, r.exp_meta.step) for task in tasks for r in task)
    assert found == [(f"task_{i}", step) for i in range(4) for step in range(10)]
    names["manager"].shutdown()


def test_simple_equality_block_builds_a_leaf():
    assert evaluate("Simple Equality") == {"field": "exp_meta.task_id", "value": "123", "op": "eq"}


def test_complex_conditions_block_builds_an_and():
    assert evaluate("Complex Conditions") == {
        "and_": [
            {"field": "exp_meta.task_id", "value": "123", "op": "eq"},
            {"field": "exp_meta.agent_id", "value": "456", "op": "eq"},
        ]
    }


def test_nested_conditions_block_groups_to_the_right():
    either = [
        {"field": "exp_meta.agent_id", "value": agent, "op": "eq"} for agent in ("111", "222")
    ]
    assert evaluate("Nested Conditions") == {
        "and_": [{"field": "exp_meta.task_id", "value": "123", "op": "eq"}, {"or_": either}]
    }
