"""Values that arrive after a step was stored: their tables, versions, and how they are read."""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Select,
    Text,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement, Null
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_values import INT64_MAX, dumps, tag_text, unescape_key
from sqlbuffer.display import shown
from sqlbuffer.encoding.priority_values import as_array
from sqlbuffer.encoding.records import encode_step
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.query.tree import Group, Node
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
from sqlbuffer.storage.rollout_stats import Rollout, change_returns
from sqlbuffer.storage.schema.expressions import (
    SeqList,
    is_number_of,
    processed,
    unindexed,
    utc_now,
)
from sqlbuffer.storage.schema.json_values import json_kind
from sqlbuffer.storage.schema.metadata import JSON, TIME, overlay_table
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS, is_numbered

# Current values of rows that were annotated: null if the row's own value counts.
labels = overlay_table(
    "labels",
    Column("reward_t", Double, comment="reward given late"),
    Column("adv_t", Double, comment="advantage given late"),
    Column("v_t", Double, comment="value estimate given late"),
    Column("extra", JSON, comment="the row's extra with the keys that were given late"),
    Column("fields", JSON, comment="declared fields that were given late"),
    flag="has_labels",
    flag_comment="rows may have rows in labels and label_history",
    learner_may="INSERT, UPDATE",
    learner_sets_flag=True,
    integer_key=True,
)

label_history = overlay_table(
    "label_history",
    Column(
        "version",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="number of the annotation; the highest one counts",
    ),
    Column("reward_t", Double, comment="reward given"),
    Column("adv_t", Double, comment="advantage given"),
    Column("v_t", Double, comment="value estimate given"),
    Column("extra", JSON, comment="keys of extra given"),
    Column("fields", JSON, comment="declared fields given"),
    Column("labelled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    flag="has_labels",
    learner_may="INSERT, UPDATE",
)


_REALS, _NONE, _PAIRS = "$reals", "$none", "$dict"


class Label(NamedTuple):
    """Values that an annotation gives a row; None for a value that it does not give.

    Attributes:
        reward_t: The reward.
        adv_t: The advantage.
        v_t: The value estimate.
        extra: Keys of extra with their values, as JSON holds them.
        fields: Declared fields with their values.
    """

    reward_t: float | None = None
    adv_t: float | None = None
    v_t: float | None = None
    extra: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] | None = None


def joined(earlier: Label, later: Label) -> Label:
    """Merge two labels: each value of the later one replaces that of the earlier one."""
    return Label(
        earlier.reward_t if later.reward_t is None else later.reward_t,
        earlier.adv_t if later.adv_t is None else later.adv_t,
        earlier.v_t if later.v_t is None else later.v_t,
        _merged_keys(earlier.extra, later.extra),
        _merged_keys(earlier.fields, later.fields),
    )


def _merged_keys(
    earlier: Mapping[str, Any] | None, later: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    return earlier if later is None else later if earlier is None else {**earlier, **later}


def in_force(history: Mapping[int, Label]) -> Label:
    """Merge {version: label}: each value is that of the highest version that gave one."""
    return reduce(joined, (history[version] for version in sorted(history))) if history else Label()


def labelled_extra(extra: str | None, label: Label) -> str | None:
    """Return the JSON of a row's extra with the late keys merged in; None if its own is unchanged.

    The tag of a number that the column cannot hold, such as a reward of NaN, is removed if the
    number was given late.

    Args:
        extra: The row's own extra, as stored.
        label: The merged label of the row.
    """
    tree: dict[str, Any] = {} if extra is None else orjson.loads(extra)
    tags = tree.pop(_REALS, None)
    tags_left = {
        name: tag for name, tag in (tags or {}).items() if getattr(label, name, None) is None
    }
    if label.extra is None and tags_left == (tags or {}):
        return None
    is_none = tree.pop(_NONE, extra is None) and label.extra is None
    merged = {_NONE: True} if is_none else _merged(tree, label.extra or {})
    return dumps({**merged, _REALS: tags_left} if tags_left or is_none else merged)


def _merged(tree: dict[str, Any], late: Mapping[str, Any]) -> dict[str, Any]:
    if tree.keys() != {_PAIRS}:
        return {**tree, **late}
    # A dict with keys that are not text is a list of pairs.
    pairs = [[tag_text(unescape_key(key)), value] for key, value in late.items()]
    late_keys = [key for key, _ in pairs]
    return {
        _PAIRS: sorted([*(p for p in tree[_PAIRS] if p[0] not in late_keys), *pairs], key=dumps)
    }


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


LATE = ("reward_t", "adv_t", "v_t", "extra", "fields")


class late_labels(FunctionElement[Any]):
    """The labels of a row, as a table to the right of a join: `late_labels(buffer_id, seq)`.

    Each row is looked up: PostgreSQL would rather read all labels, or all from the first one on.
    """

    inherit_cache = True


_LATE_COLUMNS = "buffer_id, seq, reward_t, adv_t, v_t, extra, fields"


@compiles(late_labels, "postgresql")
def _pg_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    buffer_id, seq = processed(element, compiler, kw)
    return (
        f"LATERAL (SELECT {_LATE_COLUMNS} FROM labels WHERE buffer_id = {buffer_id} "
        f"AND seq = {seq} OFFSET 0)"
    )


@compiles(late_labels, "sqlite")
def _sqlite_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    return "labels"


@lru_cache(maxsize=64)
def _late_of(steps: Any) -> Any:
    """Return the labels to the right of a join with a table of steps."""
    columns = (column(name, labels.c[name].type) for name in ("buffer_id", "seq", *LATE))
    return late_labels(steps.c.buffer_id, steps.c.seq).table_valued(*columns, name="late")


def resolve_labels(node: Node, has_labels: bool) -> Node:
    """Return a condition that uses current values, if rows may have values that were given late."""
    if not has_labels:
        return node
    if isinstance(node, Group):
        return replace(node, parts=tuple(resolve_labels(part, has_labels) for part in node.parts))
    if node.field.column not in LATE:
        return node
    return replace(node, field=replace(node.field, is_labelled=True))


class merged_fields(FunctionElement[Any]):
    """Declared fields of a row with the late ones in their place: `merged_fields(own, late)`."""

    inherit_cache = True
    type = JSON


@compiles(merged_fields, "postgresql")
def _pg_merged_fields(element: merged_fields, compiler: Any, **kw: Any) -> str:
    stored, late = processed(element, compiler, kw)
    return f"coalesce({stored} || {late}, {stored}, {late})"


@compiles(merged_fields, "sqlite")
def _sqlite_merged_fields(element: merged_fields, compiler: Any, **kw: Any) -> str:
    stored, late = processed(element, compiler, kw)
    return f"coalesce(json_patch({stored}, {late}), {stored}, {late})"


def value_of(name: str, table: Any) -> ColumnElement[Any]:
    """Return a value of one step of a table of steps or an alias of it; looked up one by one."""
    late = (
        select(labels.c[name])
        .where(is_numbered(labels.c.seq, table.c.buffer_id, table.c.seq))
        .correlate(table)
        .scalar_subquery()
    )
    if name == "fields":
        return merged_fields(table.c[name], late)
    value: ColumnElement[Any] = func.coalesce(late, table.c[name], type_=labels.c[name].type)
    return value


def with_labels(rows: Select[Any], steps: Any) -> Select[Any]:
    """Return a select of columns of steps with late values in place of the steps' own.

    `fields` has the late fields only: the others are in the bytes of the step.

    Args:
        rows: The select.
        steps: The table that it reads: `experiences`, or that of steps in chunks.
    """
    columns = [_late_column(column, steps) for column in rows.selected_columns]
    late = _late_of(steps).c
    is_its = is_numbered(late.seq, steps.c.buffer_id, steps.c.seq)
    return rows.with_only_columns(*columns).select_from(steps.outerjoin(_late_of(steps), is_its))


def _late_column(column: Any, steps: Any) -> Any:
    late = _late_of(steps).c
    if column.name == "fields":
        return cast(late.fields, Text).label("fields")
    if column.name not in LATE or _is_left_out(column):
        return column
    name = column.name
    value = func.coalesce(late[name], steps.c[name], type_=steps.c[name].type)
    return (cast(value, Text) if name == "extra" else value).label(name)


def _is_left_out(column: Any) -> bool:
    """Return True if a column is not read, and so has a null in its place."""
    return isinstance(getattr(column, "element", None), Null)


_SQLITE_LABEL = (
    "INSERT INTO labels (key, buffer_id, seq, reward_t, adv_t, v_t, extra, fields) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET reward_t = excluded.reward_t, "
    "adv_t = excluded.adv_t, v_t = excluded.v_t, extra = excluded.extra, fields = excluded.fields"
)
_SQLITE_NOTE_LABEL = (
    "INSERT INTO label_history (buffer_id, version, seq, reward_t, adv_t, v_t, extra, fields) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, seq, version) DO UPDATE "
    "SET reward_t = excluded.reward_t, adv_t = excluded.adv_t, v_t = excluded.v_t, "
    "extra = excluded.extra, fields = excluded.fields, labelled_at = excluded.labelled_at"
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
    "extra = excluded.extra, fields = excluded.fields, labelled_at = excluded.labelled_at"
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


_REAL_LABELS = ("reward_t", "adv_t", "v_t")


@dataclass(frozen=True)
class Given:
    """Values of an annotation, as a caller gave them.

    Attributes:
        reals: `reward_t`, `adv_t` and `v_t`; None for a value that is not given.
        extra: A dict, a list of dicts, or None.
        fields: Declared fields, by name.
        specs: The declared fields of the buffer.
    """

    reals: Mapping[str, Any]
    extra: Any
    fields: Mapping[str, Any]
    specs: Mapping[str, FieldSpec]

    def label(self) -> Label:
        """Return the label that all rows get.

        Raises:
            FieldError: A value is not one finite number, `extra` is not a dict of JSON values, or a
                field cannot be annotated.
        """
        reals = {
            name: _checked_number(name, value)
            for name, value in self.reals.items()
            if value is not None
        }
        fields = {}
        for name, value in self.fields.items():
            if _is_list(name, value):
                raise _not_one_number(name, np.shape(value))
            fields[name] = self._field(name, [value])[0]
        extra = None if self.extra is None else _tree(self.extra, "extra")
        return Label(**reals, extra=extra, fields=fields or None)

    def labels(self, n: int) -> list[Label]:
        """Return the label of each of n rows.

        Raises:
            FieldError: As in `label`, or another shape.
        """
        columns = [_checked_numbers(name, self.reals.get(name), n) for name in _REAL_LABELS]
        rows = zip(*columns, _extras(self.extra, n), self._fields(n), strict=True)
        return [Label(*row) for row in rows]

    def _fields(self, n: int) -> Sequence[dict[str, Any] | None]:
        if not self.fields:
            return [None] * n
        columns = {}
        for name, value in self.fields.items():
            is_list = _is_list(name, value)
            values = self._field(name, value if is_list else [value])
            if is_list and len(values) != n:
                raise FieldError(f"{name}: expected {n} numbers or one, got {len(values)}")
            columns[name] = values if is_list else values * n
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _field(self, name: str, values: Any) -> list[Any]:
        """Return values of a field as JSON has them."""
        spec = self.specs.get(name)
        if spec is None:
            known = ", ".join(name for name, spec in self.specs.items() if spec.is_number)
            raise FieldError(
                f"annotate() does not know {name!r}; it takes reward=, adv_t=, v_t=, extra= and "
                f"scalar fields of the buffer{f': {known}' if known else ', which has none'}"
            )
        if not spec.is_number:
            raise FieldError(
                f"field {name!r}: only a number of up to 64 bits or a boolean can be annotated; "
                f"this is {spec}"
            )
        try:
            cast = spec.cast_rows(values)
        except FieldError as error:  # there is no `casting` here
            text = str(error).removesuffix(", or allow it with casting='unsafe'")
            raise FieldError(text) from None
        if cast.dtype.kind == "f":
            _check_finite(name, cast)
            cast = cast.astype(np.float64)
        listed: list[Any] = cast.tolist()
        return listed


def _is_list(name: str, value: Any) -> bool:
    """Return True for a value for each row, and False for one for all."""
    try:
        return np.ndim(value) > 0
    except ValueError:
        raise FieldError(f"{name}: expected numbers in one dimension, got {shown(value)}") from None


def checked_version(version: Any) -> int | None:
    """Return a version; None if none is given."""
    if isinstance(version, (bool, np.bool_)):
        raise FieldError(f"version: expected an integer of 64 bits, got {shown(version)}")
    return None if version is None else encode_step(version, "version")


def checked_reward(value: Any, name: str) -> float | None:
    """Return a reward; None if none is given."""
    return None if value is None else _checked_number(name, value)


def _checked_number(name: str, value: Any) -> float:
    array = as_array(value, name)
    if array.ndim:
        raise _not_one_number(name, array.shape)
    return _finite(name, array.reshape(1))[0]


def _not_one_number(name: str, shape: tuple[int, ...]) -> FieldError:
    return FieldError(
        f"{name}: a condition, or a set of rows, takes one number for all, got shape "
        f"{shape}; give a list of their seq to label each with its own"
    )


def _checked_numbers(name: str, value: Any, n: int) -> Sequence[float | None]:
    if value is None:
        return [None] * n
    array = as_array(value, name)
    if not array.ndim:
        return _finite(name, array.reshape(1)) * n
    if array.shape != (n,):
        raise FieldError(f"{name}: expected {n} numbers or one, got shape {array.shape}")
    return _finite(name, array)


def _finite(name: str, array: Any) -> list[float]:
    if not array.size:
        return []
    if array.dtype.kind not in "iuf":
        raise FieldError(f"{name}: expected finite numbers, got {shown(array[0])}")
    with np.errstate(over="ignore"):
        reals = array.astype(np.float64) + 0.0  # no -0.0
    _check_finite(name, reals)
    numbers: list[float] = reals.tolist()
    return numbers


def _check_finite(name: str, reals: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(reals))
    if len(wrong):
        place = f"{name}[{wrong[0]}]" if len(reals) > 1 else name
        raise FieldError(f"{place}: expected a finite number, got {reals[wrong[0]]}")


def _extras(extra: Any, n: int) -> Sequence[dict[str, Any] | None]:
    if extra is None:
        return [None] * n
    if isinstance(extra, Mapping):
        return [_tree(extra, "extra")] * n
    if not isinstance(extra, (list, tuple)):
        raise FieldError(
            f"extra: expected a dict, or a list of one for each row, got {shown(extra)}"
        )
    if len(extra) != n:
        raise FieldError(f"extra: expected {n} dicts or one, got {len(extra)}")
    return [_tree(tree, f"extra[{i}]") for i, tree in enumerate(extra)]


def _tree(extra: Any, path: str) -> dict[str, Any]:
    if not isinstance(extra, Mapping) or not extra:
        raise FieldError(f"{path}: expected a dict with at least one key, got {shown(extra)}")
    for key in extra:
        if not isinstance(key, str):
            raise FieldError(f"{path}: its keys are texts, got {shown(key)}")
    encoder = Encoder()
    tree: dict[str, Any] = encoder.tree({str(key): value for key, value in extra.items()}, path)
    if encoder.blob:
        raise FieldError(f"{path}: arrays and bytes are not kept with labels; give JSON values")
    return tree


ROWS_AT_ONCE = 5_000

# Selects the numbers of rows of a window, in ascending order.
SelectSeqs = Callable[[BufferWindow], Select[Any]]
StepsAt = Callable[[Any, Any], tuple[Any, Any]]


_UNLABELLED: tuple[Label, str | None] = (Label(), None)
_NO_VERSION = -INT64_MAX - 2
_SEQS = bindparam("seqs", type_=SeqList())
_OF = bindparam("of_buffer", type_=label_history.c.buffer_id.type)
_given = label_history.c


@lru_cache
def _held(steps_at: StepsAt) -> Select[Any]:
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


_HISTORY = select(
    _given.seq,
    _given.version,
    _given.reward_t,
    _given.adv_t,
    _given.v_t,
    cast(_given.extra, Text),
    cast(_given.fields, Text),
).where(_given.buffer_id == _OF, is_number_of(_given.seq, _SEQS))
_HIGHEST = select(func.max(_given.version)).where(
    _given.buffer_id == _OF, is_number_of(_given.seq, _SEQS)
)
# While an episode is open, this is the change of its return by annotations; its end adds the rest.
_RETURN = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_episode"))
    .values({"return": func.coalesce(episodes.c["return"], 0.0) + bindparam("change")})
)


@dataclass(frozen=True)
class Annotation:
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


@dataclass(frozen=True)
class Annotated:
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
        for chunk in _portions(seqs):
            labels = locked_labels(connection, self.buffer.info.id, chunk)
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
        for chunk in _portions(seqs):
            said: dict[int, Any] = {seq: own_labels[seq] if own_labels else of_all for seq in chunk}
            merged = _joined(before, said) if is_new else None
            written += self._write_chunk(connection, low, version, said, before, merged, changes)
        self._change_returns(connection, changes)
        missing = sorted(set(annotation.numbers).difference(written))
        return Annotated(len(written), missing, low, window.high)

    def _holds_any(self, connection: Connection, seqs: Sequence[int], low: int) -> bool:
        """Return True if any of the rows exists."""
        for chunk in _portions(seqs):
            listed = bindparam(None, chunk, SeqList())
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
            connection.execute(_HIGHEST, {"of_buffer": self.buffer.info.id, "seqs": chunk}).scalar()
            for chunk in _portions(seqs)
        ]
        return max((version for version in versions if version is not None), default=_NO_VERSION)

    def _write_chunk(
        self,
        connection: Connection,
        low: int,
        version: int,
        said: Mapping[int, Label],
        before: Mapping[int, tuple[Label, str | None]],
        merged: Mapping[int, Label] | None,
        changes: dict[Rollout, list[float]],
    ) -> list[int]:
        """Write the labels of some rows, and add up the changes of rollouts' returns.

        Args:
            connection: The transaction.
            low: Rows up to this number have left the window.
            version: The version.
            said: The label of each row.
            before: The labels that rows have, each without extra; and their extra.
            merged: If the version is the newest one: the labels of all versions. Otherwise the
                history of the rows decides.
            changes: Takes the changes of returns.

        Returns:
            Those of the rows that still exist.
        """
        parameters: dict[str, Any] = {"of_buffer": self.buffer.info.id, "seqs": list(said)}
        is_new = merged is not None
        if merged is None:
            said, merged = self._with_history(connection, version, said)
        # The newest version is merged into the present extra, others into the row's own.
        has_extra = any(label.extra is not None for label in merged.values())
        seqs, extras = list[int](), list[str | None]()
        parameters |= {"low": low, "with_extra": has_extra}
        held = fetch(connection, _held(self._steps_at), parameters)
        for seq, task, episode, reward, extra in held:
            label, (present, late_extra) = merged[seq], before.get(seq, _UNLABELLED)
            is_merged = is_new and late_extra is not None
            made = labelled_extra(late_extra if is_merged else extra, label)
            seqs.append(seq)
            extras.append(late_extra if is_merged and made is None else made)
            change = _change(reward, present.reward_t, label.reward_t)
            if change is not None:
                changes.setdefault((task, episode or 0), []).append(change)
        columns = columns_of([said[seq] for seq in seqs])
        now = columns_of([merged[seq] for seq in seqs])._replace(extra=extras)
        is_first = is_new and not before
        write_labels(connection, self.buffer.info.id, version, seqs, columns, now, is_new, is_first)
        log_change(connection, self.buffer.info.id, "labelled", seqs, self.buffer.origin)
        return seqs

    def _with_history(
        self, connection: Connection, version: int, said: Mapping[int, Label]
    ) -> tuple[dict[int, Label], dict[int, Label]]:
        """Return for each row the label of a version, and that of all versions."""
        parameters = {"of_buffer": self.buffer.info.id, "seqs": list(said)}
        histories: dict[int, dict[int, Label]] = {seq: {} for seq in said}
        for seq, its_version, *reals, extra, fields in fetch(connection, _HISTORY, parameters):
            trees = (tree and orjson.loads(tree) for tree in (extra, fields))
            histories[seq][its_version] = Label(*reals, *trees)
        for seq, label in said.items():
            earlier = histories[seq].get(version)
            histories[seq][version] = label if earlier is None else joined(earlier, label)
        of_version = {seq: history[version] for seq, history in histories.items()}
        return of_version, {seq: in_force(history) for seq, history in histories.items()}

    def _change_returns(
        self, connection: Connection, changes: Mapping[Rollout, Sequence[float]]
    ) -> None:
        of_episodes = {episode: rewards for (_, episode), rewards in changes.items() if episode}
        # In the order in which writers end several episodes.
        ordered = select(episodes.c.id).order_by(episodes.c.key, episodes.c.task_id)
        rows = []
        for chunk in _portions(sorted(of_episodes)):
            numbers = bindparam(None, chunk, SeqList())
            of_buffer = ordered.where(is_number_of(episodes.c.id, numbers))
            ids = connection.execute(of_buffer.with_for_update(key_share=True)).scalars()
            rows += [{"of_episode": id_, "change": math.fsum(of_episodes[id_])} for id_ in ids]
        if rows:
            connection.execute(_RETURN, rows)
        change_returns(connection, self.buffer.info.id, changes)


def _joined(
    before: Mapping[int, tuple[Label, str | None]], said: Mapping[int, Label]
) -> Mapping[int, Label]:
    if not before:
        return said
    return {seq: joined(before.get(seq, _UNLABELLED)[0], label) for seq, label in said.items()}


def _next_version(highest: int) -> int:
    if highest == INT64_MAX:
        raise FieldError(
            f"a row already has the highest version, {INT64_MAX}; pass that version "
            f"to add values to it"
        )
    return 1 if highest == _NO_VERSION else highest + 1


def _portions(seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    return (seqs[start : start + ROWS_AT_ONCE] for start in range(0, len(seqs), ROWS_AT_ONCE))


def _change(stored: float | None, before: float | None, now: float | None) -> float | None:
    """Return the change of a row's reward; None if it does not change, or if the row has none."""
    held = stored if before is None else before
    if now is None or now == held:
        return None
    if held is None:
        return now
    # A return that an infinite reward made infinite stays infinite.
    return now - held if math.isfinite(held) else None
