"""Write and read labels of rows on SQLite."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.labels.tables import LabelColumns
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

_LABEL = (
    "INSERT INTO labels (key, buffer_id, seq, reward_t, adv_t, v_t, extra, fields) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET reward_t = excluded.reward_t, "
    "adv_t = excluded.adv_t, v_t = excluded.v_t, extra = excluded.extra, fields = excluded.fields"
)
_NOTE_LABEL = (
    "INSERT INTO label_history (buffer_id, version, seq, reward_t, adv_t, v_t, extra, fields) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, seq, version) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, fields = excluded.fields, labelled_at = excluded.labelled_at"
)
_LABELLED = (
    "SELECT seq, reward_t, adv_t, v_t, extra, fields FROM labels "
    f"WHERE key IN (SELECT :id << {NUMBER_BITS} | value FROM json_each(:seqs))"
)


def locked_labels(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return (seq, reward, advantage, value, extra, fields) of the given rows that have labels.

    The transaction is the only one that writes, so it needs no lock.
    """
    return fetch(connection, _LABELLED, {"id": buffer_id, "seqs": json.dumps(list(seqs))})


def write_labels(
    connection: Connection,
    buffer_id: int,
    version: int,
    seqs: Sequence[int],
    given: LabelColumns,
    merged: LabelColumns,
    is_new: bool,
    is_first: bool,
) -> None:
    """Store the labels of one version, and the current values of the rows.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        version: The version.
        seqs: The rows, in ascending order.
        given: Values of this version.
        merged: Values of all versions; `extra` is the row's own one with the late keys.
        is_new: No row has values of this version yet.
        is_first: No row has values of any version.
    """
    if seqs:
        n = len(seqs)
        noted = zip([buffer_id] * n, [version] * n, seqs, *given, strict=True)
        connection.exec_driver_sql(_NOTE_LABEL, list(noted))
        keys = [buffer_id << NUMBER_BITS | seq for seq in seqs]
        labels = zip(keys, [buffer_id] * n, seqs, *merged, strict=True)
        connection.exec_driver_sql(_LABEL, list(labels))
