"""What others read of an export, and what comes back after a way through both databases."""

from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.interchange import export_parquet, import_parquet
from tests.conftest import MakeDatabaseUrl
from tests.support.copied_buffers import json_rows, odd_steps, typed_steps


@pytest.mark.parametrize("make", [json_rows, typed_steps, odd_steps])
@pytest.mark.parametrize("kinds", [("sqlite", "postgresql"), ("postgresql", "sqlite")])
def test_duckdb_sees_no_difference_after_a_way_through_the_other_database(
    make: Any, kinds: tuple[str, str], make_database_url: MakeDatabaseUrl, tmp_path: Path
) -> None:
    here, there = (make_database_url(kind, schema=True) for kind in kinds)
    source = make(here, "source")
    export_parquet(source, tmp_path / "one")
    import_parquet(tmp_path / "one", there)
    export_parquet(ReplayBuffer(there, "source", create=False), tmp_path / "two")
    for files in ("steps-*.parquet", "episodes.parquet"):
        one, two = (f"SELECT * FROM '{tmp_path}/{name}/{files}'" for name in ("one", "two"))
        assert duckdb.sql(f"{one} EXCEPT ALL {two}").fetchall() == []
        assert duckdb.sql(f"{two} EXCEPT ALL {one}").fetchall() == []
    steps = duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/two/steps-*.parquet'").fetchall()
    assert steps == [(len(source),)]


@pytest.fixture
def exported(sqlite_url: str, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    n = 50
    fields: dict[str, Any] = {
        "obs": ("float32", (3,)),
        "half": "float16",
        "big": "uint64",
        "flag": "bool",
        "tokens": ("int32", (-1,)),
        "image": ("uint8", (4, 5, 3)),
        "word": "U8",
    }
    rng = np.random.default_rng(0)
    own: dict[str, Any] = {
        "obs": rng.normal(size=(n, 3)).astype(np.float32),
        "half": rng.normal(size=n).astype(np.float16),
        "big": np.arange(n, dtype=np.uint64) + np.uint64(2**63),
        "flag": np.arange(n) % 3 == 0,
        "tokens": [np.arange(i % 4, dtype=np.int32) for i in range(n)],
        "image": rng.integers(0, 255, (n, 4, 5, 3), dtype=np.uint8),
        "word": np.array([f"wört-{i}" for i in range(n)]),
        "reward": np.array([np.nan, np.inf, *rng.normal(size=n - 2)]),
    }
    buffer = ReplayBuffer(sqlite_url, fields=fields)
    messages = [[{"role": "user", "content": f"naïve {i} 🙂"}] for i in range(n)]
    buffer.extend({**own, "messages": messages}, task_id="täsk", step=np.arange(n))
    export_parquet(buffer, tmp_path / "out")
    return tmp_path / "out" / "steps-00000.parquet", {**own, "messages": messages}


def check(column: Any, expected: dict[str, Any]) -> None:
    """Compare columns that are lists with what was stored."""
    for name in ("obs", "half", "big", "flag", "image", "reward"):
        values = np.asarray([np.asarray(value) for value in column(name)])
        own = expected[name]
        np.testing.assert_array_equal(values.astype(own.dtype).reshape(own.shape), own)
    assert [list(value) for value in column("tokens")] == [t.tolist() for t in expected["tokens"]]
    assert list(column("word")) == expected["word"].tolist()
    assert set(column("task_id")) == {"täsk"}
    assert list(column("step")) == list(range(50))
    assert '"content":"naïve 3 🙂"' in column("messages")[3]


def test_duckdb_reads_the_files(exported: tuple[Path, dict[str, Any]]) -> None:
    path, expected = exported
    found = duckdb.sql(f"SELECT * FROM '{path}' ORDER BY seq").to_arrow_table()
    check(lambda name: found[name].to_pylist(), expected)
    assert duckdb.sql(f"SELECT typeof(obs) FROM '{path}' LIMIT 1").fetchall()[0][0][:5] == "FLOAT"
    role = duckdb.sql(f"SELECT messages->0->>'role' FROM '{path}' LIMIT 1").fetchall()
    assert role == [("user",)]


def test_polars_reads_the_files(exported: tuple[Path, dict[str, Any]]) -> None:
    path, expected = exported
    found = pl.read_parquet(path)
    check(lambda name: found[name].to_list(), expected)
    assert found["image"].to_numpy().reshape(50, 4, 5, 3).shape == expected["image"].shape


def test_pandas_reads_the_files(exported: tuple[Path, dict[str, Any]]) -> None:
    path, expected = exported
    found = pd.read_parquet(path)
    check(lambda name: found[name].tolist(), expected)
    assert np.stack(found["obs"]).shape == (50, 3)


def test_datasets_reads_the_files(exported: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, expected = exported
    found = datasets.load_dataset(
        "parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    check(lambda name: found[name][:], expected)
    assert found.with_format("numpy")[:4]["obs"].shape == (4, 3)
