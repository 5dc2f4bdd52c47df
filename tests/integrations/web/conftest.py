import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.support.browsing import Visit, running_chromium
from tests.support.web_server import served


@pytest.fixture(scope="module")
def chromium():
    """Yield a browser. Its driver's event loop runs in this thread, so not for other modules."""
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def visit(chromium):
    """Return what opens the page of a database; at the end no page has done what it must not."""
    with ExitStack() as stack:
        visits = []

        def open_page(url, **options):
            address = stack.enter_context(served(url))
            context = chromium.new_context(**options)
            stack.callback(context.close)
            visits.append(Visit(context, address))
            return visits[-1]

        yield open_page
        assert [trouble for one in visits for trouble in one.trouble] == []


def talk(task, n_turns, *, text="Add 2.", episode=None):
    """Return the steps of a conversation that grows."""
    said = [{"role": "system", "content": "Be brief."}]
    for step in range(n_turns):
        said = [*said, {"role": "user", "content": f"{text} {step}"}]
        call = {"id": f"c{step}", "type": "function"}
        call["function"] = {"name": "add", "arguments": f'{{"a": {step}}}'}
        answer = {"role": "assistant", "content": f"I add {step}.", "tool_calls": [call]}
        meta = ExpMeta(task, "chat", "solver", step, 1_700_000_000.0 + step, episode_id=episode)
        values = {"messages": [*said, answer], "terminated": step == n_turns - 1}
        yield DataRow(meta, Experience({}, ["say"], float(step), **values))
        said = [*said, answer, {"role": "tool", "tool_call_id": f"c{step}", "content": "4"}]


@pytest.fixture
def schema_url(make_database_url):
    """Return an empty database on SQLite: tests/web looks at the pages of both."""
    return make_database_url("sqlite", schema=True)


@pytest.fixture
def filled(schema_url):
    """Return a database with the buffers `arrays` (typed), `talks` and `empty`."""
    rng = np.random.default_rng(3)
    fields = {"obs": ("float32", (3,)), "frame": ("uint8", (8, 8))}
    with ReplayBuffer(schema_url, "arrays", max_capacity=1_000, fields=fields) as buffer:
        for number in range(20):
            buffer.store_episode(
                {
                    "obs": rng.normal(size=(5, 3)).astype(np.float32),
                    "frame": rng.integers(0, 255, (5, 8, 8)).astype(np.uint8),
                    "reward": rng.normal(size=5),
                },
                task_id=f"task {number // 4}",
                agent_id="walker",
                model_version=number,
            )
    with ReplayBuffer(schema_url, "talks") as buffer:
        for number in range(8):
            buffer.store_batch([*talk(f"talk {number // 4}", 3, episode=f"e{number}")])
    ReplayBuffer(schema_url, "empty", max_capacity=7).close()
    return schema_url


@contextmanager
def running_writer(url, name="running"):
    """Write steps to a buffer of its own until the end of the block."""
    stop, began = threading.Event(), threading.Event()

    def write():
        with ReplayBuffer(url, name) as buffer:
            while not stop.is_set():
                buffer.store_batch([*talk("task", 5)])
                began.set()
                stop.wait(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    assert began.wait(60)
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
