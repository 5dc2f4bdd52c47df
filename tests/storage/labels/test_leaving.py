"""Rows that leave while they are annotated."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.labels.writing import Labelling
from tests.support.sql import run

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
@pytest.mark.parametrize("method", ["_begin_labels", "_write_portion", "_change_returns"])
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
        done = threading.Event()

        def write() -> None:
            for _ in range(60):
                buffer.extend({"reward": [0.0] * 10})
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        n_annotated = 0
        while not done.is_set():
            high = max(row.seq or 0 for row in buffer.sample(4))
            n_annotated += buffer.annotate(range(high - 40, high + 1), reward=1.0)
        writer.join()
        buffer.extend({"reward": [0.0] * 10})  # what was held when it was its turn
        assert n_annotated > 0
        assert left_behind(buffer_url) == [[], []]
