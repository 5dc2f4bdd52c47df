"""`sqlbuffer db`: create, check and upgrade the schema of a database."""

from enum import StrEnum
from typing import Annotated

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import Url, database, example
from sqlbuffer.cli.output import note

app = typer.Typer(
    help="Create, check and upgrade the schema of a database.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Dialect(StrEnum):
    """A kind of database."""

    sqlite = "sqlite"
    postgresql = "postgresql"


@app.command(epilog=example("sqlbuffer db init postgresql://me@db.internal/replay"))
def init(url: Url = None) -> None:
    """Create the schema; an existing schema is left as it is."""
    from sqlbuffer.storage.migrations import status

    url = database(url, may_be_new=True)
    created = status.create(url)
    _say(url, "created the schema" if created else "the schema is there already")


@app.command(epilog=example("sqlbuffer db current sqlite:///replay.db"))
def current(url: Url = None) -> None:
    """Print the revision of the schema."""
    from sqlbuffer.storage.migrations import status

    schema = status.status(database(url))
    suffix = " (head)" if schema.revision == schema.head else f" (head is {schema.head})"
    typer.echo((schema.revision or "no schema") + suffix)


@app.command(epilog=example("sqlbuffer db check sqlite:///replay.db"))
def check(url: Url = None) -> None:
    """Exit with 0 if the schema serves this package, with 4 if not."""
    from sqlbuffer.storage.migrations import status

    schema = status.check(database(url))
    later = "" if schema.revision == schema.head else f" and later than its own, {schema.head}"
    typer.echo(f"{schema.url}: the schema serves this package{later}, revision {schema.revision}")


@app.command(epilog=example("sqlbuffer db upgrade postgresql://me@db.internal/replay"))
def upgrade(url: Url = None) -> None:
    """Upgrade a schema of an earlier release; rows stay as they are."""
    from sqlbuffer.storage.migrations import status

    url = database(url)
    upgraded = status.upgrade(url)
    _say(url, "upgraded the schema" if upgraded else "the schema is at head already")


@app.command(
    epilog=example(
        "sqlbuffer db sql postgresql://me@db.internal/replay > upgrade.sql",
        "sqlbuffer db sql --dialect postgresql | psql postgresql://me@db.internal/replay",
    )
)
def sql(
    url: Url = None,
    dialect: Annotated[
        Dialect | None,
        typer.Option(help="For an empty database of this kind; none is opened."),
    ] = None,
) -> None:
    """Print the SQL that `db init` or `db upgrade` would run.

    Give it to an administrator who has the right to run it. It is one transaction, and empty if the
    schema is at head.
    """
    from sqlbuffer.storage.migrations import status

    if dialect is not None and url is not None:
        raise UsageError("--dialect is for an empty database; give it or a URL, not both")
    if dialect is not None:
        typer.echo(status.script(dialect.value), nl=False)
        return
    url = database(url)
    statements = status.script_for(url)
    if not statements:
        note("the schema is at head already: there is nothing to run")
    typer.echo(statements, nl=False)


@app.command(epilog=example("sqlbuffer db roles | psql postgresql://postgres@db.internal/replay"))
def roles() -> None:
    """Print the SQL that makes PostgreSQL roles of least rights.

    The roles are writer, learner and analyst. Run the SQL as a role that may create roles and owns
    the schema. Run it again after each upgrade.
    """
    from sqlbuffer.storage.schema.metadata import roles_script

    typer.echo(roles_script(), nl=False)


def _say(url: str | None, what: str) -> None:
    from sqlbuffer.storage.migrations import status

    schema = status.status(url)
    typer.echo(f"{schema.url}: {what}, revision {schema.revision}")
