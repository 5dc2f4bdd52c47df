from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sqlbuffer.compat.memmap import ReplayBuffer

FIELDS = {"s": ("float", 2), "r": ("float", (), -1.0), "a": "int"}
META = {"task": ("int", (), -1), "goal": ("float", 3)}
Make = Callable[..., ReplayBuffer]


@pytest.fixture
def make(buffer_url: str) -> Iterator[Make]:
    """Make a buffer of three slots of four steps; the test runs once for each database."""
    made: list[ReplayBuffer] = []

    def make(**changes: Any) -> ReplayBuffer:
        given = {
            "max_episodes": 3, "max_timesteps": 4, "fields": FIELDS, "meta_fields": META,
            **changes,
        }  # fmt: skip
        made.append(ReplayBuffer(given.pop("folder", buffer_url), **given))
        return made[-1]

    yield make
    for buffer in made:
        buffer.close()


@pytest.fixture
def reopen(buffer_url: str) -> Iterator[Callable[..., ReplayBuffer]]:
    """Open the same database once more."""
    opened: list[ReplayBuffer] = []

    def reopen(folder: str | Path = buffer_url, **options: Any) -> ReplayBuffer:
        opened.append(ReplayBuffer.from_folder(folder, **options))
        return opened[-1]

    yield reopen
    for buffer in opened:
        buffer.close()
