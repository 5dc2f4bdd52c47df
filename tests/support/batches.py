"""Batches that say what they should hold, and a record of every insert that was committed.

A batch is one task, named `<writer>_<number>`; its rows have the ids `<batch>_<step>`.
"""

from collections.abc import Iterable
from typing import Any

from sqlbuffer import DataRow, ReplayBuffer
from tests.support.sql import is_sqlite, run
from tests.support.stepped_rows import EVERY_ROW, make_rows

_SQLITE_LOG = (
    "CREATE TABLE insert_log (seq integer, id text)",
    "CREATE TRIGGER log_inserts AFTER INSERT ON experiences "
    "BEGIN INSERT INTO insert_log VALUES (NEW.seq, NEW.id); END",
)
_POSTGRESQL_LOG = (
    "CREATE TABLE insert_log (seq bigint, id text)",
    "CREATE FUNCTION log_inserts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO insert_log SELECT seq, id FROM fresh; RETURN NULL; END $$",
    "CREATE TRIGGER log_inserts AFTER INSERT ON experiences REFERENCING NEW TABLE AS fresh "
    "FOR EACH STATEMENT EXECUTE FUNCTION log_inserts()",
)


def make_batch(name: str, size: int) -> list[DataRow]:
    return make_rows(range(size), task=name, prefix=f"{name}_")


def ids_of(names: Iterable[str], size: int) -> list[str]:
    """Return the ids of all rows of the batches, in order."""
    return [f"{name}_{step}" for name in names for step in range(size)]


def is_as_written(row: DataRow) -> bool:
    """Tell whether a row of a batch came back with all that belongs to it."""
    task, step = row.exp_meta.task_id, row.exp_meta.step
    data = row.exp_data
    return (row.id, data.state, data.actions, data.reward_t) == (
        f"{task}_{step}",
        {"step": step},
        [step],
        float(step),
    )


def log_inserts(url: str) -> None:
    """Have the database note every row that is inserted, in the transaction of the insert."""
    for statement in _SQLITE_LOG if is_sqlite(url) else _POSTGRESQL_LOG:
        run(url, statement)


def logged(url: str) -> list[tuple[int, str]]:
    """Return (seq, id) of every row that was ever committed, in the order of seq."""
    return [(seq, id_) for seq, id_ in run(url, "SELECT seq, id FROM insert_log ORDER BY seq")]


def held(url: str) -> list[tuple[int, str]]:
    """Return (seq, id) of every row in the window, in the order of seq, read by plain SQL."""
    return [(seq, id_) for seq, id_ in run(url, "SELECT seq, id FROM v_experiences ORDER BY seq")]


def counts(url: str, buffer: ReplayBuffer) -> set[int]:
    """Return the number of rows, counted in every way there is; one number if all is well."""
    statements = (
        "SELECT rows FROM v_buffers",
        "SELECT count(*) FROM v_experiences",
        "SELECT sum(steps) FROM v_tasks",
    )
    by_sql = {int(run(url, statement)[0][0] or 0) for statement in statements}
    in_pages = sum(1 for _ in buffer.get_all())
    return {*by_sql, len(buffer), buffer.size(), buffer.size(EVERY_ROW), in_pages}


def batches_of(ids: Iterable[str]) -> dict[str, list[int]]:
    """Return {batch: its steps, ascending} of the ids."""
    found: dict[str, list[int]] = {}
    for id_ in ids:
        name, _, step = id_.rpartition("_")
        found.setdefault(name, []).append(int(step))
    return {name: sorted(steps) for name, steps in found.items()}


def integrity(url: str) -> Any:
    """Return what SQLite finds wrong in its file: `ok`."""
    return run(url, "PRAGMA integrity_check")[0][0]
