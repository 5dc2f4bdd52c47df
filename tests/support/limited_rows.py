"""Rows with versions, and what the tables say of their uses."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.support.sql import buffer_id, run
from tests.support.storage_hooks import run_inside

NO_VERSION = -999
FIELDS = {"obs": ("float32", (1,))}


def rows_of(versions: Iterable[int | None], *, per_task: int = 1) -> list[DataRow]:
    """Return a row for each version; steps count on, and so do tasks."""
    return [
        DataRow(
            ExpMeta(f"t{i // per_task}", None, "a", i, float(i), model_version=version),
            Experience({"i": i}, [0]),
        )
        for i, version in enumerate(versions)
    ]


def versions_in(rows: Iterable[DataRow]) -> set[int | None]:
    return {row.exp_meta.model_version for row in rows}


def steps_in(rows: Iterable[DataRow]) -> list[int]:
    return sorted(row.exp_meta.step for row in rows)


def uses_in(url: str, name: str = "default") -> Counter[int]:
    """Return {seq: uses} of a buffer, without those that were never used."""
    statement = "SELECT seq, n_uses FROM uses WHERE buffer_id = :id AND n_uses > 0"
    return Counter(dict(run(url, statement, id=buffer_id(url, name))))


def arrays_of(n: int) -> dict[str, Any]:
    return {"obs": np.arange(n, dtype=np.float32)[:, None], "reward": np.ones(n)}


def store_episodes(
    buffer: ReplayBuffer, versions: Sequence[Sequence[int | None]], **more: Any
) -> None:
    """Store an episode `e<number>` for each list of versions, one of each step."""
    for number, of_steps in enumerate(versions):
        n = len(of_steps)
        given = [NO_VERSION if version is None else version for version in of_steps]
        columns = {**arrays_of(n), "model_version": given, **more}
        buffer.store_episode(columns, final={"obs": [n]}, episode_id=f"e{number}")
    # As columns all have one or none has.
    for table in ("experiences", "chunks"):
        none = f"UPDATE {table} SET model_version = NULL WHERE model_version = {NO_VERSION}"
        run_inside(buffer, none)
