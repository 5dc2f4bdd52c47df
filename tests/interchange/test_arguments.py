"""Exports, imports and copies refuse wrong arguments before anything is made."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.errors import ArgumentError, ConditionError, ExportError, FieldError, FileImportError
from sqlbuffer.interchange import (
    BufferStream,
    RolloutRows,
    export_jsonl,
    export_parquet,
    export_rollouts,
    import_parquet,
    insert_jsonl,
)

Call = Callable[..., Any]
EXPORTS = (export_parquet, export_jsonl, export_rollouts)
IMPORTS = (import_parquet, insert_jsonl)
BUFFERS = [None, 3, "sqlite://", ReplayBuffer, object()]
PATHS = [None, 2**63, 3, "", "a\0b", b"out", ["out"], "a" * 5_000, "\ud800", 1.5]
FUNCTIONS = [3, "print", []]
NAMES = [3, "obs", [["obs"]], [1], {"obs": 1}]


@pytest.fixture
def buffer(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayBuffer:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    buffer = ReplayBuffer(sqlite_url, fields={"obs": "float32"})
    buffer.extend({"obs": [1.0, 2.0]})
    return buffer


@pytest.fixture(autouse=True)
def _nothing_is_made(buffer: ReplayBuffer, sqlite_url: str) -> Iterator[None]:
    yield
    assert list(Path().iterdir()) == []
    assert ReplayBuffer.list(sqlite_url) == ["default"]
    assert len(buffer) == 2


def check_refused(call: Call, values: list[Any], argument: str) -> None:
    for value in values:
        with pytest.raises(ArgumentError, match=rf"^{argument} is .*, got ") as caught:
            call(value)
        assert len(str(caught.value)) < 400
        assert isinstance(caught.value, (TypeError, ValueError))


@pytest.mark.parametrize("export", EXPORTS)
def test_exports_check_their_arguments(buffer: ReplayBuffer, export: Call) -> None:
    check_refused(lambda value: export(value, "deep/out"), BUFFERS, "buffer")
    check_refused(lambda value: export(buffer, value), PATHS, "path")
    check_refused(
        lambda value: export(buffer, "deep/out", overwrite=value), ["no", 1, None], "overwrite"
    )
    check_refused(
        lambda value: export(buffer, "deep/out", on_progress=value), FUNCTIONS, "on_progress"
    )
    if export is not export_rollouts:
        check_refused(lambda value: export(buffer, "deep/out", columns=value), NAMES, "columns")
        with pytest.raises(FieldError, match="there is no column 'obz'"):
            export(buffer, "deep/out", columns=["obz"])
    if export is not export_jsonl:
        check_refused(
            lambda value: export(buffer, "deep/out", compression=value),
            [1, None, "zzz", "ZSTD", ["zstd"], {}],
            "compression",
        )
    with pytest.raises(ConditionError):
        export(buffer, "deep/out", condition={"field": "x" * 10_000})
    with pytest.raises(ArgumentError, match=r"ReplayBuffer.*; give its \.sync"):
        export(AsyncReplayBuffer(buffer), "deep/out")


@pytest.mark.parametrize("export", EXPORTS)
def test_a_place_that_cannot_be_made_is_named(
    buffer: ReplayBuffer, export: Call, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "in" / "out", "/proc/in/out", "a" * 300):
        with pytest.raises(ExportError, match=r"cannot be made: .*; name another path"):
            export(buffer, path)


def test_rollouts_check_their_arguments(buffer: ReplayBuffer) -> None:
    for call in (
        RolloutRows,
        lambda *own, **more: export_rollouts(own[0], "out", *own[1:], **more),
    ):
        check_refused(lambda value, call=call: call(value), BUFFERS, "buffer")
        check_refused(
            lambda value, call=call: call(buffer, value), ["dpo", None, 3, ["messages"]], "form"
        )
        margins = [-1, "1", None, float("nan"), True]
        check_refused(
            lambda value, call=call: call(buffer, min_margin=value), margins, "min_margin"
        )


def test_streams_check_their_arguments(buffer: ReplayBuffer) -> None:
    check_refused(BufferStream, BUFFERS, "buffer")
    check_refused(lambda value: BufferStream(buffer, fields=value), NAMES, "fields")
    with BufferStream(buffer) as stream:
        check_refused(stream.pieces, [0, -1, "2", None, 1.5, True], "n")


@pytest.mark.parametrize("import_", IMPORTS)
def test_imports_check_their_arguments(
    buffer: ReplayBuffer, sqlite_url: str, import_: Call, tmp_path: Path
) -> None:
    (tmp_path / "steps").write_text('{"state": 1}\n')
    check_refused(lambda value: import_(value, sqlite_url, "new"), PATHS, "path")
    for name, values in {
        "fields": [3, "obs", ["obs"]],
        "on_progress": FUNCTIONS,
        **({"columns": [3, "obs", ["obs"]]} if import_ is import_parquet else {}),
    }.items():
        check_refused(
            lambda value, name=name: import_(
                tmp_path / "steps", sqlite_url, "new", **{name: value}
            ),
            values,
            name,
        )
    if import_ is import_parquet:
        columns = [{"obs": 3}, {"obs": ["x"]}]
        check_refused(
            lambda value: import_(tmp_path / "steps", sqlite_url, "new", columns=value),
            columns,
            r"columns\['obs'\]",
        )
    for path in ("nothing", "a" * 300, tmp_path / "steps" / "in"):
        with pytest.raises(FileImportError):
            import_(path, sqlite_url, "new")


def test_a_copy_checks_its_arguments(buffer: ReplayBuffer) -> None:
    check_refused(buffer.copy_to, [*BUFFERS, AsyncReplayBuffer(buffer)], "other")
    target = ReplayBuffer("sqlite://", config=buffer.config)
    check_refused(lambda value: buffer.copy_to(target, on_progress=value), FUNCTIONS, "on_progress")
    assert buffer.copy_to(target).n_steps == 2
