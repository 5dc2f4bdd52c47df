"""Write and read labels of rows on SQLite."""

import json
from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.labels.label import Labelled

_LABEL = (
    "INSERT INTO labels (buffer_id, seq, reward_t, adv_t, v_t, extra) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (buffer_id, seq) DO UPDATE SET reward_t = excluded.reward_t, "
    "adv_t = excluded.adv_t, v_t = excluded.v_t, extra = excluded.extra"
)
_NOTE_LABEL = (
    "INSERT INTO label_history (buffer_id, version, seq, reward_t, adv_t, v_t, extra) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, seq, version) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, labelled_at = excluded.labelled_at"
)


def locked_labels(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> dict[int, float | None]:
    """Return the late rewards of the given rows that have labels.

    The transaction is the only one that writes, so it needs no lock.
    """
    found = connection.exec_driver_sql(
        "SELECT seq, reward_t FROM labels WHERE buffer_id = ? "
        "AND seq IN (SELECT value FROM json_each(?))",
        (buffer_id, json.dumps(list(seqs))),
    )
    rewards: dict[int, float | None] = dict(found.all())
    return rewards


def write_labels(
    connection: Connection, buffer_id: int, version: int, rows: Sequence[Labelled]
) -> None:
    """Store the labels of one version, and the current values of the rows."""
    if rows:
        noted = [(buffer_id, version, *row.history()) for row in rows]
        connection.exec_driver_sql(_NOTE_LABEL, noted)
        connection.exec_driver_sql(_LABEL, [(buffer_id, *row.now()) for row in rows])
