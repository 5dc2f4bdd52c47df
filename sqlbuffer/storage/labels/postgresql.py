"""Write and read labels of rows on PostgreSQL."""

import struct
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.arrays import (
    HEADER,
    TRAILER,
    bigint_field,
    double_field,
    fields_of,
    jsonb_field,
    number_array,
    real_array,
    rows_of,
)
from sqlbuffer.storage.labels.tables import LabelColumns

# A transaction that labels rows holds (this, key of a block) as advisory locks. It takes those of
# lower numbers first, so two transactions do not wait for each other.
LABELS_LOCK, BLOCK = 1_397_836_869, 65_536
_LOCK = "SELECT pg_advisory_xact_lock(%s, k) FROM unnest(%s::integer[]) AS k"
_LABELS = (
    "unnest(%s::bigint[], %s::double precision[], %s::double precision[], %s::double precision[], "
    "%s::text[], %s::text[]) AS n(seq, reward_t, adv_t, v_t, extra, fields)"
)
_LABELLED = """
SELECT l.seq, l.reward_t, l.adv_t, l.v_t, l.extra::text, l.fields::text
FROM unnest(sqlbuffer_hold_v1(%s::integer, %s::bigint[])) AS s
CROSS JOIN LATERAL (SELECT * FROM labels x WHERE x.buffer_id = %s AND x.seq = s OFFSET 0) AS l
"""
_NOTE_LABELS = (
    "INSERT INTO label_history (buffer_id, version, seq, reward_t, adv_t, v_t, extra, "
    "fields) SELECT %s::integer, %s::bigint, n.seq, n.reward_t, n.adv_t, n.v_t, n.extra::jsonb, "
    "n.fields::jsonb "
    f"FROM {_LABELS} ON CONFLICT (buffer_id, seq, version) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, fields = excluded.fields, labelled_at = excluded.labelled_at"
)
# An UPDATE would be planned as one of all labels of the buffer.
_LABEL = (
    "INSERT INTO labels (buffer_id, seq, reward_t, adv_t, v_t, extra, fields) "
    "SELECT %s::integer, n.seq, n.reward_t, n.adv_t, n.v_t, n.extra::jsonb, n.fields::jsonb "
    f"FROM {_LABELS} ON CONFLICT (buffer_id, seq) DO UPDATE SET reward_t = excluded.reward_t, "
    "adv_t = excluded.adv_t, v_t = excluded.v_t, extra = excluded.extra, fields = excluded.fields"
)


def locked_labels(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return the labels of rows; see `sqlite.locked_labels`.

    Until the transaction ends, the rows stay, and no other transaction labels them: two of them
    would give a row the same version. A deletion waits, since it does not see labels that are not
    committed.
    """
    driver = driver_of(connection)
    blocks = sorted({seq // BLOCK for seq in seqs})
    keys = [(buffer_id * 1_000_003 + block) % 2**31 for block in blocks]
    driver.execute(_LOCK, (LABELS_LOCK, number_array(keys)))
    # One by one: without statistics the server would rather read all labels of the buffer.
    labels: list[tuple[Any, ...]] = driver.execute(
        _LABELLED, (buffer_id, number_array(seqs), buffer_id)
    ).fetchall()
    return labels


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
    """Store the labels of one version, and the current values; see `sqlite.write_labels`."""
    if not seqs:
        return
    # COPY takes half of the time of an INSERT that looks for the rows.
    driver = driver_of(connection)
    if is_new:
        head = struct.pack(">hiiiq", 8, 4, buffer_id, 8, version)
        _copy(connection, "label_history (buffer_id, version", head, seqs, given)
    else:
        driver.execute(_NOTE_LABELS, (buffer_id, version, *_arrays(seqs, given)))
    if is_first:
        head = struct.pack(">hii", 7, 4, buffer_id)
        _copy(connection, "labels (buffer_id", head, seqs, merged)
    else:
        driver.execute(_LABEL, (buffer_id, *_arrays(seqs, merged)))


def _copy(
    connection: Connection, columns: str, head: bytes, seqs: Sequence[int], labels: LabelColumns
) -> None:
    """Write rows that a table does not have; `columns` are those that all rows share."""
    values = [
        fields_of(seqs, bigint_field),
        *(fields_of(reals, double_field) for reals in labels[:3]),
        *(fields_of(texts, jsonb_field) for texts in labels[3:]),
    ]
    statement = f"COPY {columns}, seq, reward_t, adv_t, v_t, extra, fields) FROM STDIN"
    with (
        driver_of(connection).cursor() as cursor,
        cursor.copy(f"{statement} (FORMAT BINARY)") as copy,
    ):
        copy.write(b"".join([HEADER, rows_of(len(seqs), head, values), TRAILER]))


def _arrays(seqs: Sequence[int], columns: LabelColumns) -> tuple[Any, ...]:
    reals, texts = columns[:3], columns[3:]
    return (number_array(seqs), *map(real_array, reals), *map(list, texts))
