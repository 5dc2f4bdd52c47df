"""The descriptions of views and their columns as comments in PostgreSQL, for `\\d+` in psql.

`python -m sqlbuffer.storage.schema.view_comments` prints the statements for a migration.
"""

from collections.abc import Iterator

from sqlbuffer.storage.schema.metadata import metadata
from sqlbuffer.storage.schema.views import INNER_VIEWS, INSERTABLE, VIEWS


def comments() -> dict[tuple[str, str | None], str]:
    """Return the comment of each view and column: `{(relation, column): text}`.

    The column is None for the comment of the view itself.

    Example:
        >>> comments()["v_tasks", None], comments()["v_tasks", "steps"]
        ('One row per task.', 'rows in the buffer')
    """
    return dict(_comments())


def _comments() -> Iterator[tuple[tuple[str, str | None], str]]:
    for name, view in VIEWS.items():
        yield (name, None), view.text
        for column, (_, text) in view.columns.items():
            yield (name, column), text
    for name, text in INNER_VIEWS.items():
        yield (name, None), text
    for column in INSERTABLE:
        yield ("new_experiences", column), metadata.tables["experiences"].c[column].comment or ""


def statement() -> str:
    """Return one statement that sets all comments: hundreds would be as many round trips."""
    comments_on = (
        f"    COMMENT ON {_kind(column)} {_place(relation, column)} IS {_quoted(text)};\n"
        for (relation, column), text in comments().items()
    )
    first = "-- The descriptions of views and their columns, which `\\d+` in psql shows.\n"
    return f"{first}DO $$ BEGIN\n{''.join(comments_on)}END $$\n"


def _kind(column: str | None) -> str:
    return "VIEW" if column is None else "COLUMN"


def _place(relation: str, column: str | None) -> str:
    return relation if column is None else f'{relation}."{column}"'


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


if __name__ == "__main__":
    print(statement(), end="")
