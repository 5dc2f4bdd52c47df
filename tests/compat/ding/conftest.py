from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sqlbuffer.compat.ding import create_buffer
from tests.conftest import KINDS

Make = Callable[..., Any]
PLACES = ["private", *KINDS]


def placed(kind: str, make_database_url: Any) -> dict[str, Any]:
    """Return the part of a config that says where: a new database, or in memory (`private`)."""
    return {} if kind == "private" else {"url": make_database_url(kind, schema=True)}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, make_database_url: Any) -> dict[str, Any]:
    return placed(request.param, make_database_url)


@pytest.fixture
def make(place: dict[str, Any]) -> Iterator[Make]:
    """Make a buffer of five items; the test runs once for each place."""
    made: list[Any] = []

    def make(kind: str = "naive", *, size: int = 5, name: str = "buffer", **changes: Any) -> Any:
        config = {"type": kind, "replay_buffer_size": size, **place, **changes}
        made.append(create_buffer(config, None, "experiment", name))
        return made[-1]

    yield make
    for buffer in made:
        buffer.close()


def held(buffer: Any) -> list[Any]:
    """Return the items, the oldest first."""
    state = buffer.state_dict()
    n, tail, size = state["valid_count"], state["tail"], len(state["data"])
    return [state["data"][(tail - n + i) % size] for i in range(n)]
