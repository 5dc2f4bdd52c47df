"""SQL expressions that the two databases write differently; call sites stay dialect-free.

`JsonValue` stands for a value inside a JSON column. It is never selected itself: the functions
below take it apart, each with the type tested first, so that a value of another type gives null and
never an error.
"""

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

from sqlalchemy import BigInteger, Boolean, Double, Executable, Numeric, Select, Text, bindparam
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement, ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from sqlbuffer.codec.scalar_tags import escape_key

_TEXT = Text()


class utc_now(FunctionElement[Any]):
    """Now, as the TIME columns hold it."""

    inherit_cache = True
    type = Text()


@compiles(utc_now, "postgresql")
def _pg_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "now()"


@compiles(utc_now, "sqlite")
def _sqlite_utc_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    return "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"


class age_s(FunctionElement[float]):
    """How many seconds ago a TIME column was, by the database's clock."""

    inherit_cache = True
    type = Double()


@compiles(age_s, "postgresql")
def _pg_age_s(element: age_s, compiler: Any, **kw: Any) -> str:
    (column,) = _processed(element, compiler, kw)
    return f"CAST(extract(epoch FROM clock_timestamp() - {column}) AS double precision)"


@compiles(age_s, "sqlite")
def _sqlite_age_s(element: age_s, compiler: Any, **kw: Any) -> str:
    (column,) = _processed(element, compiler, kw)
    return f"((julianday('now') - julianday({column})) * 86400.0)"


class unix_now(FunctionElement[float]):
    """Now, in Unix seconds."""

    inherit_cache = True
    type = Double()


@compiles(unix_now, "postgresql")
def _pg_unix_now(element: unix_now, compiler: Any, **kw: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


@compiles(unix_now, "sqlite")
def _sqlite_unix_now(element: unix_now, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


class last_number(FunctionElement[int]):
    """The latest number that a buffer has given: `last_number(buffer_id)`."""

    inherit_cache = True
    type = BigInteger()


@compiles(last_number, "postgresql")
def _pg_last_number(element: last_number, compiler: Any, **kw: Any) -> str:
    (buffer_id,) = _processed(element, compiler, kw)
    last = f"pg_sequence_last_value(to_regclass('sqlbuffer_seq_' || {buffer_id}))"
    # A standby is told of 32 numbers ahead.
    newest = (
        f"(SELECT e.seq FROM experiences AS e WHERE e.buffer_id = {buffer_id} "
        "ORDER BY e.seq DESC LIMIT 1)"
    )
    on_standby = f"coalesce(greatest({last} - 32, {newest}), 0)"
    return f"CASE WHEN pg_is_in_recovery() THEN {on_standby} ELSE coalesce({last}, 0) END"


class is_standby(FunctionElement[bool]):
    """Whether the server is a standby, which takes no writes."""

    inherit_cache = True
    type = Boolean()


@compiles(is_standby, "postgresql")
def _pg_is_standby(element: is_standby, compiler: Any, **kw: Any) -> str:
    return "pg_is_in_recovery()"


@compiles(is_standby, "sqlite")
def _sqlite_is_standby(element: is_standby, compiler: Any, **kw: Any) -> str:
    return "0"


@compiles(last_number, "sqlite")
def _sqlite_last_number(element: last_number, compiler: Any, **kw: Any) -> str:
    (buffer_id,) = _processed(element, compiler, kw)
    return f"(SELECT n.next_seq - 1 FROM buffers AS n WHERE n.id = {buffer_id})"


class seconds_ago(FunctionElement[Any]):
    """So many seconds before now, as the TIME columns hold it."""

    inherit_cache = True
    type = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")


@compiles(seconds_ago, "postgresql")
def _pg_seconds_ago(element: seconds_ago, compiler: Any, **kw: Any) -> str:
    (seconds,) = _processed(element, compiler, kw)
    return f"now() - make_interval(secs => {seconds})"


@compiles(seconds_ago, "sqlite")
def _sqlite_seconds_ago(element: seconds_ago, compiler: Any, **kw: Any) -> str:
    (seconds,) = _processed(element, compiler, kw)
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (-{seconds}) || ' seconds')"


class is_past(FunctionElement[bool]):
    """Whether a TIME column is not later than now, by the database's clock at this statement."""

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(is_past, "postgresql")
def _pg_is_past(element: is_past, compiler: Any, **kw: Any) -> str:
    (column,) = _processed(element, compiler, kw)
    return f"{column} <= clock_timestamp()"


@compiles(is_past, "sqlite")
def _sqlite_is_past(element: is_past, compiler: Any, **kw: Any) -> str:
    (column,) = _processed(element, compiler, kw)
    return f"{column} <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"


class in_seconds(FunctionElement[Any]):
    """So many seconds from now, as the TIME columns hold it, by the clock at this statement."""

    inherit_cache = True
    type = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")


@compiles(in_seconds, "postgresql")
def _pg_in_seconds(element: in_seconds, compiler: Any, **kw: Any) -> str:
    (seconds,) = _processed(element, compiler, kw)
    return f"clock_timestamp() + make_interval(secs => {seconds})"


@compiles(in_seconds, "sqlite")
def _sqlite_in_seconds(element: in_seconds, compiler: Any, **kw: Any) -> str:
    (seconds,) = _processed(element, compiler, kw)
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', {seconds} || ' seconds')"


class explain(Executable, ClauseElement):
    """The plan of a statement, a line a row."""

    inherit_cache = False

    def __init__(self, statement: Select[Any]) -> None:
        self.statement = statement


@compiles(explain, "postgresql")
def _pg_explain(element: explain, compiler: Any, **kw: Any) -> str:
    return f"EXPLAIN {compiler.process(element.statement, **kw)}"


@compiles(explain, "sqlite")
def _sqlite_explain(element: explain, compiler: Any, **kw: Any) -> str:
    return f"EXPLAIN QUERY PLAN {compiler.process(element.statement, **kw)}"


class is_one_of(FunctionElement[bool]):
    """Whether a column is among the values of one array parameter, so that the statement's text
    does not vary with their number.

    `is_one_of(column, values)`: the values are a list, bound as an array on PostgreSQL and as JSON
    on SQLite.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True  # or SQLAlchemy writes `= 1` behind it, which no index serves


@compiles(is_one_of, "postgresql")
def _pg_is_one_of(element: is_one_of, compiler: Any, **kw: Any) -> str:
    column, values = element.clauses
    return f"{compiler.process(column, **kw)} = ANY ({compiler.process(values, **kw)})"


@compiles(is_one_of, "sqlite")
def _sqlite_is_one_of(element: is_one_of, compiler: Any, **kw: Any) -> str:
    column, values = element.clauses
    listed = f"SELECT value FROM json_each({compiler.process(values, **kw)})"
    return f"{compiler.process(column, **kw)} IN ({listed})"


class is_number_of(is_one_of):
    """The same for a column of numbers and a `SeqList`."""

    inherit_cache = True


@compiles(is_number_of, "postgresql")
def _pg_is_number_of(element: is_number_of, compiler: Any, **kw: Any) -> str:
    column, values = _processed(element, compiler, kw)
    return f"{column} = ANY ({_pg_array(values)})"


def _pg_array(seqs: str) -> str:
    """Return the array of a `SeqList`, made of its text once: where no index serves, a cast of its
    own would be made for each row, 0.1 ms of 500 numbers.
    """
    return f"CAST((SELECT CAST({seqs} AS bigint[])) AS bigint[])"


class has_key(FunctionElement[bool]):
    """Whether a row of `experiences` is one of a buffer's numbers: `has_key(buffer_id, seqs)`.

    PostgreSQL without statistics takes a buffer for a few rows and would rather read all of them;
    so each number is looked up alone, by the primary key, and the rows are fetched by their place.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(has_key, "postgresql")
def _pg_has_key(element: has_key, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = (compiler.process(clause, **kw) for clause in element.clauses)
    its_place = (
        f"SELECT ctid FROM experiences WHERE buffer_id = {buffer_id} AND seq = k.seq LIMIT 1"
    )
    numbers = f"CAST({seqs} AS bigint[])"
    places = f"SELECT e.ctid FROM unnest({numbers}) AS k(seq) CROSS JOIN LATERAL ({its_place}) AS e"
    return f"experiences.ctid = ANY (ARRAY({places}))"


@compiles(has_key, "sqlite")
def _sqlite_has_key(element: has_key, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = (compiler.process(clause, **kw) for clause in element.clauses)
    return (
        f"experiences.buffer_id = {buffer_id} "
        f"AND experiences.seq IN (SELECT value FROM json_each({seqs}))"
    )


class not_used_up(FunctionElement[bool]):
    """Whether a row of `experiences` was used less than so often, of rows that are among numbers:
    `not_used_up(buffer_id, seqs, max_use)`.

    PostgreSQL looks the counts of all numbers up at once: a third of the time that one subquery for
    each row takes.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(not_used_up, "postgresql")
def _pg_not_used_up(element: not_used_up, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs, max_use = _processed(element, compiler, kw)
    return (
        f"experiences.seq NOT IN (SELECT u.seq FROM uses u WHERE u.buffer_id = {buffer_id} "
        f"AND u.seq = ANY ({_pg_array(seqs)}) AND u.n_uses >= {max_use})"
    )


@compiles(not_used_up, "sqlite")
def _sqlite_not_used_up(element: not_used_up, compiler: Any, **kw: Any) -> str:
    buffer_id, _, max_use = _processed(element, compiler, kw)
    return (
        f"NOT EXISTS (SELECT 1 FROM uses u WHERE u.buffer_id = {buffer_id} "
        f"AND u.seq = experiences.seq AND u.n_uses >= {max_use})"
    )


class not_in_quarantine(FunctionElement[bool]):
    """Whether a row of `experiences` is not in quarantine, of rows that are among numbers:
    `not_in_quarantine(buffer_id, seqs)`; see `not_used_up`.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(not_in_quarantine, "postgresql")
def _pg_not_in_quarantine(element: not_in_quarantine, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = _processed(element, compiler, kw)
    return (
        f"experiences.seq NOT IN (SELECT q.seq FROM quarantine q WHERE q.buffer_id = {buffer_id} "
        f"AND q.seq = ANY ({_pg_array(seqs)}))"
    )


@compiles(not_in_quarantine, "sqlite")
def _sqlite_not_in_quarantine(element: not_in_quarantine, compiler: Any, **kw: Any) -> str:
    buffer_id, _ = _processed(element, compiler, kw)
    return (
        f"NOT EXISTS (SELECT 1 FROM quarantine q WHERE q.buffer_id = {buffer_id} "
        "AND q.seq = experiences.seq)"
    )


class seqs_of(FunctionElement[Any]):
    """The numbers that a select of `key` returns, in the form of a parameter of numbers."""

    inherit_cache = True


@compiles(seqs_of, "postgresql")
def _pg_seqs_of(element: seqs_of, compiler: Any, **kw: Any) -> str:
    (keys,) = _processed(element, compiler, kw)
    return f"ARRAY{keys}"


@compiles(seqs_of, "sqlite")
def _sqlite_seqs_of(element: seqs_of, compiler: Any, **kw: Any) -> str:
    (keys,) = _processed(element, compiler, kw)
    return f"(SELECT json_group_array(key) FROM {keys})"


class numbers_in(FunctionElement[Any]):
    """A table of the numbers of one parameter, its columns `value` and `place`."""

    inherit_cache = True


@compiles(numbers_in, "postgresql")
def _pg_numbers_in(element: numbers_in, compiler: Any, **kw: Any) -> str:
    (numbers,) = _processed(element, compiler, kw)
    return (
        f"(SELECT value, place FROM unnest(CAST({numbers} AS bigint[])) "
        "WITH ORDINALITY AS n(value, place))"
    )


@compiles(numbers_in, "sqlite")
def _sqlite_numbers_in(element: numbers_in, compiler: Any, **kw: Any) -> str:
    (numbers,) = _processed(element, compiler, kw)
    return f"(SELECT value, key AS place FROM json_each({numbers}))"


class steps_near(FunctionElement[Any]):
    """A table of steps and what they are near to: `steps_near(buffer_id, anchors, first, last)`.

    `anchors` is a select of (episode_id, t, length); for each of its rows come the buffer's rows of
    the episode from t + first to t + last but itself, with its t and length beside them. Looked up
    anchor by anchor: PostgreSQL without statistics would rather read the whole buffer.
    """

    inherit_cache = True
    COLUMNS: tuple[str, ...] = (
        "seq", "episode_id", "t", "reward_t", "terminated", "truncated", "extra", "arrays",
    )  # fmt: skip


class limited_steps_near(steps_near):
    """The same with what limits go by."""

    inherit_cache = True
    COLUMNS = (*steps_near.COLUMNS, "model_version", "session_id")


@compiles(steps_near, "postgresql")
def _pg_steps_near(element: steps_near, compiler: Any, **kw: Any) -> str:
    buffer_id, anchors, first, last = _processed(element, compiler, kw)
    columns = ", ".join(element.COLUMNS)
    return (
        f"(SELECT a.t AS anchor_t, a.length, f.* FROM {anchors} AS a CROSS JOIN LATERAL ("
        f"SELECT {columns} FROM experiences WHERE buffer_id = {buffer_id} "
        f"AND episode_id = a.episode_id AND t BETWEEN a.t + {first} AND a.t + {last} AND t <> a.t "
        "OFFSET 0) f)"
    )


@compiles(steps_near, "sqlite")
def _sqlite_steps_near(element: steps_near, compiler: Any, **kw: Any) -> str:
    buffer_id, anchors, first, last = _processed(element, compiler, kw)
    columns = ", ".join(f"f.{name}" for name in element.COLUMNS)
    # CROSS JOIN, or SQLite may turn the loops around.
    return (
        f"(SELECT a.t AS anchor_t, a.length, {columns} FROM {anchors} AS a "
        f"CROSS JOIN experiences AS f WHERE f.buffer_id = {buffer_id} "
        f"AND f.episode_id = a.episode_id AND f.t BETWEEN a.t + {first} AND a.t + {last} "
        "AND f.t <> a.t)"
    )


class late_labels(FunctionElement[Any]):
    """The labels of a row, as a table to the right of a join: `late_labels(buffer_id, seq)`.

    Looked up row by row: PostgreSQL would rather read all labels, or from the first of them on.
    """

    inherit_cache = True


_LATE_COLUMNS = "buffer_id, seq, reward_t, adv_t, v_t, extra"


@compiles(late_labels, "postgresql")
def _pg_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    buffer_id, seq = _processed(element, compiler, kw)
    return (
        f"LATERAL (SELECT {_LATE_COLUMNS} FROM labels WHERE buffer_id = {buffer_id} "
        f"AND seq = {seq} OFFSET 0)"
    )


@compiles(late_labels, "sqlite")
def _sqlite_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    return "labels"


class labelled_steps(FunctionElement[Any]):
    """The table of `steps_near` with values that were given late: `labelled_steps(buffer_id,
    steps)`.
    """

    inherit_cache = True


_REPLACED = {name: f"coalesce(l.{name}, s.{name}) AS {name}" for name in ("reward_t", "extra")}


def _labelled_columns(element: labelled_steps) -> str:
    _, steps = element.clauses
    names: Sequence[str] = ("anchor_t", "length", *getattr(steps, "COLUMNS", ()))
    return ", ".join(_REPLACED.get(name, f"s.{name}") for name in names)


@compiles(labelled_steps, "postgresql")
def _pg_labelled_steps(element: labelled_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, steps = _processed(element, compiler, kw)
    return (
        f"(SELECT {_labelled_columns(element)} FROM {steps} AS s LEFT JOIN LATERAL ("
        f"SELECT reward_t, extra FROM labels WHERE buffer_id = {buffer_id} AND seq = s.seq "
        "OFFSET 0) AS l ON true)"
    )


@compiles(labelled_steps, "sqlite")
def _sqlite_labelled_steps(element: labelled_steps, compiler: Any, **kw: Any) -> str:
    buffer_id, steps = _processed(element, compiler, kw)
    return (
        f"(SELECT {_labelled_columns(element)} FROM {steps} AS s "
        f"LEFT JOIN labels AS l ON l.buffer_id = {buffer_id} AND l.seq = s.seq)"
    )


def _processed(element: FunctionElement[Any], compiler: Any, kw: Any) -> list[str]:
    # Else a select inside takes part in the FROM around it.
    kw = {name: value for name, value in kw.items() if name not in ("asfrom", "from_linter")}
    return [compiler.process(clause, **kw) for clause in element.clauses]


class unindexed(FunctionElement[int]):
    """The column itself, but no index on it serves: for bounds and orders that would lure the
    planner from a better index.
    """

    inherit_cache = True
    type = BigInteger()


@compiles(unindexed)
def _unindexed(element: unindexed, compiler: Any, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


class position_of(FunctionElement[int]):
    """Where the second text begins in the first, from 1, or 0; case-sensitive, no wildcards."""

    inherit_cache = True
    type = BigInteger()


@compiles(position_of, "postgresql")
def _pg_position_of(element: position_of, compiler: Any, **kw: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **kw)})"


@compiles(position_of, "sqlite")
def _sqlite_position_of(element: position_of, compiler: Any, **kw: Any) -> str:
    return f"instr({compiler.process(element.clauses, **kw)})"


class user_extra(FunctionElement[Any]):
    """The `extra` column without the tags of real columns."""

    inherit_cache = True
    type = Text().with_variant(JSONB(), "postgresql")


@compiles(user_extra, "postgresql")
def _pg_user_extra(element: user_extra, compiler: Any, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    return f"(CASE WHEN {column} -> '$none' IS NULL THEN {column} - '$reals' END)"


@compiles(user_extra, "sqlite")
def _sqlite_user_extra(element: user_extra, compiler: Any, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    untagged = f"""json_remove({column}, '$."$reals"')"""
    return f"""(CASE WHEN json_extract({column}, '$."$none"') IS NULL THEN {untagged} END)"""


class _JsonFunction(FunctionElement[Any]):
    """A function of (document, paths): on PostgreSQL chains of operators, on SQLite JSON path
    texts.
    """

    inherit_cache = False
    type: TypeEngine[Any]
    _is_implicitly_boolean = True

    def __init__(
        self,
        document: ColumnElement[Any],
        path: Sequence[str | int] = (),
        *arguments: Any,
        stored_path: tuple[str, ...] = (),
    ) -> None:
        self.path, self.stored_path = path, stored_path
        super().__init__(document, *arguments)

    def alternatives(self, *, keys_apart: bool) -> list[tuple[str | int, ...]]:
        """Return the paths that the value may stand at: an index finds an element of a list or a
        tuple, or the dict key of that name.

        Args:
            keys_apart: A path that finds list elements by index finds no dict keys.
        """
        choices = [_choices(segment, keys_apart) for segment in self.path]
        found = [tuple(chain.from_iterable(chosen)) for chosen in product(*choices)]
        return [self.stored_path] if self.stored_path else found


def _choices(segment: str | int, keys_apart: bool) -> list[tuple[str | int, ...]]:
    if isinstance(segment, str):
        return [(escape_key(segment),)]
    key: list[tuple[str | int, ...]] = [(str(segment),)] if keys_apart else []
    return [(segment,), ("$tuple", segment), *key]


def _sqlite_value(element: _JsonFunction, compiler: Any, kw: Any) -> str:
    """SQLite: a table `j` of one row with the value and its kind, both null where missing."""
    document = compiler.process(next(iter(element.clauses)), **kw)
    paths = []
    for alternative in element.alternatives(keys_apart=True):
        text = "$" + "".join(map(_sqlite_segment, alternative))
        paths.append(compiler.process(bindparam(None, text, _TEXT, unique=True), **kw))
    path, source = paths[-1], ""
    if len(paths) > 1:
        exists = " ".join(
            f"WHEN json_type({document}, {earlier}) IS NOT NULL THEN {earlier}"
            for earlier in paths[:-1]
        )
        path, source = "path", f" FROM (SELECT CASE {exists} ELSE {path} END AS path)"
    value, kind = f"json_extract({document}, {path})", f"json_type({document}, {path})"
    return f"(SELECT {value} AS value, {kind} AS kind{source}) AS j"


def _sqlite_segment(segment: str | int) -> str:
    if isinstance(segment, str):
        return f'."{segment}"'
    return f"[{segment}]" if segment >= 0 else f"[#{segment}]"


def _pg_value(element: _JsonFunction, compiler: Any, kw: Any) -> str:
    """PostgreSQL: the JSONB value, null where missing."""
    document = compiler.process(next(iter(element.clauses)), **kw)
    values = []
    for alternative in element.alternatives(keys_apart=False):
        value = document
        for segment in alternative:
            # `-> 0` of a scalar is the scalar itself; `#>` takes an index for a dict key as well.
            step = ("->", "text") if isinstance(segment, str) else ("#>", "text[]")
            text = segment if isinstance(segment, str) else f"{{{segment}}}"
            bound = compiler.process(bindparam(None, text, _TEXT, unique=True), **kw)
            value += f" {step[0]} CAST({bound} AS {step[1]})"
        values.append(value)
    return f"({values[0]})" if len(values) == 1 else f"coalesce({', '.join(values)})"


class json_kind(_JsonFunction):
    """`text`, `array`, `object`, `null` or another word for other types; null where missing."""

    inherit_cache = False  # the paths are no clause elements
    type = Text()


@compiles(json_kind, "postgresql")
def _pg_json_kind(element: json_kind, compiler: Any, **kw: Any) -> str:
    return f"replace(jsonb_typeof({_pg_value(element, compiler, kw)}), 'string', 'text')"


@compiles(json_kind, "sqlite")
def _sqlite_json_kind(element: json_kind, compiler: Any, **kw: Any) -> str:
    return f"(SELECT j.kind FROM {_sqlite_value(element, compiler, kw)})"


class json_number(_JsonFunction):
    """The value as a number: true is 1, tagged floats are themselves, NaN and everything else is
    null.
    """

    inherit_cache = False  # the paths are no clause elements
    type = Numeric()


@compiles(json_number, "postgresql")
def _pg_json_number(element: json_number, compiler: Any, **kw: Any) -> str:
    return f"sqlbuffer_number_v1({_pg_value(element, compiler, kw)})"


@compiles(json_number, "sqlite")
def _sqlite_json_number(element: json_number, compiler: Any, **kw: Any) -> str:
    number = _sqlite_number("j.value", "j.kind")
    return f"(SELECT {number} FROM {_sqlite_value(element, compiler, kw)})"


class json_text(_JsonFunction):
    """The value as text; null for other types."""

    inherit_cache = False  # the paths are no clause elements
    type = Text(collation="C").with_variant(Text(), "sqlite")


@compiles(json_text, "postgresql")
def _pg_json_text(element: json_text, compiler: Any, **kw: Any) -> str:
    value = _pg_value(element, compiler, kw)
    return (
        f"""(CASE WHEN jsonb_typeof({value}) = 'string' THEN {value} #>> '{{}}' END COLLATE "C")"""
    )


@compiles(json_text, "sqlite")
def _sqlite_json_text(element: json_text, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    return f"(SELECT CASE j.kind WHEN 'text' THEN j.value END FROM {value})"


class json_hex_text(_JsonFunction):
    """The hex groups of text that JSONB cannot hold; null for everything else."""

    inherit_cache = False  # the paths are no clause elements
    type = json_text.type


@compiles(json_hex_text, "postgresql")
def _pg_json_hex_text(element: json_hex_text, compiler: Any, **kw: Any) -> str:
    return f"""(({_pg_value(element, compiler, kw)} ->> '$str') COLLATE "C")"""


@compiles(json_hex_text, "sqlite")
def _sqlite_json_hex_text(element: json_hex_text, compiler: Any, **kw: Any) -> str:
    tagged = """CASE j.kind WHEN 'object' THEN json_extract(j.value, '$."$str"') END"""
    return f"(SELECT {tagged} FROM {_sqlite_value(element, compiler, kw)})"


def _sqlite_number(value: str, kind: str) -> str:
    """Return the number of a JSON value of a kind; null for other kinds."""
    tagged = f"""json_extract({value}, '$."$float"')"""
    return (
        f"CASE {kind} WHEN 'integer' THEN {value} WHEN 'real' THEN {value} "
        f"WHEN 'true' THEN 1 WHEN 'false' THEN 0 WHEN 'object' THEN CASE {tagged} "
        "WHEN 'inf' THEN 9e999 WHEN '-inf' THEN -9e999 WHEN '-0.0' THEN 0 ELSE "
        f"CASE WHEN {tagged} NOT LIKE 'nan%' THEN json_extract({tagged}, '$') END END END"
    )


def _sqlite_same(left: str, right: str) -> str:
    """Return whether two lists or dicts have the same values in the same places: 1 equals 1.0."""
    nodes = "SELECT fullkey, CASE type WHEN 'real' THEN 'integer' ELSE type END, atom FROM"
    return (
        f"((SELECT count(*) FROM json_tree({left})) = (SELECT count(*) FROM json_tree({right})) "
        f"AND NOT EXISTS ({nodes} json_tree({left}) EXCEPT {nodes} json_tree({right})))"
    )


class json_is(_JsonFunction):
    """Whether a list or dict equals the JSON text of the second argument; 1 equals 1.0."""

    inherit_cache = False  # the paths are no clause elements
    type = Boolean()


@compiles(json_is, "postgresql")
def _pg_json_is(element: json_is, compiler: Any, **kw: Any) -> str:
    other = compiler.process(list(element.clauses)[1], **kw)
    return f"{_pg_value(element, compiler, kw)} = CAST(CAST({other} AS text) AS jsonb)"


@compiles(json_is, "sqlite")
def _sqlite_json_is(element: json_is, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    other = compiler.process(list(element.clauses)[1], **kw)
    same = _sqlite_same("j.value", other)
    return f"(SELECT CASE WHEN j.kind IN ('array', 'object') THEN {same} ELSE 0 END FROM {value})"


class json_has_element(_JsonFunction):
    """Whether a list has an element that equals the JSON text of the second argument. For numbers
    there is `json_has_number`.
    """

    inherit_cache = False  # the paths are no clause elements
    type = Boolean()


@compiles(json_has_element, "postgresql")
def _pg_json_has_element(element: json_has_element, compiler: Any, **kw: Any) -> str:
    item = compiler.process(list(element.clauses)[1], **kw)
    items = _pg_items(_pg_value(element, compiler, kw))
    return f"EXISTS (SELECT 1 FROM {items} WHERE item = CAST(CAST({item} AS text) AS jsonb))"


def _pg_items(value: str) -> str:
    """Return a table of the elements of a list; without rows for other types."""
    only_lists = f"CASE jsonb_typeof({value}) WHEN 'array' THEN {value} END"
    return f"jsonb_array_elements({only_lists}) AS items(item)"


@compiles(json_has_element, "sqlite")
def _sqlite_json_has_element(element: json_has_element, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    other = compiler.process(list(element.clauses)[1], **kw)
    return (
        f"(SELECT EXISTS (SELECT 1 FROM {_SQLITE_ITEMS} WHERE CASE item.type "
        f"WHEN 'text' THEN json_quote(item.value) = {other} WHEN 'null' THEN {other} = 'null' "
        f"WHEN 'array' THEN {_sqlite_same('item.value', other)} "
        f"WHEN 'object' THEN {_sqlite_same('item.value', other)} END) FROM {value})"
    )


_SQLITE_ITEMS = "json_each(CASE j.kind WHEN 'array' THEN j.value END) item"


class json_has_number(_JsonFunction):
    """Whether a list has the number of the second argument as an element, as `json_number` has
    it.
    """

    inherit_cache = False  # the paths are no clause elements
    type = Boolean()


@compiles(json_has_number, "postgresql")
def _pg_json_has_number(element: json_has_number, compiler: Any, **kw: Any) -> str:
    number = compiler.process(list(element.clauses)[1], **kw)
    items = _pg_items(_pg_value(element, compiler, kw))
    return f"EXISTS (SELECT 1 FROM {items} WHERE sqlbuffer_number_v1(item) = {number})"


@compiles(json_has_number, "sqlite")
def _sqlite_json_has_number(element: json_has_number, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    number = compiler.process(list(element.clauses)[1], **kw)
    is_number = f"{_sqlite_number('item.value', 'item.type')} = {number}"
    return f"(SELECT EXISTS (SELECT 1 FROM {_SQLITE_ITEMS} WHERE {is_number}) FROM {value})"


class json_has_key(_JsonFunction):
    """Whether a dict has a key, the second argument, as it is stored; null for what is no dict."""

    inherit_cache = False  # the paths are no clause elements
    type = Boolean()


# A tag is a key that begins with one $; % is written so that no driver takes it for a parameter.
_IS_TAG = "substr({key}, 1, 1) = '$' AND substr({key}, 2, 1) NOT IN ('$', {percent})"


@compiles(json_has_key, "postgresql")
def _pg_json_has_key(element: json_has_key, compiler: Any, **kw: Any) -> str:
    value = _pg_value(element, compiler, kw)
    key = compiler.process(list(element.clauses)[1], **kw)
    is_tag = _IS_TAG.format(key="k", percent="chr(37)")
    tags = f"SELECT 1 FROM jsonb_object_keys({value}) AS keys(k) WHERE {is_tag}"
    return (
        f"(CASE WHEN jsonb_typeof({value}) = 'object' THEN CASE WHEN NOT EXISTS ({tags}) "
        f"THEN jsonb_exists({value}, CAST({key} AS text)) END END)"
    )


@compiles(json_has_key, "sqlite")
def _sqlite_json_has_key(element: json_has_key, compiler: Any, **kw: Any) -> str:
    value = _sqlite_value(element, compiler, kw)
    key = compiler.process(list(element.clauses)[1], **kw)
    keys = "SELECT 1 FROM json_each(CASE j.kind WHEN 'object' THEN j.value END) item WHERE"
    is_tag = _IS_TAG.format(key="item.key", percent="char(37)")
    return (
        f"(SELECT CASE WHEN j.kind = 'object' AND NOT EXISTS ({keys} {is_tag}) "
        f"THEN EXISTS ({keys} item.key = {key}) END FROM {value})"
    )
