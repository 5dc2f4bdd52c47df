"""Rows as AWorld's users make them, and what runs in child processes."""

import time

from sqlbuffer.compat.aworld import ActionModel, DataRow, Experience, ExpMeta, Observation


def row(task_id="task_1", step=1, agent_id="agent_1", time=None, **keywords):
    meta = ExpMeta(task_id, "my_task", agent_id, step, float(step if time is None else time), None)
    return DataRow(meta, Experience(Observation(), [ActionModel()]), **keywords)


def rows(tasks, steps):
    return [row(f"task_{task}", step) for task in range(tasks) for step in range(steps)]


def steps_of(found):
    return [(row.exp_meta.task_id, row.exp_meta.step) for row in found]


def write_processing(replay_buffer, task_id, steps=10):
    for step in range(steps):
        replay_buffer.store(row(task_id, step))


def write_slowly(storage):
    """Write until the parent has reached its end, and then some."""
    for step in range(100):
        storage.add(row("task_1", step))
        time.sleep(0.01)
    assert storage.size() == 100
    print("written", flush=True)
