"""The formats that `sqlbuffer export` knows, by name."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.copying.buffer_copy import OnProgress
from sqlbuffer.errors import FieldError
from sqlbuffer.interchange.hugging_face.rollouts import ROLLOUT_FORMS

FORMATS = ("parquet", "jsonl", "hf", "minari")
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
        from sqlbuffer.interchange.jsonl.jsonl_export import export_jsonl

        return export_jsonl
    if name == "minari":
        return partial(_to_minari, env=env)
    if rows != STEPS:
        return partial(_rollouts, rows=rows)
    from sqlbuffer.interchange.parquet.parquet_export import export_parquet

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
    from sqlbuffer.interchange.hugging_face.rollout_export import export_rollouts

    if columns is not None:
        raise FieldError(
            f"--columns is for rows of {STEPS}; those of {rows} have their own columns"
        )
    return export_rollouts(
        buffer, path, rows, condition=condition, overwrite=overwrite, on_progress=on_progress
    )


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
    from sqlbuffer.interchange.minari.minari_export import export_minari

    dataset = export_minari(
        buffer, path, env=env, condition=condition, fields=columns, overwrite=overwrite,
        on_progress=on_progress,
    )  # fmt: skip
    return (
        f"exported {buffer.name!r} in {buffer.url} to Minari's data set {path!r}: "
        f"{dataset.total_episodes:,} episodes, {dataset.total_steps:,} steps"
    )
