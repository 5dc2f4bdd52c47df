"""`sqlbuffer create`: make a buffer with a configuration."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import Url, database_and_word, example
from sqlbuffer.errors import BufferNotFoundError, SchemaMissingError, SQLBufferError

if TYPE_CHECKING:
    from sqlbuffer import BufferConfig

EPILOG = example(
    "sqlbuffer create replay.db cartpole",
    "sqlbuffer create postgresql://me@db.internal/replay cartpole --config settings.json",
)
STDIN = "-"


def create(
    url: Url = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the buffer.", show_default=False),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Its settings as JSON, as `sqlbuffer info --config` prints them; - is standard "
            "input. Settings that are left out have their defaults.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a buffer, and the schema of a new SQLite file.

    An existing buffer is left as it is. If its settings equal those of the file, the command
    succeeds (exit code 0). Otherwise it lists the differences and fails (2).
    """
    from sqlbuffer import ReplayBuffer

    url, name = database_and_word(
        url, name, "which name? type `sqlbuffer create URL NAME`", may_be_new=True
    )
    wanted = None if config is None else _read(config)
    is_there = name in _names(url)
    with ReplayBuffer(url, name, config=wanted):
        state = "is there already, with these settings" if is_there else "is made"
        typer.echo(f"buffer {name!r} {state}")


def _names(url: str | None) -> list[str]:
    from sqlbuffer import ReplayBuffer

    try:
        return ReplayBuffer.list(url, retry_s=0)
    except (BufferNotFoundError, SchemaMissingError):
        return []


def _read(path: str) -> "BufferConfig":
    from sqlbuffer import BufferConfig

    try:
        text = sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; `sqlbuffer info URL "
            f"--config` prints the settings of a buffer"
        ) from None
    shown = "standard input" if path == STDIN else path
    try:
        return BufferConfig.model_validate_json(text)
    except SQLBufferError as error:
        raise UsageError(f"{shown}: {error}") from None
