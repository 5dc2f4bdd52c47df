"""What became of steps after they were stored, read by runs of their numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.fields import ON_REQUEST, FieldSpec
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects import FIRST_OF_RUN, N_OF_RUN, number_array, number_list, run_list
from sqlbuffer.storage.schema.expressions import listed
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

Integers = NDArray[np.int64]


class Wanted(NamedTuple):
    """Which marks of steps to read.

    Attributes:
        labels: Values that were given late.
        only_rewards: Of these only the rewards.
        quarantine: Steps in quarantine.
        deleted: Deleted steps.
        replaced: Values that were replaced in place.
        values: Advantages and values that were stored with the steps.
        extra: The JSON that was given late in place of `extra`.
    """

    labels: bool = False
    only_rewards: bool = False
    quarantine: bool = False
    deleted: bool = False
    replaced: bool = False
    values: bool = False
    extra: bool = False


@dataclass
class Marks:
    """What became of steps after they were stored, by their numbers.

    Attributes:
        deleted: Steps that were deleted.
        quarantined: Steps in quarantine.
        labels: (seq, reward, adv_t, v_t, JSON of fields) of annotated steps, or (seq, reward) if
            only rewards were wanted; None for a value that was not given.
        excluded: (first seq, n) of runs of steps that may not be sampled, by their model version or
            session.
        replaced: (seq, block of the typed fields, reward, terminated, truncated) of steps that were
            replaced in place.
        values: (seq, None, adv_t, v_t, None) of steps that were stored with such values.
        extras: (seq, JSON) of steps whose `extra` was given late.
    """

    deleted: list[int] = field(default_factory=list)
    quarantined: list[int] = field(default_factory=list)
    labels: list[tuple[Any, ...]] = field(default_factory=list)
    excluded: list[tuple[int, int]] = field(default_factory=list)
    replaced: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[tuple[Any, ...]] = field(default_factory=list)
    extras: list[tuple[int, str]] = field(default_factory=list)

    def add(self, more: "Marks") -> None:
        """Add the marks of other steps."""
        self.deleted += more.deleted
        self.quarantined += more.quarantined
        self.labels += more.labels
        self.excluded += more.excluded
        self.replaced += more.replaced
        self.values += more.values
        self.extras += more.extras


class LateValues(NamedTuple):
    """Late values of steps, each as the places of its steps in arrays, ascending where these
    are, and the values.

    Attributes:
        reals: `reward`, `adv_t` and `v_t`, float64.
        fields: Declared fields, in their dtypes.
    """

    reals: dict[str, tuple[Integers, NDArray[np.float64]]]
    fields: dict[str, tuple[Integers, NDArray[Any]]]


def late_values(
    labels: Sequence[Sequence[Any]],
    specs: Mapping[str, FieldSpec],
    places_of: Callable[[Integers], tuple[Integers, Integers]],
) -> LateValues:
    """Return the late values of steps by their places in arrays; see `Marks.labels`.

    Args:
        labels: The late values of steps.
        specs: The declared fields that the arrays have.
        places_of: Returns for m numbers of steps which of them are there, as indexes below m, and
            the place of each; a step may be at several places.
    """
    late = LateValues({}, {})
    if not labels:
        return late
    seqs, rewards, *others = zip(*labels, strict=True)
    which, places = places_of(np.array(seqs, np.int64))
    *reals_of, texts = others or ((), (), ())
    for name, column in zip(("reward", *ON_REQUEST), (rewards, *reals_of), strict=True):
        if column.count(None) == len(column):
            continue
        reals = np.array(column, np.float64)[which]
        is_given = ~np.isnan(reals)
        if is_given.any():
            late.reals[name] = places[is_given], reals[is_given]
    if texts.count(None) == len(texts):
        return late
    for name, (rows, values) in _late_fields(texts, specs).items():
        value_of = np.full(len(seqs), -1)
        value_of[rows] = np.arange(len(rows))
        indexes = value_of[which]
        if (indexes >= 0).any():
            late.fields[name] = places[indexes >= 0], values[indexes[indexes >= 0]]
    return late


def _late_fields(
    texts: Sequence[str | None], specs: Mapping[str, FieldSpec]
) -> dict[str, tuple[list[int], NDArray[Any]]]:
    """Return for each field the indexes of the texts that have it, and its values."""
    values: dict[str, dict[int, Any]] = {}
    for row, text in enumerate(texts):
        if text is not None:
            for name, value in orjson.loads(text).items():
                if name in specs:
                    values.setdefault(name, {})[row] = value
    return {
        name: (list(value_of_index), np.array(list(value_of_index.values()), specs[name].dtype))
        for name, value_of_index in values.items()
    }


def runs_of(seqs: Iterable[int], gap: int = 0) -> list[tuple[int, int]]:
    """Return numbers as runs of consecutive ones, (first, n) of at most as many as a chunk has.

    Args:
        seqs: The numbers.
        gap: Most numbers in sequence that are missing and that a run has all the same.
    """
    runs: list[tuple[int, int]] = []
    first, beyond = -1, -1 - gap
    for seq in sorted(set(seqs)):
        if seq > beyond + gap or seq - first >= MAX_CHUNK_STEPS:
            if beyond > first:
                runs.append((first, beyond - first))
            first = seq
        beyond = seq + 1
    if beyond > first:
        runs.append((first, beyond - first))
    return runs


_IN_RUN = f"""FROM json_each(:runs) r CROSS JOIN {{table}} x ON x.buffer_id = :id
    AND x.seq >= {FIRST_OF_RUN} AND x.seq < {FIRST_OF_RUN} + {N_OF_RUN}"""
_DELETED_STEPS = f"SELECT x.seq {_IN_RUN.format(table='deleted_steps')}"
_QUARANTINED = f"SELECT x.seq {_IN_RUN.format(table='quarantine')}"
# By whether only rewards are wanted: each column takes a tenth of the time.
_LATE_COLUMNS = {
    True: ("seq", "reward_t"), False: ("seq", "reward_t", "adv_t", "v_t", "fields"),
}  # fmt: skip
_LATE_VALUES = {
    only_rewards: f"""SELECT {", ".join(f"x.{name}" for name in names)}
FROM json_each(:runs) r CROSS JOIN labels x
    ON x.key >= (:id << {NUMBER_BITS}) + {FIRST_OF_RUN}
    AND x.key < (:id << {NUMBER_BITS}) + {FIRST_OF_RUN} + {N_OF_RUN}"""
    for only_rewards, names in _LATE_COLUMNS.items()
}
_REPLACED = {
    "sqlite": f"""SELECT x.seq, x.record, x.reward_t, x.terminated, x.truncated
{_IN_RUN.format(table="replaced_steps")}""",
    "postgresql": """SELECT x.seq, x.record, x.reward_t, x.terminated, x.truncated
FROM unnest(%(firsts)s::bigint[], %(ends)s::bigint[]) AS r(first, beyond)
CROSS JOIN LATERAL (SELECT * FROM replaced_steps y
    WHERE y.buffer_id = %(id)s::integer AND y.seq >= r.first AND y.seq < r.beyond OFFSET 0) x""",
}
_EXTRAS = {
    "sqlite": f"""SELECT x.seq, x.extra FROM json_each(:runs) r CROSS JOIN labels x
    ON x.key >= (:id << {NUMBER_BITS}) + {FIRST_OF_RUN}
    AND x.key < (:id << {NUMBER_BITS}) + {FIRST_OF_RUN} + {N_OF_RUN} WHERE x.extra NOT NULL""",
    "postgresql": """SELECT x.seq, x.extra::text
FROM unnest(%(firsts)s::bigint[], %(ends)s::bigint[]) AS r(first, beyond)
CROSS JOIN LATERAL (SELECT * FROM labels y
    WHERE y.buffer_id = %(id)s::integer AND y.seq >= r.first AND y.seq < r.beyond OFFSET 0) x
WHERE x.extra IS NOT NULL""",
}
_VALUES = {
    "sqlite": f"""SELECT c.first_seq, c.n_steps, c.adv_t, c.v_t
FROM json_each(:chunks) w CROSS JOIN chunks c ON c.key = (:id << {NUMBER_BITS} | w.value)
WHERE c.adv_t NOT NULL OR c.v_t NOT NULL""",
    "postgresql": """SELECT c.first_seq, c.n_steps, c.adv_t, c.v_t
FROM unnest(%(chunks)s::bigint[]) AS w(seq) CROSS JOIN LATERAL (
    SELECT * FROM chunks x WHERE x.buffer_id = %(id)s::integer AND x.first_seq = w.seq OFFSET 0) c
WHERE c.adv_t IS NOT NULL OR c.v_t IS NOT NULL""",
}
_OF_ROWS = {
    "sqlite": f"""SELECT x.seq, NULL, x.adv_t, x.v_t, NULL FROM json_each(:chunks) w
CROSS JOIN experiences x ON x.key = (:id << {NUMBER_BITS} | w.value)
WHERE x.adv_t NOT NULL OR x.v_t NOT NULL""",
    "postgresql": """SELECT x.seq, NULL, x.adv_t, x.v_t, NULL
FROM unnest(%(chunks)s::bigint[]) AS w(seq) CROSS JOIN LATERAL (SELECT * FROM experiences r
    WHERE r.buffer_id = %(id)s::integer AND r.seq = w.seq OFFSET 0) x
WHERE x.adv_t IS NOT NULL OR x.v_t IS NOT NULL""",
}
_PG = """FROM sqlbuffer_marks_v1(%(id)s::integer, %(seqs)s::bigint[], %(firsts)s::bigint[],
    %(ends)s::bigint[], %(kinds)s::integer) m"""
# PostgreSQL finds the steps of short runs faster by a list of their numbers.
_SHORT_RUN = 16
_PG_LATE, _PG_KINDS = (
    {
        only_rewards: f"SELECT {', '.join(f'm.{name}' for name in (*kind, *names))} {_PG}"
        for only_rewards, names in _LATE_COLUMNS.items()
    }
    for kind in ((), ("kind",))
)
# Kinds of `sqlbuffer_marks_v1`.
_LABELS, _QUARANTINE, _DELETED = 1, 2, 4


def read_marks(
    connection: Connection,
    buffer_id: int,
    runs: Iterable[tuple[int, int]],
    wanted: Wanted,
    *,
    has_chunks: bool,
    chunks: Iterable[int] = (),
) -> Marks:
    """Return what became of the steps of runs of numbers; all but `excluded`.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        runs: (first, n) of each run, with n at most 256; they may overlap.
        wanted: The marks to read.
        has_chunks: The steps are in chunks; otherwise each is a row.
        chunks: First numbers of their chunks, or numbers of the rows, if values are wanted.
    """
    # Of runs that begin with the same step, the longest.
    distinct = dict(sorted(runs))
    if not distinct or not any(wanted):
        return Marks()
    dialect, parameters = connection.dialect.name, dict[str, Any](id=buffer_id)
    if dialect == "sqlite":
        parameters |= {"runs": run_list(distinct.items()), "chunks": number_list(sorted(chunks))}
        marks = _sqlite_marks(connection, parameters, wanted)
    else:
        ends = [first + n for first, n in distinct.items()]
        parameters |= {"firsts": number_array(distinct), "ends": number_array(ends)}
        parameters["chunks"] = number_array(sorted(chunks))
        marks = _pg_marks(connection, buffer_id, distinct, wanted)
    if wanted.replaced:
        marks.replaced = fetch(connection, _REPLACED[dialect], parameters)
    if wanted.extra:
        marks.extras = fetch(connection, _EXTRAS[dialect], parameters)
    if wanted.values and has_chunks:
        marks.values = _values_of(fetch(connection, _VALUES[dialect], parameters))
    elif wanted.values:  # NaN, which columns of SQLite cannot hold, is none in batches too
        marks.values = fetch(connection, _OF_ROWS[dialect], parameters)
    return marks


def _sqlite_marks(connection: Connection, parameters: dict[str, Any], wanted: Wanted) -> Marks:
    marks = Marks()
    if wanted.deleted:
        marks.deleted = [seq for (seq,) in fetch(connection, _DELETED_STEPS, parameters)]
    if wanted.quarantine:
        marks.quarantined = [seq for (seq,) in fetch(connection, _QUARANTINED, parameters)]
    if wanted.labels:
        marks.labels = fetch(connection, _LATE_VALUES[wanted.only_rewards], parameters)
    return marks


def _pg_marks(
    connection: Connection, buffer_id: int, runs: Mapping[int, int], wanted: Wanted
) -> Marks:
    marks = Marks()
    kinds = _LABELS * wanted.labels | _QUARANTINE * wanted.quarantine | _DELETED * wanted.deleted
    if not kinds:
        return marks
    long = {first: n for first, n in runs.items() if n > _SHORT_RUN}
    seqs = {seq for first, n in runs.items() if n <= _SHORT_RUN for seq in range(first, first + n)}
    parameters = {
        "id": buffer_id,
        "seqs": number_array(sorted(seqs)),
        "firsts": number_array(long),
        "ends": number_array([first + n for first, n in long.items()]),
        "kinds": kinds,
    }
    if kinds == _LABELS:
        marks.labels = fetch(connection, _PG_LATE[wanted.only_rewards], parameters)
    else:
        rows = fetch(connection, _PG_KINDS[wanted.only_rewards], parameters)
        marks.labels = [row[1:] for row in rows if row[0] == _LABELS]
        marks.quarantined = [seq for kind, seq, *_ in rows if kind == _QUARANTINE]
        marks.deleted = [seq for kind, seq, *_ in rows if kind == _DELETED]
    return marks


def _values_of(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return `Marks.values` of (first seq, n, advantages, values) of chunks; None for none."""
    marks: list[tuple[Any, ...]] = []
    for first_seq, n, *columns in rows:
        advantages, values = (listed(one) or [None] * n for one in columns)
        seqs = range(first_seq, first_seq + n)
        none = [None] * n
        marks += zip(seqs, none, advantages, values, none, strict=True)
    return marks
