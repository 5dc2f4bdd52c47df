import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sqlbuffer.compat.memmap import ReplayBuffer
from tests.conftest import KINDS, close_pool

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


@pytest.fixture(scope="session", params=["model", *KINDS])
def shared_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str | None]:
    """Yield a database that many tests share, each with buffers of its own; None: the model."""
    if request.param == "model":
        yield None
    elif request.param == "sqlite":
        path = tmp_path_factory.mktemp("memmap") / "replay.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        close_pool(f"sqlite:///{path}")
    else:
        server = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template")
        url = server.create_database(template=template)
        yield url
        close_pool(url)
        server.drop_database(url)


_names = count()


@pytest.fixture
def new_buffer(shared_url: str | None) -> Iterator[Callable[..., Any]]:
    """Make empty buffers: of the model, and of both databases."""
    from tests.compat.memmap.datasets.loaded import SHAPE, LoadedModel

    made: list[ReplayBuffer] = []

    def new_buffer(**settings: Any) -> Any:
        if shared_url is None:
            return LoadedModel(**{**SHAPE, **settings})
        name = f"loaded_{next(_names)}"
        made.append(ReplayBuffer(shared_url, name=name, **{**SHAPE, **settings}))
        return made[-1]

    yield new_buffer
    for buffer in made:
        buffer.close()


@pytest.fixture(scope="session")
def filled_once(shared_url: str | None) -> Iterator[Any]:
    """Yield a filled buffer that no test writes to."""
    from tests.compat.memmap.datasets.loaded import SHAPE, LoadedModel, fill

    if shared_url is None:
        yield fill(LoadedModel(**SHAPE))
        return
    buffer = fill(ReplayBuffer(shared_url, name="filled", **SHAPE))
    yield buffer
    buffer.close()


@pytest.fixture
def buffer(filled_once: Any) -> Any:
    return filled_once
