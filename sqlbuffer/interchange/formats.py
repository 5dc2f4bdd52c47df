"""The formats that `sqlbuffer export` and `sqlbuffer import` know."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.copying import OnProgress
from sqlbuffer.errors import FieldError
from sqlbuffer.interchange.arrays.exporting import format_of_path
from sqlbuffer.interchange.hugging_face import ROLLOUT_FORMS

EXPORT_FORMATS = ("parquet", "jsonl", "hf", "minari", "atif", "npz", "hdf5")
# Kinds of rows of Hugging Face's data sets.
STEPS = "steps"
ROWS = (STEPS, *ROLLOUT_FORMS)


def exporter(name: str, *, rows: str = STEPS, env: str | None = None) -> Callable[..., Any]:
    """Return the function that exports to a format.

    It takes (buffer, path, condition, *, columns, overwrite, on_progress), and returns what it says
    of the result as text.

    Args:
        name: The format.
        rows: Format `hf`: what a row is.
        env: Format `minari`: id of the environment that was recorded.

    Raises:
        ValueError: An option of another format, or unknown rows.
    """
    if rows != STEPS and name != "hf":
        raise ValueError(f"--rows is for --format hf, and this is {name}")
    if rows not in ROWS:
        raise ValueError(f"there are no rows {rows!r}; choose from {', '.join(ROWS)}")
    if env is not None and name != "minari":
        raise ValueError(f"--env is for --format minari, and this is {name}")
    if name == "jsonl":
        from sqlbuffer.interchange.jsonl import export_jsonl

        return export_jsonl
    if name == "minari":
        return partial(_to_minari, env=env)
    if name in ("npz", "hdf5"):
        from sqlbuffer.interchange.arrays.exporting import export_arrays

        return partial(export_arrays, format=name)
    if name == "atif":
        return _to_atif
    if rows != STEPS:
        return partial(_rollouts, rows=rows)
    from sqlbuffer.interchange.parquet.exporting import export_parquet

    return export_parquet


def _rollouts(
    buffer: ReplayBuffer,
    path: str,
    condition: Any,
    *,
    columns: Sequence[str] | None,
    overwrite: bool,
    on_progress: OnProgress | None,
    rows: Any,
) -> Any:
    from sqlbuffer.interchange.hugging_face import export_rollouts

    return export_rollouts(
        buffer, path, rows, condition=condition, columns=_renamed(columns), overwrite=overwrite,
        on_progress=on_progress,
    )  # fmt: skip


def _renamed(columns: Sequence[str] | None) -> dict[str, str] | None:
    """Return columns with what they have: `level=meta.level` is named `level`."""
    if columns is None:
        return None
    pairs = [column.partition("=") for column in columns]
    return {name: source or name for name, _, source in pairs}


def _to_atif(
    buffer: ReplayBuffer,
    path: str,
    condition: Any,
    *,
    columns: Sequence[str] | None,
    overwrite: bool,
    on_progress: OnProgress | None,
) -> Any:
    from sqlbuffer.interchange.atif import export_atif

    if columns is not None:
        raise FieldError("--columns is for other formats: a trajectory has all of an episode")
    return export_atif(buffer, path, condition, overwrite=overwrite, on_progress=on_progress)


def _to_minari(
    buffer: ReplayBuffer,
    path: str,
    condition: Any,
    *,
    columns: Sequence[str] | None,
    overwrite: bool,
    on_progress: OnProgress | None,
    env: str | None,
) -> str:
    from sqlbuffer.interchange.minari import export_minari

    dataset = export_minari(
        buffer, path, env=env, condition=condition, fields=columns, overwrite=overwrite,
        on_progress=on_progress,
    )  # fmt: skip
    return (
        f"exported {buffer.name!r} in {buffer.url} to Minari's data set {path!r}: "
        f"{dataset.total_episodes:,} episodes, {dataset.total_steps:,} steps"
    )


IMPORT_FORMATS = ("parquet", "jsonl", "minari", "atif", "npz", "hdf5")


def export_format_of(out: str) -> str:
    """Return the format of an output by its name: `npz`, `hdf5`, or a folder of Parquet files.

    Example:
        >>> export_format_of("data.npz"), export_format_of("out")
        ('npz', 'parquet')
    """
    return format_of_path(out) or "parquet"


def format_of(source: str) -> str:
    """Return the format of the files to import.

    Args:
        source: A file or folder.

    Example:
        >>> format_of("steps.jsonl"), format_of("data.h5"), format_of("out")
        ('jsonl', 'hdf5', 'parquet')
    """
    if source.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    arrays = format_of_path(source)
    if arrays is not None:
        return arrays
    return "minari" if (Path(source) / "data" / "metadata.json").is_file() else "parquet"
