"""The library's errors as the command line shows them: one line and an exit code."""

from typing import Any

import typer
from typer.core import TyperGroup

from sqlbuffer import errors

# The first that fits counts.
EXIT_CODES: tuple[tuple[type[errors.SQLBufferError], int], ...] = (
    (errors.URLError, 2),
    (errors.BufferConfigError, 2),
    (errors.ConditionError, 2),
    (errors.FieldError, 2),
    (errors.StorageUnreachableError, 3),
    (errors.BufferNotFoundError, 3),
    (errors.SchemaMissingError, 4),
    (errors.SchemaOutdatedError, 4),
    (errors.SchemaTooNewError, 4),
    (errors.StorageBusyError, 5),
    (errors.SQLBufferError, 1),
)


class ErrorsAsLines(TyperGroup):
    """A group of commands whose errors end in one line on stderr that says what to do."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except errors.SQLBufferError as error:
            typer.echo(f"sqlbuffer: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(exit_code(error)) from None


def exit_code(error: errors.SQLBufferError) -> int:
    """Return the exit code that stands for an error."""
    return next(code for type_, code in EXIT_CODES if isinstance(error, type_))
