"""Write the generated sections of `docs/reference/views.md` and `docs/reference/tables.md`.

Run `python -m sqlbuffer.storage.schema.reference` in the checkout.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import Column, Dialect, Index, Table, UniqueConstraint
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex

from sqlbuffer.storage.schema.metadata import metadata
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS
from sqlbuffer.storage.schema.views import VIEWS, View

SQLITE: Dialect = sqlite.dialect()
POSTGRESQL: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
PAGES = ("views.md", "tables.md")
_AFTER_FIRST_CLAUSE = re.compile(r"(?:\.(?=\s)|\.$|:).*", re.DOTALL)
_SECTION = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def with_sections(document: str) -> str:
    """Return the document with the sections between its markers generated again."""
    sections = {"list": views_list, "views": views_section, "tables": tables_section}
    return _SECTION.sub(lambda match: f"{match[1]}\n{sections[match[2]]()}\n\n{match[3]}", document)


def views_list() -> str:
    """Return the first sentence about each view as Markdown."""
    rows = (
        (f"[{name}](#{name})", _AFTER_FIRST_CLAUSE.sub("", view.text))
        for name, view in VIEWS.items()
    )
    return "\n".join(_grid(("view", "content"), rows))


def views_section() -> str:
    """Return the views as Markdown."""
    return "\n\n".join(_view(name, view) for name, view in VIEWS.items())


def tables_section() -> str:
    """Return the tables as Markdown."""
    return "\n\n".join(_table(table) for table in metadata.sorted_tables)


def _view(name: str, view: View) -> str:
    rows = ((f"`{column}`", kind, text) for column, (kind, text) in view.columns.items())
    return "\n".join(
        [f"### {name}", "", view.text, "", *_grid(("column", "kind", "meaning"), rows)]
    )


def _table(table: Table) -> str:
    header = ("column", "SQLite", "PostgreSQL", "null", "meaning")
    rows = [*_integer_key(table), *map(_column, table.columns)]
    lines = [f"### {table.name}", "", *_grid(header, rows), ""]
    keys = ", ".join(f"`{column.name}`" for column in table.primary_key.columns)
    primary = f"- primary key ({keys})"
    if "integer_key" in table.info:
        primary += "; `key` on SQLite"
    return "\n".join([*lines, primary, *_uniques(table), *_indexes(table)])


def _integer_key(table: Table) -> Iterator[tuple[str, ...]]:
    number = table.info.get("integer_key")
    if number is not None:
        yield "`key`", "`INTEGER`", "", "", f"`buffer_id << {NUMBER_BITS} \\| {number}`"


def _column(column: Column[object]) -> tuple[str, ...]:
    types = [f"`{column.type.compile(dialect)}`" for dialect in (SQLITE, POSTGRESQL)]
    return f"`{column.name}`", *types, "yes" if column.nullable else "", column.comment or ""


def _uniques(table: Table) -> Iterator[str]:
    constraints = (item for item in table.constraints if isinstance(item, UniqueConstraint))
    for columns in sorted(
        [column.name for column in constraint.columns] for constraint in constraints
    ):
        yield f"- unique ({', '.join(f'`{name}`' for name in columns)})"


def _indexes(table: Table) -> Iterator[str]:
    for index in sorted(table.indexes, key=_name):
        statement = str(CreateIndex(index).compile(dialect=POSTGRESQL))
        where = "; only on SQLite" if "only_on" in index.info else ""
        yield f"- `{' '.join(statement.split())}`{where}"


def _name(index: Index) -> str:
    return str(index.name)


def _grid(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (header, tuple("---" for _ in header), *rows):
        yield f"| {' | '.join(row)} |"


def main(folder: Path) -> None:
    """Bring the generated sections of the pages up to date."""
    for name in PAGES:
        path = folder / name
        path.write_text(with_sections(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
