"""`sqlbuffer info`: what a database holds."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlbuffer.cli.formats import Format, chosen, note, write
from sqlbuffer.cli.options import Csv, Json, Ndjson, Url, database, example
from sqlbuffer.cli.plain import iso_time

EPILOG = example("sqlbuffer info sqlite:///replay.db", "sqlbuffer info replay.db --json")
_BUFFERS = """
SELECT b.buffer, b.rows, b.capacity, b.fill,
    (SELECT count(DISTINCT e.task_id) FROM experiences e
     WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq) AS tasks,
    b.evict_by, b.oldest_at, b.newest_at, b.last_insert_at, b.created_at
FROM v_buffers b JOIN v_windows w ON w.buffer_id = b.buffer_id
ORDER BY b.buffer
"""


def info(url: Url = None, json: Json = False, csv: Csv = False, ndjson: Ndjson = False) -> None:
    """Show what a database is and all there is to know of its buffers.

    Times are UTC. In a file or a pipe tables are not cut. `sqlbuffer ls` says less, and sooner.
    """
    from sqlbuffer.cli.output import console, shown_url
    from sqlbuffer.storage import readonly, schema_status

    format_, url = chosen(json=json, csv=csv, ndjson=ndjson), database(url)
    found = schema_status.check(url)
    answer = readonly.query(url, _BUFFERS)
    if format_ is Format.TABLE:
        server = schema_status.server(url)
        out = console()
        facts = f"{server.version}, {size(server.size_bytes)}, schema {found.revision}"
        out.print(f"{shown_url(url)}: {facts}", markup=False, soft_wrap=True)
        if answer.rows:
            write(answer.columns, for_people(answer.columns, answer.rows), format_)
        else:
            note("no buffers yet; a program makes one with ReplayBuffer(url, name=...)")
        return
    write(answer.columns, answer.rows, format_)


def for_people(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    """Return rows for a table: the fill as a percentage, times to the second."""
    for row in rows:
        yield [_for_people(name, value) for name, value in zip(columns, row, strict=True)]


def _for_people(column: str, value: Any) -> Any:
    if column == "fill" and value is not None:
        return f"{value:.0%}"
    if column.endswith("_at") and value is not None:
        # SQLite has text. What Python has no date for is shown as it is.
        text = value if isinstance(value, str) else iso_time(value)
        return f"{text[:10]} {text[11:19]}" if text[10:11] == "T" else text
    return value


def size(n_bytes: int) -> str:
    """Return a size as a person reads it."""
    amount = float(n_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"
