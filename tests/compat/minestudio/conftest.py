from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sqlbuffer.compat.minestudio import ReplayBufferInterface

CONFIG = {"max_chunks": 4, "max_staleness": 1, "max_reuse": 2, "fragments_per_chunk": 1}
Make = Callable[..., ReplayBufferInterface]


@pytest.fixture
def make(buffer_url: str) -> Iterator[Make]:
    """Make a buffer; the test runs once for each database."""
    made: list[ReplayBufferInterface] = []

    def make(**changes: Any) -> ReplayBufferInterface:
        options = {n: changes.pop(n) for n in ("seed", "report", "name") if n in changes}
        made.append(ReplayBufferInterface({**CONFIG, **changes}, url=buffer_url, **options))
        return made[-1]

    yield make
    for buffer in made:
        buffer.close()


@pytest.fixture
def attach(buffer_url: str) -> Iterator[Make]:
    """Open the same buffer once more, as another process does."""
    opened: list[ReplayBufferInterface] = []

    def attach(**options: Any) -> ReplayBufferInterface:
        opened.append(ReplayBufferInterface(url=buffer_url, **options))
        return opened[-1]

    yield attach
    for buffer in opened:
        buffer.close()
