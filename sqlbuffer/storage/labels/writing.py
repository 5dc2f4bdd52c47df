"""Write annotations: the values of one version, and the current ones."""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    Text,
    bindparam,
    case,
    func,
    literal,
    select,
    update,
)

from sqlbuffer.codec.plain_values import INT64_MAX, dumps
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.buffers.window import BufferWindow, clean_after_write
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.database.transactions import driver_of, fetch
from sqlbuffer.storage.dialects import (
    HEADER,
    TRAILER,
    bigint_field,
    by_database,
    double_field,
    fields_of,
    jsonb_field,
    number_array,
    real_array,
    rows_of,
)
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.labels.reading import label_histories
from sqlbuffer.storage.labels.tables import label_history
from sqlbuffer.storage.labels.values import Label, in_force, joined, labelled_extra
from sqlbuffer.storage.rollout_stats import Rollout, change_returns
from sqlbuffer.storage.schema.expressions import SeqList, is_number_of, unindexed
from sqlbuffer.storage.schema.json_values import json_kind
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS


class LabelColumns(NamedTuple):
    """Labels of rows, value by value, as the tables of labels hold them.

    Attributes:
        reward_t, adv_t, v_t: Numbers; None for a value that is not given.
        extra, fields: Texts of JSON.
    """

    reward_t: Sequence[float | None]
    adv_t: Sequence[float | None]
    v_t: Sequence[float | None]
    extra: Sequence[str | None]
    fields: Sequence[str | None]


def columns_of(labels: Sequence[Label]) -> LabelColumns:
    """Return labels as columns."""
    rewards, advantages, values, extras, fields = zip(*labels, strict=True) if labels else [()] * 5
    return LabelColumns(rewards, advantages, values, _texts(extras), _texts(fields))


def _texts(trees: Sequence[Mapping[str, Any] | None]) -> Sequence[str | None]:
    if not any(trees):
        return trees  # type: ignore[return-value]  # all None
    return [None if tree is None else dumps(tree) for tree in trees]


_SQLITE_LABEL = (
    "INSERT INTO labels (key, buffer_id, seq, reward_t, adv_t, v_t, extra, fields) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET reward_t = excluded.reward_t, "
    "adv_t = excluded.adv_t, v_t = excluded.v_t, extra = excluded.extra, fields = excluded.fields"
)
_SQLITE_NOTE_LABEL = (
    "INSERT INTO label_history (buffer_id, version, seq, reward_t, adv_t, v_t, extra, fields) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, seq, version) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, fields = excluded.fields, labelled_at = excluded.labelled_at "
    # A repeated call changes nothing, also not the time.
    "WHERE reward_t IS NOT excluded.reward_t OR adv_t IS NOT excluded.adv_t "
    "OR v_t IS NOT excluded.v_t OR extra IS NOT excluded.extra OR fields IS NOT excluded.fields"
)
_SQLITE_LABELLED = (
    "SELECT seq, reward_t, adv_t, v_t, extra, fields FROM labels "
    f"WHERE key IN (SELECT :id << {NUMBER_BITS} | value FROM json_each(:seqs))"
)


def _sqlite_locked_labels(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return (seq, reward, advantage, value, extra, fields) of the given rows that have labels.

    The transaction is the only one that writes, so it needs no lock.
    """
    return fetch(connection, _SQLITE_LABELLED, {"id": buffer_id, "seqs": json.dumps(list(seqs))})


def _sqlite_write_labels(
    connection: Connection,
    buffer_id: int,
    version: int,
    seqs: Sequence[int],
    label_columns: LabelColumns,
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
        label_columns: Values of this version.
        merged: Values of all versions; `extra` is the row's own one with the late keys.
        is_new: No row has values of this version yet.
        is_first: No row has values of any version.
    """
    if seqs:
        n = len(seqs)
        noted = zip([buffer_id] * n, [version] * n, seqs, *label_columns, strict=True)
        connection.exec_driver_sql(_SQLITE_NOTE_LABEL, list(noted))
        keys = [buffer_id << NUMBER_BITS | seq for seq in seqs]
        labels = zip(keys, [buffer_id] * n, seqs, *merged, strict=True)
        connection.exec_driver_sql(_SQLITE_LABEL, list(labels))


# A transaction that labels rows holds (this, key of a block) as advisory locks. It takes those of
# lower numbers first, so two transactions do not wait for each other.
_POSTGRESQL_LABELS_LOCK, _POSTGRESQL_BLOCK = 1_397_836_869, 65_536
_POSTGRESQL_LOCK = "SELECT pg_advisory_xact_lock(%s, k) FROM unnest(%s::integer[]) AS k"
_POSTGRESQL_LABELS = (
    "unnest(%s::bigint[], %s::double precision[], %s::double precision[], %s::double precision[], "
    "%s::text[], %s::text[]) AS n(seq, reward_t, adv_t, v_t, extra, fields)"
)
_POSTGRESQL_LABELLED = """
SELECT l.seq, l.reward_t, l.adv_t, l.v_t, l.extra::text, l.fields::text
FROM unnest(sqlbuffer_hold_v1(%s::integer, %s::bigint[])) AS s
CROSS JOIN LATERAL (SELECT * FROM labels x WHERE x.buffer_id = %s AND x.seq = s OFFSET 0) AS l
"""
_POSTGRESQL_NOTE_LABELS = (
    "INSERT INTO label_history (buffer_id, version, seq, reward_t, adv_t, v_t, extra, "
    "fields) SELECT %s::integer, %s::bigint, n.seq, n.reward_t, n.adv_t, n.v_t, n.extra::jsonb, "
    "n.fields::jsonb "
    f"FROM {_POSTGRESQL_LABELS} ON CONFLICT (buffer_id, seq, version) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, fields = excluded.fields, labelled_at = excluded.labelled_at "
    "WHERE (label_history.reward_t, label_history.adv_t, label_history.v_t, label_history.extra, "
    "label_history.fields) IS DISTINCT FROM (excluded.reward_t, excluded.adv_t, excluded.v_t, "
    "excluded.extra, excluded.fields)"
)
# An UPDATE would be planned as one of all labels of the buffer.
_POSTGRESQL_LABEL = (
    "INSERT INTO labels (buffer_id, seq, reward_t, adv_t, v_t, extra, fields) "
    "SELECT %s::integer, n.seq, n.reward_t, n.adv_t, n.v_t, n.extra::jsonb, n.fields::jsonb "
    f"FROM {_POSTGRESQL_LABELS} ON CONFLICT (buffer_id, seq) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, fields = excluded.fields"
)


def _postgresql_locked_labels(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return the labels of rows; see `_sqlite_locked_labels`.

    Until the transaction ends, the rows stay, and no other transaction labels them: two of them
    would give a row the same version. A deletion waits, since it does not see labels that are not
    committed.
    """
    driver = driver_of(connection)
    blocks = sorted({seq // _POSTGRESQL_BLOCK for seq in seqs})
    keys = [(buffer_id * 1_000_003 + block) % 2**31 for block in blocks]
    driver.execute(_POSTGRESQL_LOCK, (_POSTGRESQL_LABELS_LOCK, number_array(keys)))
    # One by one: without statistics the server would rather read all labels of the buffer.
    labels: list[tuple[Any, ...]] = driver.execute(
        _POSTGRESQL_LABELLED, (buffer_id, number_array(seqs), buffer_id)
    ).fetchall()
    return labels


def _postgresql_write_labels(
    connection: Connection,
    buffer_id: int,
    version: int,
    seqs: Sequence[int],
    label_columns: LabelColumns,
    merged: LabelColumns,
    is_new: bool,
    is_first: bool,
) -> None:
    """Store the labels of one version, and the current values; see `_sqlite_write_labels`."""
    if not seqs:
        return
    # COPY takes half of the time of an INSERT that looks for the rows.
    driver = driver_of(connection)
    if is_new:
        head = struct.pack(">hiiiq", 8, 4, buffer_id, 8, version)
        _postgresql_copy(connection, "label_history (buffer_id, version", head, seqs, label_columns)
    else:
        driver.execute(
            _POSTGRESQL_NOTE_LABELS, (buffer_id, version, *_postgresql_arrays(seqs, label_columns))
        )
    if is_first:
        head = struct.pack(">hii", 7, 4, buffer_id)
        _postgresql_copy(connection, "labels (buffer_id", head, seqs, merged)
    else:
        driver.execute(_POSTGRESQL_LABEL, (buffer_id, *_postgresql_arrays(seqs, merged)))


def _postgresql_copy(
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


def _postgresql_arrays(seqs: Sequence[int], columns: LabelColumns) -> tuple[Any, ...]:
    reals, texts = columns[:3], columns[3:]
    return (number_array(seqs), *map(real_array, reals), *map(list, texts))


locked_labels = by_database(sqlite=_sqlite_locked_labels, postgresql=_postgresql_locked_labels)


write_labels = by_database(sqlite=_sqlite_write_labels, postgresql=_postgresql_write_labels)


ROWS_AT_ONCE = 5_000

# Selects the numbers of rows of a window, in ascending order.
SelectSeqs = Callable[[BufferWindow], Select[Any]]
StepsAt = Callable[[Any, Any], tuple[Any, Any]]


_UNLABELLED: tuple[Label, str | None] = (Label(), None)
_NO_VERSION = -INT64_MAX - 2
_SEQS = bindparam("seqs", type_=SeqList())
_OF = bindparam("of_buffer", type_=label_history.c.buffer_id.type)
_noted = label_history.c


@lru_cache
def _stored_steps(steps_at: StepsAt) -> Select[Any]:
    """Select the steps of some numbers that are there, with what labels change of them."""
    table, is_one = steps_at(_OF, _SEQS)
    step = table.c
    # The payload is only read if needed: rows with tags are rare.
    is_tagged = json_kind(step.extra, stored_path=("$reals",)).is_not(None)
    with_extra = is_tagged | bindparam("with_extra", type_=buffers.c.has_labels.type)
    return select(
        step.seq,
        step.task_id,
        step.episode_id,
        step.reward_t,
        case((with_extra, step.extra)).cast(Text),
    ).where(is_one, unindexed(step.seq) > bindparam("low", type_=BigInteger()))


_HIGHEST = select(func.max(_noted.version)).where(
    _noted.buffer_id == _OF, is_number_of(_noted.seq, _SEQS)
)
# While an episode is open, this is the change of its return by annotations; its end adds the rest.
_RETURN = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_episode"), episodes.c.status != "open")
    .values({"return": func.coalesce(episodes.c["return"], 0.0) + bindparam("change")})
)


class Annotation(NamedTuple):
    """An annotation to write.

    Attributes:
        target: The rows: a function that selects their numbers in a window, or the numbers,
            distinct and in ascending order.
        labels: One label for all rows, or one for each number.
        version: The version; None for one more than the highest version of the rows.
    """

    target: SelectSeqs | Sequence[int]
    labels: Label | Sequence[Label]
    version: int | None

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the rows; none, if a function selects them."""
        return self.target if isinstance(self.target, Sequence) else ()

    def label_of(self) -> Mapping[int, Label] | None:
        """Return the label of each number; None if all rows get the same."""
        if isinstance(self.labels, Label) or not isinstance(self.target, Sequence):
            return None
        return dict(zip(self.target, self.labels, strict=True))


class Annotated(NamedTuple):
    """What became of an annotation.

    Attributes:
        n_rows: Number of annotated rows.
        missing: Numbers that were given, and that the buffer does not hold.
        low: Rows up to this number are evicted.
        high: The newest row.
    """

    n_rows: int
    missing: Sequence[int]
    low: int
    high: int


class Labelling:
    """Annotates the rows of a buffer.

    Args:
        buffer: The buffer.
        steps_at: Returns a table of its steps with some numbers; see `StepLayout.at`.
    """

    def __init__(self, buffer: OpenBuffer, steps_at: StepsAt) -> None:
        self.buffer, self._steps_at = buffer, steps_at

    def annotate(self, annotation: Annotation) -> Annotated:
        """Write an annotation in one transaction."""
        written = self.buffer.write(lambda connection: self._write_labels(connection, annotation))
        clean_after_write(self.buffer.engine, written.n_rows)
        return written

    def _write_labels(self, connection: Connection, annotation: Annotation) -> Annotated:
        window = self.buffer.window_in(connection)
        target, low = annotation.target, window.low
        if isinstance(target, Sequence):
            seqs = [seq for seq in target if low < seq <= window.high]
        else:
            seqs = list(connection.execute(target(window)).scalars())
        if not seqs or not (window.has_labels or self._holds_any(connection, seqs, low)):
            return Annotated(0, annotation.numbers, low, window.high)
        self._begin_labels(connection, window)
        # All rows, in ascending order, before reading values that other transactions may change.
        before: dict[int, tuple[Label, str | None]] = {}
        for portion in _portions(seqs):
            labels = locked_labels(connection, self.buffer.info.id, portion)
            for seq, reward, advantage, value, extra, fields in labels:
                tree = None if fields is None else orjson.loads(fields)
                before[seq] = Label(reward, advantage, value, None, tree), extra
        highest, version = self._highest_version(connection, seqs), annotation.version
        if version is None:
            version = _next_version(highest)
        is_new = version > highest
        changes: dict[Rollout, list[float]] = {}
        written: list[int] = []
        own_labels, of_all = annotation.label_of(), annotation.labels
        for portion in _portions(seqs):
            new_labels: dict[int, Any] = {
                seq: own_labels[seq] if own_labels else of_all for seq in portion
            }
            merged = _joined(before, new_labels) if is_new else None
            written += self._write_portion(
                connection, low, version, new_labels, before, merged, changes
            )
        self.change_returns(connection, changes)
        missing = sorted(set(annotation.numbers).difference(written))
        return Annotated(len(written), missing, low, window.high)

    def _holds_any(self, connection: Connection, seqs: Sequence[int], low: int) -> bool:
        """Return True if any of the rows exists."""
        for portion in _portions(seqs):
            listed = bindparam(None, portion, SeqList())
            table, is_one = self._steps_at(literal(self.buffer.info.id), listed)
            statement = select(table.c.seq).where(is_one, unindexed(table.c.seq) > low).limit(1)
            if connection.execute(statement).first() is not None:
                return True
        return False

    def _begin_labels(self, connection: Connection, window: BufferWindow) -> None:
        is_buffer = buffers.c.id == self.buffer.info.id
        if not window.has_labels:
            connection.execute(update(buffers).where(is_buffer).values(has_labels=True))
        elif window.evict_by != "row":
            # A process that evicts there holds this lock as well, and then episodes and labels.
            connection.execute(
                select(buffers.c.id).where(is_buffer).with_for_update(key_share=True)
            )

    def _highest_version(self, connection: Connection, seqs: Sequence[int]) -> int:
        """Return the highest version of the rows; below all versions if they have none."""
        versions = [
            connection.execute(
                _HIGHEST, {"of_buffer": self.buffer.info.id, "seqs": portion}
            ).scalar()
            for portion in _portions(seqs)
        ]
        return max((version for version in versions if version is not None), default=_NO_VERSION)

    def _write_portion(
        self,
        connection: Connection,
        low: int,
        version: int,
        new_labels: Mapping[int, Label],
        before: Mapping[int, tuple[Label, str | None]],
        merged: Mapping[int, Label] | None,
        changes: dict[Rollout, list[float]],
    ) -> list[int]:
        """Write the labels of some rows, and add up the changes of rollouts' returns.

        Args:
            connection: The transaction.
            low: Rows up to this number have left the window.
            version: The version.
            new_labels: The label of each row in this version.
            before: The labels that rows have, each without extra; and their extra.
            merged: If the version is the newest one: the labels of all versions. Otherwise the
                history of the rows decides.
            changes: Takes the changes of returns.

        Returns:
            Those of the rows that still exist.
        """
        parameters: dict[str, Any] = {"of_buffer": self.buffer.info.id, "seqs": list(new_labels)}
        is_new = merged is not None
        if merged is None:
            new_labels, merged = self._with_history(connection, version, new_labels)
        # The newest version is merged into the present extra, others into the row's own.
        has_extra = any(label.extra is not None for label in merged.values())
        seqs, extras = list[int](), list[str | None]()
        parameters |= {"low": low, "with_extra": has_extra}
        rows = fetch(connection, _stored_steps(self._steps_at), parameters)
        for seq, task, episode, reward, extra in rows:
            label, (present, late_extra) = merged[seq], before.get(seq, _UNLABELLED)
            is_merged = is_new and late_extra is not None
            made = labelled_extra(late_extra if is_merged else extra, label)
            seqs.append(seq)
            extras.append(late_extra if is_merged and made is None else made)
            change = change_of_reward(reward, present.reward_t, label.reward_t)
            if change is not None:
                changes.setdefault((task, episode or 0), []).append(change)
        columns = columns_of([new_labels[seq] for seq in seqs])
        current = columns_of([merged[seq] for seq in seqs])._replace(extra=extras)
        is_first = is_new and not before
        write_labels(
            connection, self.buffer.info.id, version, seqs, columns, current, is_new, is_first
        )
        log_change(connection, self.buffer.info.id, "labelled", seqs, self.buffer.origin)
        return seqs

    def _with_history(
        self, connection: Connection, version: int, new_labels: Mapping[int, Label]
    ) -> tuple[dict[int, Label], dict[int, Label]]:
        """Return for each row the label of a version, and that of all versions."""
        histories = label_histories(connection, self.buffer.info.id, list(new_labels))
        for seq, label in new_labels.items():
            earlier = histories[seq].get(version)
            histories[seq][version] = label if earlier is None else joined(earlier, label)
        of_version = {seq: history[version] for seq, history in histories.items()}
        return of_version, {seq: in_force(history) for seq, history in histories.items()}

    def change_returns(
        self, connection: Connection, changes: Mapping[Rollout, Sequence[float]]
    ) -> None:
        """Add changes of rewards to the returns of rollouts, and tell followers."""
        of_episodes = {episode: rewards for (_, episode), rewards in changes.items() if episode}
        # In the order in which writers lock episodes. Open ones too: an end adds up their rewards.
        ordered = select(episodes.c.id).order_by(episodes.c.id)
        rows = []
        for portion in _portions(sorted(of_episodes)):
            numbers = bindparam(None, portion, SeqList())
            of_buffer = ordered.where(is_number_of(episodes.c.id, numbers))
            ids = connection.execute(of_buffer.with_for_update(key_share=True)).scalars()
            rows += [{"of_episode": id_, "change": math.fsum(of_episodes[id_])} for id_ in ids]
        if rows:
            connection.execute(_RETURN, rows)
            changed = [row["of_episode"] for row in rows]
            log_change(connection, self.buffer.info.id, "episodes", changed, self.buffer.origin)
        change_returns(connection, self.buffer.info.id, changes)


def _joined(
    before: Mapping[int, tuple[Label, str | None]], new_labels: Mapping[int, Label]
) -> Mapping[int, Label]:
    if not before:
        return new_labels
    return {
        seq: joined(before.get(seq, _UNLABELLED)[0], label) for seq, label in new_labels.items()
    }


def _next_version(highest: int) -> int:
    if highest == INT64_MAX:
        raise FieldError(
            f"a row already has the highest version, {INT64_MAX}; pass that version "
            f"to add values to it"
        )
    return 1 if highest == _NO_VERSION else highest + 1


def _portions(seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    return (seqs[start : start + ROWS_AT_ONCE] for start in range(0, len(seqs), ROWS_AT_ONCE))


def change_of_reward(
    stored: float | None, before: float | None, after: float | None
) -> float | None:
    """Return how a late reward changes that of a step; None if it does not.

    Args:
        stored: The reward that it was stored with.
        before: Its late reward so far.
        after: Its late reward from now on.
    """
    current = stored if before is None else before
    if after is None or after == current:
        return None
    if current is None:
        return after
    # A return that an infinite reward made infinite stays infinite.
    return after - current if math.isfinite(current) else None
