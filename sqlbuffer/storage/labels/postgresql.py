"""Write and read labels of rows on PostgreSQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.arrays import number_array, real_array
from sqlbuffer.storage.labels.label import Labelled

_LABELS = (
    "unnest(%s::bigint[], %s::double precision[], %s::double precision[], %s::double precision[], "
    "%s::text[]) AS n(seq, reward_t, adv_t, v_t, extra)"
)
_NOTE_LABELS = (
    "INSERT INTO label_history (buffer_id, version, seq, reward_t, adv_t, v_t, extra) "
    "SELECT %s::integer, %s::bigint, n.seq, n.reward_t, n.adv_t, n.v_t, n.extra::jsonb "
    f"FROM {_LABELS} ON CONFLICT (buffer_id, seq, version) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, labelled_at = excluded.labelled_at"
)
# An UPDATE would be planned as one of all labels of the buffer.
_LABEL = (
    "INSERT INTO labels (buffer_id, seq, reward_t, adv_t, v_t, extra) "
    f"SELECT %s::integer, n.seq, n.reward_t, n.adv_t, n.v_t, n.extra::jsonb FROM {_LABELS} "
    "ON CONFLICT (buffer_id, seq) DO UPDATE SET reward_t = excluded.reward_t, "
    "adv_t = excluded.adv_t, v_t = excluded.v_t, extra = excluded.extra"
)


def locked_labels(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> dict[int, float | None]:
    """Lock the labels of the rows that the buffer holds; return their late rewards.

    A row without labels gets an empty one first. The rows stay until the transaction ends: a
    deletion does not see labels that are not committed.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: The rows, in ascending order. Two transactions that label the same rows then lock them
            in the same order, without a deadlock.
    """
    driver = driver_of(connection)
    numbers = number_array(seqs)
    driver.execute(
        "INSERT INTO labels (buffer_id, seq) SELECT %s::integer, s "
        "FROM unnest(sqlbuffer_hold_v1(%s::integer, %s::bigint[])) AS s ORDER BY s "
        "ON CONFLICT (buffer_id, seq) DO NOTHING",
        (buffer_id, buffer_id, numbers),
    )
    # One by one: without statistics the server would rather read all labels of the buffer.
    found = driver.execute(
        "SELECT l.seq, l.reward_t FROM unnest(%s::bigint[]) AS s CROSS JOIN LATERAL (SELECT "
        "seq, reward_t FROM labels WHERE buffer_id = %s AND seq = s FOR UPDATE) AS l",
        (numbers, buffer_id),
    )
    return dict(found.fetchall())


def write_labels(
    connection: Connection, buffer_id: int, version: int, rows: Sequence[Labelled]
) -> None:
    """Store the labels of one version, and the current values of the rows."""
    if not rows:
        return
    driver = driver_of(connection)
    columns = _label_arrays([row.history() for row in rows])
    driver.execute(_NOTE_LABELS, (buffer_id, version, *columns))
    driver.execute(_LABEL, (buffer_id, *_label_arrays([row.now() for row in rows])))


def _label_arrays(rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    seqs, *reals, extras = zip(*rows, strict=True)
    return (number_array(seqs), *map(real_array, reals), list(extras))
