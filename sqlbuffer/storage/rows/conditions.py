"""A checked condition as one SQL expression with bound parameters.

Every leaf is true, false or null, and null counts as false: negated leaves are written `IS NOT
TRUE`.
"""

import operator
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Text,
    and_,
    bindparam,
    case,
    false,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_values import dumps, escape_key, hex_text, is_storable_text
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.query_filter import integer_bound, is_number, real_bound
from sqlbuffer.query.tree import Field, Group, Leaf, Node
from sqlbuffer.storage.buffers.tables import buffers, sessions
from sqlbuffer.storage.episodes import episode_states, episodes
from sqlbuffer.storage.labels.reading import value_of
from sqlbuffer.storage.messages import whole_json
from sqlbuffer.storage.schema.expressions import (
    IntegerList,
    KeyList,
    Number,
    NumberList,
    Real,
    one_of,
)
from sqlbuffer.storage.schema.json_values import (
    json_has_element,
    json_has_key,
    json_has_number,
    json_hex_text,
    json_is,
    json_kind,
    json_number,
    json_text,
    position_of,
    step_fields,
    user_extra,
)
from sqlbuffer.storage.schema.metadata import KEY

Table = Any  # experiences, steps of chunks, the view v_experiences, or an alias of one
# Columns that the view shows under another name.
_SHOWN_AS = {"reward_t": "reward", "adv_t": "advantage", "v_t": "value"}
MAX_CHAIN = 100
MAX_HEIGHT = 800  # SQLite's limit for an expression is 1,000
_TEXT, _INTEGER, _NUMBER, _REAL = Text(), BigInteger(), Number(), Real()
_ORDER: dict[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "eq": operator.eq,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def compile_condition(node: Node, table: Table) -> ColumnElement[bool]:
    """Return the SQL expression of a checked condition.

    Args:
        node: The condition.
        table: The table of experiences, that of a buffer's steps in chunks, the view of both, or an
            alias of one.

    Raises:
        ConditionError: The condition is so deep and wide that SQLite would refuse it.
    """
    if _height(node) > MAX_HEIGHT:
        raise ConditionError("the condition is too large: it nests large groups in large groups")
    return _compile(node, table)


def _compile(node: Node, table: Table) -> ColumnElement[bool]:
    if isinstance(node, Group):
        # The deepest first: then SQLite's parser keeps the fewest others on its stack.
        parts = sorted(node.parts, key=_height, reverse=True)
        return _balanced(node.kind, [_compile(part, table) for part in parts])
    matches = _COMPILE[node.op](node, table)
    return matches.is_not(true()) if node.negated and node.op != "like" else matches


def _height(node: Node) -> int:
    """Return the approximate depth of a node's SQL: a chain is as deep as it is long."""
    if isinstance(node, Leaf):
        return 1
    return max(map(_height, node.parts), default=0) + min(len(node.parts), MAX_CHAIN)


def _balanced(kind: str, parts: list[ColumnElement[bool]]) -> ColumnElement[bool]:
    """Join parts as a balanced tree: SQLite limits the depth of an expression, not its width."""
    if not parts:
        return true() if kind == "all" else false()
    if len(parts) == 1:
        return parts[0]
    if len(parts) <= MAX_CHAIN:
        return and_(*parts) if kind == "all" else or_(*parts)
    middle = len(parts) // 2
    halves = [
        _balanced(kind, parts[:middle]).self_group(),
        _balanced(kind, parts[middle:]).self_group(),
    ]
    # case() keeps the two halves apart; and_() would flatten them into one deep chain again.
    if kind == "all":
        return case((halves[0].is_not(true()), false()), else_=halves[1])
    return case((halves[0], true()), else_=halves[1])


_HAS_ENDED = episodes.c.status != "open"
_FACTS: dict[str, ColumnElement[Any]] = {
    "episode_reward": func.coalesce(episodes.c.reward, case((_HAS_ENDED, episodes.c["return"]))),
    "episode_return": case((_HAS_ENDED, episodes.c["return"])),
    "episode_length": episodes.c.length,
    "status": select(episode_states.c.status)
    .where(episode_states.c.id == episodes.c.id)
    .scalar_subquery(),
    "group_id": episodes.c.group_id,
    "parent_id": episodes.c.parent_id,
    "meta": episodes.c.meta,
}


def _fact(name: str, table: Table) -> ColumnElement[Any]:
    """Return a fact of the episode of a step, which is looked up."""
    fact = select(_FACTS[name])
    if not _is_view(table):
        return fact.where(episodes.c.id == table.c.episode_id).scalar_subquery()
    is_its = and_(
        episodes.c.buffer_id == buffers.c.id,
        buffers.c.name == table.c.buffer,
        episodes.c.key == table.c.episode_id,
        episodes.c.task_id == table.c.task_id,
    )
    return fact.select_from(buffers, episodes).where(is_its).scalar_subquery()


def column_of(field: Field, table: Table) -> ColumnElement[Any]:
    """Return the column of a field; users' keys and facts of episodes are looked up."""
    if field.is_of_episode:
        return _fact(field.column, table)
    if _is_view(table):
        shown: ColumnElement[Any] = table.c[_SHOWN_AS.get(field.column, field.column)]
        return shown
    if field.column == "episode_id":
        return select(episodes.c.key).where(episodes.c.id == table.c.episode_id).scalar_subquery()
    if field.column == "session_id":
        return select(sessions.c.key).where(sessions.c.id == table.c.session_id).scalar_subquery()
    if field.column == "extra":
        return user_extra(_held(field, "extra", table))
    return _held(field, field.column, table)


def _held(field: Field, column: str, table: Table) -> ColumnElement[Any]:
    """Return a column of the row, or the late value in its place."""
    if field.is_labelled:
        return value_of(column, table)
    stored: ColumnElement[Any] = table.c[column]
    if column == "fields" and "field_lists" in table.c:
        return step_fields(stored, table.c.field_lists, table.c.place)
    return whole_json(table) if column == "messages" else stored


def _is_view(table: Table) -> bool:
    """Return True for the view, which already has labels and user keys in place."""
    return "special_numbers" in table.c


def _special_number(field: Field, table: Table) -> ColumnElement[Any]:
    """Return the kind of a number's tag, or null if its column holds the number itself."""
    if _is_view(table):
        return json_kind(table.c.special_numbers, stored_path=(field.column,))
    return json_kind(_held(field, "extra", table), stored_path=("$reals", field.column))


def _is_null(leaf: Leaf, table: Table) -> ColumnElement[bool]:
    field, column = leaf.field, column_of(leaf.field, table)
    if field.kind == "json":
        return json_kind(column, field.path).is_(None) | (json_kind(column, field.path) == "null")
    if field.kind == "real" and not field.is_of_episode:
        # NaN is stored as null, with a tag in another column.
        return and_(column.is_(None), _special_number(field, table).is_(None))
    return column.is_(None)


def _compare(leaf: Leaf, table: Table) -> ColumnElement[bool]:
    return _comparison(leaf.field, leaf.op, leaf.value, table)


def _comparison(field: Field, op: str, value: Any, table: Table) -> ColumnElement[bool]:
    column = column_of(field, table)
    if isinstance(value, (list, dict)):
        if field.kind != "json":
            return false()
        return json_is(column, field.path, literal(dumps(Encoder().tree(value, field.name)), _TEXT))
    if is_number(value):
        return _compare_number(field, op, value, column)
    if field.kind == "json":
        plain = _compare_text(json_text(column, field.path), op, value)
        if op == "eq" and is_storable_text(value):
            return plain
        return or_(plain, _ORDER[op](json_hex_text(column, field.path), hex_text(value)))
    return _compare_text(column, op, value) if field.kind == "text" else false()


def _compare_number(
    field: Field, op: str, value: Any, column: ColumnElement[Any]
) -> ColumnElement[bool]:
    if value != value or field.kind == "text":
        return false()
    if field.kind == "json":
        return _ORDER[op](
            json_number(column, field.path), bindparam(None, value, _NUMBER, unique=True)
        )
    if field.kind == "real":
        bound_op, real = real_bound(op, value)
        return false() if bound_op == "const" else _ORDER[bound_op](column, literal(real, _REAL))
    number = case((column, 1), (column.is_(False), 0)) if field.kind == "bool" else column
    bound_op, bound = integer_bound(op, value)
    if bound_op == "const":
        return column.is_not(None) if bound else false()
    return _ORDER[bound_op](number, literal(bound, _INTEGER))


def _compare_text(column: ColumnElement[Any], op: str, value: str) -> ColumnElement[bool]:
    if is_storable_text(value):
        return _ORDER[op](column, literal(value, KEY))
    if op == "eq":
        return false()
    # No stored text equals the value, so it is sorted between two possible texts: cut it at its
    # first odd character.
    cut = next(i for i, char in enumerate(value) if not is_storable_text(char))
    prefix = value[:cut]
    above = op in ("gt", "gte")
    if value[cut] == "\0":
        return _ORDER["gt" if above else "lte"](column, literal(prefix, KEY))
    return _ORDER["gte" if above else "lt"](column, literal(prefix + "\ue000", KEY))


def _member(leaf: Leaf, table: Table) -> ColumnElement[bool]:
    field = leaf.field
    if isinstance(leaf.value, str):
        return _part_of(field, leaf.value, column_of(field, table))
    values = [value for value in leaf.value if value is not None]
    parts = [_is_null(leaf, table)] if len(values) < len(leaf.value) else []
    listed, others = _split_members(field, values)
    for kind, members in listed.items():
        if members:
            parts.append(_is_one_of(field, kind, members, column_of(field, table)))
    parts.extend(_comparison(field, "eq", value, table) for value in others)
    return _balanced("any", parts)


def _split_members(field: Field, values: list[Any]) -> tuple[dict[str, list[Any]], list[Any]]:
    """Return the texts and the integers that one array parameter can hold, and the other values."""
    texts: list[Any] = []
    integers: list[Any] = []
    others = []
    for value in values:
        if isinstance(value, str) and is_storable_text(value) and field.kind in ("text", "json"):
            texts.append(value)
        elif isinstance(value, int) and field.kind in ("int", "json"):
            integers.append(int(value))
        else:
            others.append(value)
    return {"texts": texts, "integers": integers}, others


def _is_one_of(
    field: Field, kind: str, members: list[Any], column: ColumnElement[Any]
) -> ColumnElement[bool]:
    if kind == "texts":
        text = column if field.kind == "text" else json_text(column, field.path)
        return one_of(text, bindparam(None, members, KeyList(), unique=True))
    if field.kind == "int":
        return one_of(column, bindparam(None, members, IntegerList(), unique=True))
    number = json_number(column, field.path)
    return one_of(number, bindparam(None, members, NumberList(), unique=True))


def _part_of(field: Field, whole: str, column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the expression that is true if the column's text is part of `whole`."""
    if field.kind not in ("text", "json"):
        return false()
    odd = not is_storable_text(whole)
    # Between the storable pieces of `whole` there are characters that no plain text has.
    pieces = _storable_pieces(whole) if odd else [whole]
    text = column if field.kind == "text" else json_text(column, field.path)
    parts = [position_of(literal(piece, KEY), text) > 0 for piece in pieces]
    if field.kind == "json" and odd:
        parts.append(
            position_of(literal(hex_text(whole), KEY), json_hex_text(column, field.path)) > 0
        )
    return or_(*parts)


def _storable_pieces(text: str) -> list[str]:
    return "".join(char if is_storable_text(char) else "\0" for char in text).split("\0")


def _like(leaf: Leaf, table: Table) -> ColumnElement[bool]:
    field, part, column = leaf.field, leaf.value, column_of(leaf.field, table)
    if field.kind == "text" and isinstance(part, str):
        return _contains(column, part, leaf.negated)
    if field.kind != "json":
        return false()
    has_element = _has_element(field, part, column)
    is_list = json_kind(column, field.path) == "array"
    parts = [and_(is_list, has_element.is_not(true())) if leaf.negated else has_element]
    if isinstance(part, str):
        has_key = json_has_key(column, field.path, literal(escape_key(part), KEY))
        hex_position = position_of(json_hex_text(column, field.path), literal(hex_text(part), KEY))
        parts += [
            _contains(json_text(column, field.path), part, leaf.negated),
            hex_position == 0 if leaf.negated else hex_position > 0,
            has_key.is_(false() if leaf.negated else true()),
        ]
    elif leaf.negated and not isinstance(part, (list, dict)):  # a dict without such a key
        parts.append(json_has_key(column, field.path, literal("", KEY)).is_not(None))
    return or_(*parts)


def _has_element(field: Field, item: Any, column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the expression that is true if a JSON list has a value as an element."""
    if not is_number(item):
        text = dumps(Encoder().tree(item, field.name))
        return json_has_element(column, field.path, literal(text, _TEXT))
    if item != item:
        return false()
    number = bindparam(None, item, _NUMBER, unique=True)
    return json_has_number(column, field.path, number)


def _contains(text: ColumnElement[Any], part: str, negated: bool) -> ColumnElement[bool]:
    if not is_storable_text(part):
        return text.is_not(None) if negated else false()
    position = position_of(text, literal(part, KEY))
    return position == 0 if negated else position > 0


_COMPILE: dict[str, Callable[[Leaf, Table], ColumnElement[bool]]] = {
    "eq": _compare,
    "gt": _compare,
    "gte": _compare,
    "lt": _compare,
    "lte": _compare,
    "in": _member,
    "like": _like,
    "is_null": _is_null,
}

__all__ = ["column_of", "compile_condition"]
