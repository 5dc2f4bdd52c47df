"""Write the generated sections of `docs/reference/views.md` and `docs/reference/tables.md`.

Run `python -m sqlbuffer.storage.schema.reference` in the checkout.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import Column, Dialect, Table, UniqueConstraint
from sqlalchemy.dialects import postgresql

from sqlbuffer.storage.schema.metadata import whole_metadata
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS
from sqlbuffer.storage.schema.views import VIEWS, View

POSTGRESQL: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
PAGES = ("views.md", "tables.md")
# Tables that no user reads.
INNER = {
    "applied_writes": "ids of recent writes, so that a repeated one takes effect once.",
    "change_log": "numbers of the steps that changed after their insert, for followers.",
    "change_log_starts": "where the change log begins, after entries were trimmed.",
    "checkpoints": "what each consumer had acknowledged at a mark: `v_checkpoints`.",
    "chunk_places": "the numbers from 0 to 255.",
    "clock_looks": "what machines saw of the clock, for limits of age.",
    "copies": "progress of copies into the buffer.",
    "documents": "small JSON values by key: `v_documents`.",
    "eviction_counts": "steps that left, by hour, reason and process: `v_evictions`.",
    "flow": "rows that each process sampled or inserted, for rate limiters: `v_flow`.",
    "flow_history": "the same in intervals of ten seconds, for rates.",
    "flow_waits": "calls that wait for a rate limiter: `v_waiting`.",
    "followers": "mirrors that follow the buffer.",
    "group_changes": "changes of `group_stats` that wait to be added up (PostgreSQL).",
    "holds": "steps that may not be deleted yet, because a copy reads them.",
    "label_history": "each version of late values: `v_labels`.",
    "labels": "newest late values: `v_labels`.",
    "leases": "batches that are leased, or kept for checkpoints: `v_leases`.",
    "maintenance": "the process that runs each clean-up.",
    "merges": "progress of merges into the buffer.",
    "payload_changes": "new values of keys of `extra`.",
    "priorities": "priorities that were set later: `v_priorities`.",
    "priority_blocks": "sums of weights over blocks of numbers, for draws by priority.",
    "quarantine": "rows in quarantine: `v_quarantine`.",
    "queue_groups": "upper bounds on the spreads of groups in the queue.",
    "queue_items": "rows that wait to be leased: `v_queue`.",
    "rank_agreements": "what the ranks of a training run have agreed on.",
    "retention_states": "the state of the last sweep by capacity, age and size.",
    "row_blocks": "numbers of rows in blocks of numbers, for exact counts.",
    "samples": "batches that were drawn, with `track_samples`: `v_samples`.",
    "schema_info": "the oldest package that may use the schema.",
    "sessions": "keys of sessions: `v_sessions`.",
    "step_ids": "ids of steps of chunks, where they were given.",
    "tasks": "count of rows and newest `seq` of each task, where tasks are evicted.",
    "time_marks": "when numbers were reached, and bytes between them, for limits of age and size.",
    "uses": "how often each row was sampled.",
    "work_items": "rollouts to play: `v_work`.",
}
_SECTION = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def with_sections(document: str) -> str:
    """Return the document with the sections between its markers generated again."""
    sections = {"list": views_list, "views": views_section, "tables": tables_section}
    return _SECTION.sub(lambda match: f"{match[1]}\n{sections[match[2]]()}\n\n{match[3]}", document)


def views_list() -> str:
    """Return links to the views as Markdown."""
    return ",\n".join(f"[{name}](#{name})" for name in VIEWS) + "."


def views_section() -> str:
    """Return the views as Markdown."""
    return "\n\n".join(_view(name, view) for name, view in VIEWS.items())


def tables_section() -> str:
    """Return the tables as Markdown: those that users read column by column, then the others."""
    tables = whole_metadata().sorted_tables
    inner = (f"- `{table.name}`: {INNER[table.name]}" for table in tables if table.name in INNER)
    shown = (_table(table) for table in tables if table.name not in INNER)
    return "\n\n".join([*shown, "### Other tables", "\n".join(inner)])


def _view(name: str, view: View) -> str:
    known = {} if name == "v_experiences" else VIEWS["v_experiences"].columns
    same = [column for column, of in view.columns.items() if known.get(column) == of]
    lines = [
        f"- `{column}` {kind}: {text}"
        for column, (kind, text) in view.columns.items()
        if column not in (*same, "buffer")
    ]
    if shared := [f"`{column}`" for column in same if column != "buffer"]:
        lines.append(f"- {', '.join(shared)}: as in [v_experiences](#v_experiences)")
    return "\n".join([f"### {name}", "", view.text, "", *lines])


def _table(table: Table) -> str:
    lines = [
        _column(column)
        for column in table.columns
        if column.name != "buffer_id" and not column.name.startswith("has_")
    ]
    keys = ", ".join(f"`{column.name}`" for column in table.primary_key.columns)
    number = table.info.get("integer_key")
    own = f"; on SQLite `key`, `buffer_id << {NUMBER_BITS} | {number}`" if number else ""
    indexes = (f"- index {columns}" for columns in sorted({*_uniques(table), *_indexes(table)}))
    return "\n".join([f"### {table.name}", "", *lines, f"- primary key ({keys}){own}", *indexes])


def _column(column: Column[object]) -> str:
    null = "?" if column.nullable else ""
    kind = str(column.type.compile(POSTGRESQL)).replace(' COLLATE "C"', "").lower()
    kind = kind.replace("timestamp with time zone", "time").replace("double precision", "double")
    return f"- `{column.name}` {kind}{null}: {column.comment or ''}"


def _uniques(table: Table) -> Iterator[str]:
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield _listed(constraint.columns)


def _indexes(table: Table) -> Iterator[str]:
    return (_listed(index.columns) for index in table.indexes if "only_on" not in index.info)


def _listed(columns: Iterable[Column[object]]) -> str:
    return f"({', '.join(f'`{column.name}`' for column in columns)})"


def main(folder: Path) -> None:
    """Bring the generated sections of the pages up to date."""
    for name in PAGES:
        path = folder / name
        path.write_text(with_sections(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
