"""`sqlbuffer sql`: run one statement that reads."""

import re
import sys
from typing import Annotated

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import Csv, Json, Ndjson, Url, database_and_word, example
from sqlbuffer.cli.output import chosen, note, write
from sqlbuffer.errors import SchemaMissingError, StorageError, StorageReadOnlyError

EPILOG = example(
    'sqlbuffer sql sqlite:///replay.db "SELECT * FROM v_tasks LIMIT 5"',
    "sqlbuffer sql replay.db --csv - < question.sql > answer.csv",
)


_NO_COLUMN = re.compile(r"no such column|column .+ does not exist")


def sql(
    url: Url = None,
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="SELECT",
            help="One statement that only reads; - reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    csv: Csv = False,
    ndjson: Ndjson = False,
) -> None:
    """Run one SQL statement that only reads, and print its result.

    The database is opened read-only. The views v_buffers, v_tasks, v_agents, v_groups and
    v_experiences are made for queries. CSV, JSON and NDJSON are written as rows arrive, in little
    memory. A table shows the first 1,000 rows on a terminal, and all rows in a file or a pipe.
    """
    from sqlbuffer.storage.database import readonly

    format_ = chosen(json=json, csv=csv, ndjson=ndjson)
    url, text = database_and_word(
        url, statement, 'which statement? type `sqlbuffer sql URL "SELECT * FROM v_tasks"`'
    )
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        raise UsageError('the statement is empty; type `sqlbuffer sql URL "SELECT ..."`')
    try:
        with readonly.asked(url, text) as found:
            if found.columns:
                write(found.columns, found.rows, format_, exact=True)
            else:
                note("the statement returns no rows")
    except StorageReadOnlyError as error:
        what, _, remedy = str(error).partition("; ")
        # And not: no right to read.
        if any(word in what for word in ("read-only", "readonly", "reading only")):
            remedy = "`sqlbuffer sql` only reads: to write, use the database's own shell"
        raise StorageReadOnlyError(f"{what}; {remedy}") from None
    except SchemaMissingError as error:
        # A misspelt table looks the same to a driver.
        raise _as_asked(url, error) from None
    except StorageError as error:
        if not _NO_COLUMN.search(str(error)):
            raise
        raise StorageError(
            f"{error}; `SELECT * FROM v_experiences LIMIT 1` shows the columns of a view; those "
            f"typed fields that SQL can read are in its column `fields`, and v_fields lists all"
        ) from None


def _as_asked(url: str | None, error: SchemaMissingError) -> StorageError:
    from sqlbuffer.storage.migrations import status

    if status.status(url).revision is None:
        return error
    return StorageError(
        f"{str(error).rpartition('; run')[0]}; `sqlbuffer sql` finds v_buffers, v_tasks, v_agents, "
        "v_groups and v_experiences"
    )
