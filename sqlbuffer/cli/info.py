"""`sqlbuffer info`: what a database holds."""

from sqlbuffer.cli.options import Url, example

EPILOG = example("sqlbuffer info sqlite:///replay.db")
_BUFFERS = """
SELECT b.buffer, b.rows, b.capacity, b.fill, coalesce(t.tasks, 0) AS tasks, b.evict_by,
    b.last_insert_at
FROM v_buffers b
LEFT JOIN (SELECT buffer, count(DISTINCT task_id) AS tasks FROM v_experiences GROUP BY buffer) t
    ON t.buffer = b.buffer
ORDER BY b.buffer
"""


def info(url: Url = None) -> None:
    """Show the revision of the schema and what every buffer holds."""
    from sqlbuffer.cli.output import console, table
    from sqlbuffer.storage import readonly, schema_status

    found = schema_status.check(url)
    answer = readonly.query(url, _BUFFERS)
    out = console()
    out.print(f"{found.url}: schema {found.revision}", markup=False)
    if not answer.rows:
        out.print("no buffers yet")
        return
    rows = [[*row[:3], _percent(row[3]), *row[4:]] for row in answer.rows]
    out.print(table(answer.columns, rows))


def _percent(fill: float | None) -> str | None:
    return None if fill is None else f"{fill:.0%}"
