"""Errors as the command line shows them: one line that says what to do, and an exit code."""

import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from sqlbuffer import errors

_MACHINE_OUTPUT = {"--json", "--ndjson"}
INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended
PIPE_CLOSED = 141  # and for one whose reader, such as `head`, has left
# A word of the command line with a password in it: in a URL, well formed or not, or in options.
_SECRET_WORD = re.compile(
    r":(?!//)[^@]*@|://(?!/)[^@]*/[^@]*@|@.*://|://[^/@]*:(?!\d+(?:[/?]|$))|(?:pass\w*|pwd)\s*="
    # Before :// there is a password, unless it is the name of a database or of a web page.
    r"|^(?:-[\w-]+=)?(?!(?:sqlite|postgres(?:ql)?|mysql|https?)(?:\+(?:psycopg2?|pysqlite))?://)"
    r"[^/]+://[^/]*@",
    re.IGNORECASE,
)
# Modules whose errors are about the database. Any other error that is not an `SQLBufferError` is a
# defect of this package; show its traceback.
_DATABASE_MODULES = {"alembic", "psycopg", "psycopg_pool", "sqlalchemy", "sqlite3"}


class UsageError(errors.SQLBufferError):
    """The command line is incomplete or contradicts itself; the message says what to type."""


class TaskNotFoundError(errors.SQLBufferError):
    """No task of that id in the buffer: the message names similar ones."""


# The first that fits counts.
EXIT_CODES: tuple[tuple[type[errors.SQLBufferError], int], ...] = (
    (UsageError, 2),
    (errors.URLError, 2),
    (errors.ArgumentError, 2),
    (errors.BufferConfigError, 2),
    (errors.ConditionError, 2),
    (errors.FieldError, 2),
    (errors.FileImportError, 2),
    (errors.StorageUnreachableError, 3),
    (errors.BufferNotFoundError, 3),
    (TaskNotFoundError, 3),
    (errors.SchemaMissingError, 4),
    (errors.SchemaOutdatedError, 4),
    (errors.SchemaTooNewError, 4),
    (errors.StorageBusyError, 5),
    (errors.SQLBufferError, 1),
)


class ErrorsAsLines(TyperGroup):
    """A group of commands whose errors end in one line on stderr that says what to do."""

    _words: Sequence[str] = ()

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line and end the process."""
        words = args[0] if args else options.get("args")
        self._words = list(sys.argv[1:] if words is None else words)
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except Exception as error:
            # The class has another home in each version of Typer.
            if not hasattr(error, "format_message"):
                raise
            code = _show_usage_error(error, self._words)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        _survive_odd_text()
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except errors.SQLBufferError as error:
            _say(without_secrets(str(error), self._words))
            _say_where_explained(error, self._words)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _leave_closed_pipe()
            raise typer.Exit(PIPE_CLOSED) from None
        except Exception as error:
            line = _line_of(error)
            if line is None:
                raise
            _say(without_secrets(line, self._words))
            raise typer.Exit(1) from None


def exit_code(error: errors.SQLBufferError | type[errors.SQLBufferError]) -> int:
    """Return the exit code that stands for an error."""
    kind = error if isinstance(error, type) else type(error)
    return next(code for type_, code in EXIT_CODES if issubclass(kind, type_))


def without_secrets(text: str, words: Sequence[str]) -> str:
    """Return a text with three stars in the place of each given word that holds a password."""
    for word in filter(_SECRET_WORD.search, words):
        name, _, value = word.partition("=")
        for form in (word, repr(word)[1:-1], value, name):
            text = text.replace(form, "***") if _SECRET_WORD.search(form) else text
    return text


def _say(text: str) -> None:
    typer.echo(f"sqlbuffer: {' '.join(text.split())}", err=True)


def _say_where_explained(error: errors.SQLBufferError, words: Sequence[str]) -> None:
    """Print the command that explains an error, unless a program reads the output or the class is
    not explained alone.
    """
    command = errors.explained_by(type(error))
    is_own = command != errors.explained_by(errors.SQLBufferError)
    if is_own and not _MACHINE_OUTPUT & set(words):
        typer.secho(f"See {command}", dim=True, err=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"warning: {message}")


def _show_usage_error(error: Any, words: Sequence[str]) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" or context is None:
        error.show()
    else:
        message = error.format_message().rstrip(".").replace("\n", " ")
        message = without_secrets(message, words)
        _say(f"{message}; see `{context.command_path} --help`")
    return int(error.exit_code)


def _line_of(error: Exception) -> str | None:
    """Return the message of an error that is not a defect of this package; None for a defect."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    if type(error).__module__.partition(".")[0] in _DATABASE_MODULES:
        return f"the database refused: {lines[0]} ({type(error).__name__})"
    if isinstance(error, OSError):
        name = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or lines[0]}{name}"
    return None


def _survive_odd_text() -> None:
    """Write what the terminal's encoding does not have, such as a lone surrogate, as an escape."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _leave_closed_pipe() -> None:
    """Keep the interpreter from flushing into the closed pipe, and complaining, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
