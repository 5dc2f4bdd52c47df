"""`sqlbuffer db`: the schema of a database."""

import typer

from sqlbuffer.cli.options import Url, example

app = typer.Typer(
    help="Create, check and upgrade the schema of a database.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(epilog=example("sqlbuffer db init postgresql://me@db.internal/replay"))
def init(url: Url = None) -> None:
    """Create the schema; a schema that is there already is left alone."""
    from sqlbuffer.storage import schema_status

    created = schema_status.create(url)
    _say(url, "created the schema" if created else "the schema is there already")


@app.command(epilog=example("sqlbuffer db current sqlite:///replay.db"))
def current(url: Url = None) -> None:
    """Print the revision of the schema."""
    from sqlbuffer.storage import schema_status

    found = schema_status.status(url)
    suffix = " (head)" if found.revision == found.head else f" (head is {found.head})"
    typer.echo((found.revision or "no schema") + suffix)


@app.command(epilog=example("sqlbuffer db check sqlite:///replay.db"))
def check(url: Url = None) -> None:
    """Exit with 0 where the schema is the one this package needs, with 4 where it is not."""
    from sqlbuffer.storage import schema_status

    found = schema_status.check(url)
    typer.echo(f"{found.url}: the schema is the one this package needs, revision {found.revision}")


@app.command(epilog=example("sqlbuffer db upgrade postgresql://me@db.internal/replay"))
def upgrade(url: Url = None) -> None:
    """Upgrade a schema of an earlier release; rows stay as they are."""
    from sqlbuffer.storage import schema_status

    upgraded = schema_status.upgrade(url)
    _say(url, "upgraded the schema" if upgraded else "the schema is at head already")


@app.command(epilog=example("sqlbuffer db roles | psql postgresql://postgres@db.internal/replay"))
def roles() -> None:
    """Print the SQL that makes the writer, learner and analyst roles of a PostgreSQL database.

    Whoever runs it may create roles and owns the schema. Run it again after each upgrade.
    """
    from sqlbuffer.storage import triggers

    typer.echo(triggers.body("postgresql", "roles"), nl=False)


def _say(url: str | None, what: str) -> None:
    from sqlbuffer.storage import schema_status

    found = schema_status.status(url)
    typer.echo(f"{found.url}: {what}, revision {found.revision}")
