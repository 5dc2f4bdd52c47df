"""What every measurement is given: a database kind, fresh databases of it, and how large to go."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from tests.benchmarks.rows import RowMaker
from tests.support.postgres import PostgresServer
from tests.support.storage_hooks import close_pool, engine_of

FULL_ROWS = 1_000_000
USUAL_ROWS = 200_000  # in about ten minutes
LOAD_BATCH = 10_000
_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}  # as SQLite numbers them


@dataclass(frozen=True)
class Scale:
    """How large a run is; the targets are for the full one.

    Attributes:
        rows: Rows of the large buffer.
    """

    rows: int = FULL_ROWS

    @property
    def full(self) -> bool:
        """Whether the targets are set for this size."""
        return self.rows == FULL_ROWS

    @property
    def small_rows(self) -> int:
        """Rows of the buffer that the large one is compared with."""
        return max(self.rows // 100, 300)

    @property
    def capacity(self) -> int:
        """Capacity of the buffers that are written to."""
        return max(self.rows // 10, 1_000)

    def times(self, n: int) -> int:
        """Return how often to do what a full run does n times."""
        return max(1, round(n * self._share))

    def seconds(self, n: float) -> float:
        return max(0.05, n * self._share)

    @property
    def _share(self) -> float:
        return min(1.0, self.rows / FULL_ROWS)


@dataclass(frozen=True)
class Bench:
    """Where measurements run.

    Attributes:
        kind: sqlite or postgresql.
        scale: How large.
        server: The PostgreSQL server, where that is the kind.
        restart: Restarts it with cold caches; None where it is not ours to restart.
        say: Tells the person who waits what is going on.
    """

    kind: str
    scale: Scale
    server: PostgresServer | None
    restart: Callable[[], None] | None
    say: Callable[[str], None]

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of an empty database, gone afterwards."""
        if self.server is None:
            folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-bench-"))
            url = f"sqlite:///{folder}/replay.db"
        else:
            url = self.server.create_database()
        try:
            yield url
        finally:
            close_pool(url)
            if self.server is None:
                shutil.rmtree(folder)
            else:
                self.server.drop_database(url)

    @property
    def label(self) -> str:
        """The database and the durability that the library has it run with."""
        name = "SQLite" if self.kind == "sqlite" else "PostgreSQL"
        return f"{name}, {self.durability}"

    @cached_property
    def durability(self) -> str:
        """What the library's connections say of it."""
        with self.database() as url, ReplayBuffer(url, create=True):
            engine = engine_of(url)
            with engine.connect() as connection:
                if self.kind == "sqlite":
                    mode = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
                    return f"synchronous={_SYNCHRONOUS[mode]}"
                mode = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
                return f"synchronous_commit={mode}"


def filled(
    url: str, n_rows: int, *, maker: RowMaker | None = None, **settings: Any
) -> ReplayBuffer:
    """Return a new buffer that holds n rows, stored by the library."""
    maker = RowMaker() if maker is None else maker
    buffer = ReplayBuffer(url, create=True, **settings)
    for start in range(0, n_rows, LOAD_BATCH):
        buffer.store_batch(maker.batch(min(LOAD_BATCH, n_rows - start)))
    return buffer


def file_of(url: str) -> Path:
    return Path(make_url(url).database or "")


def random_numbers(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)
