"""`export_parquet` writes what a buffer holds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import ExportError, FieldError
from sqlbuffer.interchange import export_jsonl, export_parquet
from tests.support.copied_buffers import FIELDS, json_rows, typed_steps


def steps_of(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("steps-*"))])


@pytest.mark.thorough
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_the_files_have_all_steps_and_episodes(buffer_url: str, make: Any, tmp_path: Path) -> None:
    buffer, out = make(buffer_url, "source"), tmp_path / "in" / "out"
    seen: list[Any] = []
    report = export_parquet(buffer, out, on_progress=lambda *own: seen.append(own))
    table, rows = steps_of(out).sort_by("seq"), list(buffer)
    assert table["seq"].to_pylist() == [row.seq for row in rows]
    assert table["id"].to_pylist() == [row.id for row in rows]
    assert repr(table["reward"].to_pylist()) == repr([row.exp_data.reward_t for row in rows])
    assert report.n_steps == len(rows) == seen[-1][0]
    assert (seen[-1][1], seen[-1][2].stop) == (report.high_seq, report.high_seq)
    assert report.n_bytes == sum(file.stat().st_size for file in out.iterdir())
    assert [file.name for file in out.parent.iterdir()] == ["out"]
    for name in buffer.fields:
        found, own = table[name].to_pylist(), [row.fields[name] for row in rows]
        assert all(
            np.asarray(a, b.dtype).tobytes() == b.tobytes() for a, b in zip(found, own, strict=True)
        )
    episodes = pq.read_table(out / "episodes.parquet")
    assert report.n_episodes == len(episodes) == (5 if make is typed_steps else 0)


@pytest.mark.thorough
def test_the_schema_says_what_the_fields_are(buffer_url: str, tmp_path: Path) -> None:
    buffer = typed_steps(buffer_url, "source")
    export_parquet(buffer, tmp_path / "out")
    schema = pq.read_schema(tmp_path / "out" / "steps-00000.parquet")
    assert pa.types.is_fixed_size_list(schema.field("obs").type)
    assert schema.field("frame").type.list_size == 40 * 120
    assert pa.types.is_list(schema.field("tokens").type)
    assert schema.field("big").type == pa.uint64()
    assert json.loads(schema.field("frame").metadata[b"spec"])["shape"] == [40, 120]
    metadata = json.loads(schema.metadata[b"sqlbuffer"])
    assert metadata["config"] == buffer.config.model_dump(mode="json")
    assert set(buffer.fields) == set(FIELDS)


def test_columns_and_a_condition_choose(buffer_url: str, tmp_path: Path) -> None:
    buffer = typed_steps(buffer_url, "source")
    condition = QueryBuilder().eq("task_id", "task-0").build()
    export_parquet(buffer, tmp_path / "out", condition, columns=["frame", "reward", "seq"])
    table = steps_of(tmp_path / "out")
    assert table.column_names == ["seq", "reward", "frame"]
    assert table["seq"].to_pylist() == [row.seq for row in buffer.get_all(condition)]
    episodes = pq.read_table(tmp_path / "out" / "episodes.parquet")
    assert set(episodes["task_id"].to_pylist()) == {"task-0"}
    with pytest.raises(FieldError, match=r"no column 'framez' \(did you mean frame\?\)"):
        export_parquet(buffer, tmp_path / "other", columns=["framez"])


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [None, FIELDS])
def test_an_empty_buffer_has_files_without_rows(
    database_url: str, fields: Any, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(database_url, create=True, fields=fields)
    report = export_parquet(buffer, tmp_path / "out")
    assert (report.n_steps, report.n_episodes, report.n_files) == (0, 0, 4)
    assert len(steps_of(tmp_path / "out")) == 0


def test_output_that_is_there_stays_unless_it_is_to_be_replaced(
    sqlite_url: str, tmp_path: Path
) -> None:
    buffer, out = json_rows(sqlite_url, "source"), tmp_path / "out"
    export_parquet(buffer, out, columns=["seq"])
    with pytest.raises(ExportError, match="has an export already; name another folder"):
        export_parquet(buffer, out)
    assert steps_of(out).column_names == ["seq"]
    export_parquet(buffer, out, overwrite=True)
    assert len(steps_of(out).column_names) > 20
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"has 'thesis\.txt', which is not of an export"):
        export_parquet(buffer, out, overwrite=True)
    with pytest.raises(ExportError, match="is a file, and an export is a folder"):
        export_parquet(buffer, out / "thesis.txt", overwrite=True)
    (tmp_path / "empty").mkdir()
    assert export_parquet(buffer, tmp_path / "empty").n_steps == len(buffer)


def test_an_export_that_is_broken_off_leaves_nothing(sqlite_url: str, tmp_path: Path) -> None:
    buffer = typed_steps(sqlite_url, "source")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_parquet(buffer, tmp_path / "out" / "deep", on_progress=interrupt)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("is_jsonl", [False, True])
def test_what_a_killed_export_leaves_is_removed_by_the_next_one(
    sqlite_url: str, tmp_path: Path, is_jsonl: bool
) -> None:
    buffer, out = typed_steps(sqlite_url, "source"), tmp_path / "out"
    name = "export_jsonl" if is_jsonl else "export_parquet"
    program = (
        "import os, sys; from sqlbuffer import ReplayBuffer, interchange; "
        "buffer = ReplayBuffer(sys.argv[1], 'source'); "
        f"interchange.{name}(buffer, sys.argv[2], on_progress=lambda *_: os.kill(os.getpid(), 9))"
    )
    command = [sys.executable, "-c", program, sqlite_url, str(out)]
    assert subprocess.run(command, check=False, timeout=120).returncode == -9
    assert len(list(tmp_path.glob(".out.partial-*"))) == 1
    other = tmp_path / ".other.partial-01234567"
    other.mkdir()
    export = export_jsonl if is_jsonl else export_parquet
    seen: list[int] = []

    def export_at_the_same_time(*_: object) -> None:
        seen.append(len(list(tmp_path.glob(".out.partial-*"))))
        if len(seen) == 1:
            export(buffer, out)

    export(buffer, out, overwrite=True, on_progress=export_at_the_same_time)
    assert seen[0] == 1
    assert list(tmp_path.glob(".out.partial-*")) == []
    assert other.exists()


def test_a_place_that_cannot_be_written_is_named(sqlite_url: str) -> None:
    buffer = typed_steps(sqlite_url, "source")
    for export in (export_jsonl, export_parquet):
        with pytest.raises(ExportError, match=r"^/proc/out cannot be made: .*; name another path"):
            export(buffer, "/proc/out")


def test_steps_of_an_episode_lie_together_and_row_groups_end_with_episodes(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.interchange.parquet.exporting.GROUP_BYTES", 40_000)
    monkeypatch.setattr("sqlbuffer.interchange.parquet.exporting.FILE_BYTES", 60_000)
    monkeypatch.setattr("sqlbuffer.storage.copies.source.MOST_CHUNKS", 3)
    buffer = ReplayBuffer(sqlite_url, create=True, fields={"x": ("float32", (64,))})
    rng = np.random.default_rng(0)
    for pair in range(12):
        writers = [buffer.episode(f"task-{pair}", episode_id=f"e{pair}-{i}") for i in range(2)]
        for t in range(60):
            for writer in writers:
                writer.append(x=rng.normal(size=64).astype(np.float32), terminated=t == 59)
            if t % 20 == 19:
                buffer.flush()
    export_parquet(buffer, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("steps-*"))
    assert len(files) > 2
    groups = [
        pq.ParquetFile(file).read_row_group(i)
        for file in files
        for i in range(pq.ParquetFile(file).num_row_groups)
    ]
    assert len(groups) > 4
    lows = [min(group["seq"].to_pylist()) for group in groups]
    highs = [max(group["seq"].to_pylist()) for group in groups]
    assert all(high < low for high, low in zip(highs, lows[1:], strict=False))
    seen: set[str] = set()
    for group in groups:
        ids = group["episode_id"].to_pylist()
        runs = [id_ for i, id_ in enumerate(ids) if i == 0 or ids[i - 1] != id_]
        assert len(runs) == len(set(runs))
        assert not seen & set(runs)
        seen |= set(runs)
    assert len(seen) == 24


def test_an_export_whose_last_file_is_full_has_no_empty_file(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.interchange.parquet.exporting.FILE_BYTES", 1)
    buffer = typed_steps(sqlite_url, "source")
    report = export_parquet(buffer, tmp_path / "out")
    files = sorted((tmp_path / "out").glob("steps-*"))
    assert [pq.read_metadata(file).num_rows for file in files] == [report.n_steps]


def test_row_groups_of_large_arrays_are_small(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.interchange.parquet.exporting.GROUP_ITEMS", 10 * 40 * 120)
    buffer = typed_steps(sqlite_url, "source")
    export_parquet(buffer, tmp_path / "out")
    with pq.ParquetFile(tmp_path / "out" / "steps-00000.parquet") as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert max(sizes) == 10
    assert sum(sizes) == len(buffer)


def test_an_interrupt_while_an_export_is_replaced_keeps_one_of_the_two(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, out = typed_steps(sqlite_url, "source"), tmp_path / "out"
    export_parquet(buffer, out, columns=["seq"])
    rename, n_renamed = Path.rename, 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal n_renamed
        n_renamed += 1
        if n_renamed == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            export_parquet(buffer, out, overwrite=True)
    assert steps_of(out).column_names == ["seq"]
    assert list(tmp_path.glob(".out.*")) == []


def test_an_export_that_was_killed_while_it_replaced_another_one_is_repaired_by_the_next_one(
    sqlite_url: str, tmp_path: Path
) -> None:
    buffer, out = typed_steps(sqlite_url, "source"), tmp_path / "out"
    export_parquet(buffer, out, columns=["seq"])
    old = tmp_path / ".out.old-01234567"
    out.rename(old)  # killed after the first of two renames
    with pytest.raises(ExportError, match="has an export already"):
        export_parquet(buffer, out)
    assert steps_of(out).column_names == ["seq"]
    export_parquet(buffer, old)  # killed after the second one
    export_parquet(buffer, out, overwrite=True)
    assert len(steps_of(out).column_names) > 20
    assert list(tmp_path.glob(".out.*")) == []
