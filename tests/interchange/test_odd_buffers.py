"""Exports of what is rare: odd types and names, full disks, roles that may not write."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import ExportError, FieldError, StorageReadOnlyError
from sqlbuffer.interchange import export_jsonl, export_parquet, import_parquet
from tests.interchange.test_parquet_export import steps_of
from tests.support.copied_buffers import comparable, json_rows, typed_steps

VALUES = {
    "float16": [0.1, np.nan, -np.inf],
    "float32": [0.1, -0.0, 3e38],
    "float64": [0.1, 1e300, np.inf],
    "uint8": [0, 1, 255],
    "int64": [-(2**63), 0, 2**63 - 1],
    "uint64": [0, 2**63, 2**64 - 1],
    "bool": [True, False, True],
    "complex64": [1 + 2j, complex(np.nan, 1), 0],
    "complex128": [1 + 2j, 0, 1e300],
    "S3": [b"a", b"\xff", b""],
    "U4": ["é🙂", "", "a\nb"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_values_of_every_type_come_back_from_parquet(
    sqlite_url: str, tmp_path: Path, dtype: str, compression: Any
) -> None:
    own = np.array(VALUES[dtype], dtype)
    fields: dict[str, Any] = {"x": dtype, "v": (dtype, (2, 3)), "r": (dtype, (2, -1))}
    source = ReplayBuffer(sqlite_url, "source", fields=fields, compression=compression)
    columns = {
        "x": own,
        "v": np.stack([own.repeat(3).reshape(3, 3)] * 2, 1),
        "r": [np.stack([own[:i], own[:i]]) for i in range(3)],
    }
    source.extend(columns, task_id="t")
    export_parquet(source, tmp_path / "out")
    import_parquet(tmp_path / "out", sqlite_url, "copy")
    copy = ReplayBuffer(sqlite_url, "copy", create=False)
    assert comparable([row.fields for row in copy]) == comparable([row.fields for row in source])


def test_a_field_named_like_a_column_keeps_its_name(buffer_url: str, tmp_path: Path) -> None:
    names = ("value", "advantage", "uses", "first_seq", "inserted_at", "arrays", "task_name")
    fields = dict.fromkeys(names, "float32")
    source = ReplayBuffer(buffer_url, "source", fields=fields)
    own = {name: np.arange(3, dtype=np.float32) + i for i, name in enumerate(names)}
    source.extend(own, task_id="t")
    export_parquet(source, tmp_path / "out")
    table = steps_of(tmp_path / "out")
    assert table["value"].to_pylist() == [0.0, 1.0, 2.0]
    assert table["value_"].null_count == 3
    import_parquet(tmp_path / "out", buffer_url, "copy")
    copy = ReplayBuffer(buffer_url, "copy", create=False)
    assert comparable([row.fields for row in copy]) == comparable([row.fields for row in source])
    export_jsonl(source, tmp_path / "steps.jsonl")
    first = json.loads((tmp_path / "steps.jsonl").read_text().split("\n")[0])
    assert [first[name] for name in names] == [float(i) for i in range(len(names))]


def test_text_that_is_not_unicode_is_named(sqlite_url: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(sqlite_url, fields={"word": "U4"})
    buffer.extend({"word": np.array(["a", "\ud800"])}, task_id="t")
    with pytest.raises(FieldError, match=r"column 'word' has .* a lone surrogate, .* columns="):
        export_parquet(buffer, tmp_path / "out")
    assert export_parquet(buffer, tmp_path / "out", columns=["seq"]).n_steps == 2


@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_a_file_that_may_not_be_written_is_exported(
    sqlite_url: str, tmp_path: Path, make: Any
) -> None:
    source = make(sqlite_url, "source")
    n = len(source)
    source.close()
    read_only = sqlite_url.replace("sqlite:///", "sqlite:///file:") + "?mode=ro&uri=true"
    buffer = ReplayBuffer(read_only, "source", create=False)
    assert export_parquet(buffer, tmp_path / "out").n_steps == n
    with pytest.raises(StorageReadOnlyError):
        import_parquet(tmp_path / "out", read_only, "source")


PROGRAM = """
import resource, signal, sys
import pyarrow.parquet
from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import ExportError
from sqlbuffer.interchange import export_jsonl, export_parquet
url, what, path = sys.argv[1:]
buffer = ReplayBuffer(url, "source", create=False)
len(buffer)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    {"jsonl": export_jsonl, "parquet": export_parquet}[what](buffer, path)
except ExportError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["parquet", "jsonl"])
def test_a_full_disk_is_named_and_nothing_is_left(
    postgres_url: str, tmp_path: Path, what: str
) -> None:
    source = ReplayBuffer(postgres_url, "source", fields={"x": ("float32", (64,))}, create=True)
    source.extend({"x": np.random.default_rng(0).normal(size=(5_000, 64))}, casting="unsafe")
    command = [sys.executable, "-c", PROGRAM, postgres_url, what, str(tmp_path / "in" / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "out is full (" in done.stdout
    assert "free space, or name a" in done.stdout
    assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.thorough
def test_an_import_that_is_killed_goes_on(buffer_url: str, tmp_path: Path) -> None:
    source = ReplayBuffer(buffer_url, "source", fields={"x": ("float32", (64,))})
    for e in range(60):
        x = np.random.default_rng(e).normal(size=(2_000, 64)).astype(np.float32)
        source.store_episode({"x": x}, episode_id=f"e{e}")
    export_parquet(source, tmp_path / "out")
    assert pq.ParquetFile(tmp_path / "out" / "steps-00000.parquet").num_row_groups > 2
    program = (
        "import os, sys\n"
        "from sqlbuffer.interchange import import_parquet\n"
        "import_parquet(*sys.argv[1:], 'copy', on_progress=lambda *_: os.kill(os.getpid(), 9))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "out"), buffer_url]
    assert subprocess.run(command, timeout=120, check=False).returncode == -9
    n_before = len(ReplayBuffer(buffer_url, "copy", create=False))
    assert 0 < n_before < len(source)
    report = import_parquet(tmp_path / "out", buffer_url, "copy")
    assert (report.n_stored, report.n_duplicates) == (len(source) - n_before, n_before)
    copy = ReplayBuffer(buffer_url, "copy", create=False)
    assert len(copy) == len(source)
    export_parquet(copy, tmp_path / "again")
    assert steps_of(tmp_path / "again").equals(steps_of(tmp_path / "out"))


def test_unknown_names_are_errors_before_anything_is_written(
    sqlite_url: str, tmp_path: Path
) -> None:
    buffer = json_rows(sqlite_url, "source")
    for export in (export_parquet, export_jsonl):
        with pytest.raises(FieldError, match="there is no column 'rewards'"):
            export(buffer, tmp_path / "in" / "out", columns=["rewards"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="is a file"):
        export_parquet(buffer, tmp_path / "file", overwrite=True)
    assert not (tmp_path / "in").exists()
