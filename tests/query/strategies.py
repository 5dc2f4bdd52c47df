"""Rows and condition trees that meet often: both draw from the same small pools of odd values."""

import math

import numpy as np
from hypothesis import strategies as st

from sqlbuffer import DataRow, Experience, ExpMeta

TEXTS = ["", "a", "A", "ab", "b", "1", "true", "null", "NaN", "[1]", '{"$float":"inf"}']
TEXTS += ["%", "_", "a%", "a_b", "it's", 'q"q', "back\\slash", "\\", "--", "$1", ":x", "?", "\n\t"]
TEXTS += ["\x01", "\x7f", "ü", "U\u0308", "é%", "\ue000", "\uffff", "\U0001d11e"]
ODD_TEXTS = ["\0", "a\0", "a\0b", "\ud800", "a\udfff", "\ud800\udc00", "ab\ud800%"]
INTEGERS = [0, 1, -1, 2, 3, 7, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63 - 513, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 0.1 + 0.2, 2.5, 3.0, 1e-7, 5e-324, 1e15, 1e16, 1e17]
FLOATS += [2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 1.7976931348623157e308, math.inf, -math.inf]
FLOATS += [math.nan]
CONTAINERS = [[], {}, [1], [1.0], [True], ["a"], ["a", "%"], [None], [[1]], ["\0"], [-0.0], [1e16]]
CONTAINERS += [[2**53 + 1], [1e-7], [math.nan], {"a": 1}, {"a": 1.0}, {"b": ["a", 1], "a": None}]
CONTAINERS += [{"$float": "inf"}, {"$$x": 1}, {"\0": "\ud800"}, {"$tuple": [1]}]
CONTAINERS += [[1, 2.0], [1.0, 2], [[1.0], "1"], {"a": [1]}, {"a": [1.0]}, {"a.b": 1}, {"$x": None}]
CONTAINERS += [{"a": {"b": 1}}, [{"a": 1}], [{"a": 1.0}], [False, 0], [10**16], {"0": 1}]
KEYS = [
    "a",
    "b",
    "0",
    "1",
    "-1",
    "01",
    "a.b",
    "a b",
    "",
    "$x",
    "$float",
    "$tuple",
    "$str",
    "%",
    "é",
]
KEYS += ['q"q', "back\\slash", "[0]", "it's", "\0", "\ud800", "$%0041"]
ODD_PAYLOADS = [2**70, b"bytes", {1, 2}, {1: "a"}, np.arange(2), np.float32(0.5), complex(1, 0)]

storable = st.characters(codec="utf-8", exclude_characters="\0")
storable_texts = st.sampled_from(TEXTS) | st.text(storable, max_size=2)
texts = st.sampled_from(TEXTS + ODD_TEXTS) | st.text(
    st.characters(exclude_categories=()), max_size=2
)
integers = st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1)
floats = st.sampled_from(FLOATS) | st.floats()
scalars = st.booleans() | integers | floats | texts
keys = st.sampled_from(KEYS)

payload_leaves = st.none() | scalars | st.sampled_from(CONTAINERS) | st.sampled_from(ODD_PAYLOADS)
payloads = st.recursive(
    payload_leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=6,
)


def optional(strategy):
    return st.none() | strategy


metas = st.builds(
    ExpMeta,
    task_id=storable_texts,
    task_name=optional(storable_texts),
    agent_id=storable_texts,
    step=integers,
    execute_time=floats,
    pre_agent=optional(storable_texts),
    episode_id=optional(storable_texts),
    model_version=optional(integers),
    session_id=optional(storable_texts),
)
experiences = st.builds(
    Experience,
    state=payloads,
    actions=payloads,
    # One message as a dict is refused.
    messages=payloads.filter(lambda value: not isinstance(value, dict)),
    extra=optional(st.dictionaries(keys, payloads, max_size=3)),
    reward_t=optional(floats),
    adv_t=optional(floats),
    v_t=optional(floats),
    terminated=optional(st.booleans()),
    truncated=optional(st.booleans()),
)
rows = st.lists(
    st.builds(DataRow, metas, experiences, storable_texts),
    min_size=3,
    max_size=12,
    unique_by=lambda row: row.id,
)

TEXT_FIELDS = ["id", "exp_meta.task_id", "exp_meta.task_name", "exp_meta.agent_id"]
TEXT_FIELDS += ["exp_meta.pre_agent", "episode_id", "exp_meta.session_id"]
NUMBER_FIELDS = ["exp_meta.step", "seq", "model_version", "exp_meta.execute_time"]
NUMBER_FIELDS += ["exp_data.reward_t", "exp_data.adv_t", "exp_data.v_t"]
FLAG_FIELDS = ["terminated", "exp_data.truncated"]
JSON_FIELDS = ["exp_data.state", "exp_data.actions", "exp_data.messages", "exp_data.extra"]


def key_segment(key: str) -> str:
    """Return a key as a path writes it."""
    if key.isidentifier():
        return f".{key}"
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'."{escaped}"'


segments = (
    keys.map(key_segment)
    | st.integers(-3, 3).map(lambda index: f"[{index}]")
    | st.sampled_from([".0", ".1", ".01", ".-1"])
)
paths = st.lists(segments, max_size=3).map("".join)
any_field = (
    st.sampled_from(TEXT_FIELDS)
    | st.sampled_from(NUMBER_FIELDS)
    | st.sampled_from(FLAG_FIELDS)
    | st.builds("{}{}".format, st.sampled_from(JSON_FIELDS), paths)
)
any_value = st.none() | scalars | st.sampled_from(CONTAINERS)


def facts(row: DataRow):
    """Yield (field, value) for what a row says, as far as a condition can."""
    for field in [*TEXT_FIELDS, *NUMBER_FIELDS, *FLAG_FIELDS]:
        part, _, name = field.rpartition(".")
        part = part or ("exp_meta" if hasattr(row.exp_meta, name) else "exp_data")
        if field not in ("id", "seq"):
            yield field, getattr(getattr(row, part), name)
    yield "id", row.id
    for field in JSON_FIELDS:
        yield from facts_inside(field, getattr(row.exp_data, field.rpartition(".")[2]))


def facts_inside(path: str, value):
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str):
                yield from facts_inside(path + key_segment(key), item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from facts_inside(f"{path}[{i}]", item)


def can_be_compared(value) -> bool:
    if isinstance(value, list):
        return all(map(can_be_compared, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and can_be_compared(value[key]) for key in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, (float, str))


def with_value(ops, values):
    return lambda field: st.builds(
        lambda op, value: {"field": field, "op": op, "value": value},
        st.sampled_from(ops),
        values,
    )


@st.composite
def rows_and_conditions(draw):
    """Draw rows and condition trees that speak of what is in them, mostly."""
    data = draw(rows)
    known = [fact for row in data for fact in facts(row) if fact[0].count('."') < 90]
    fields = any_field | st.sampled_from(sorted({field for field, _ in known}))
    seen = [value for _, value in known if can_be_compared(value)]
    values = any_value | st.sampled_from(seen or [None])
    scalar = scalars | st.sampled_from(
        [value for value in seen if isinstance(value, (int, float, str))] or [0]
    )
    text = texts | st.sampled_from([value for value in seen if isinstance(value, str)] or [""])
    members = st.lists(values, max_size=5) | st.builds("{}{}{}".format, text, text, text)
    leaf_of = {
        "equality": with_value(["eq", "ne"], values),
        "order": with_value(["gt", "gte", "lt", "lte"], scalar),
        "between": with_value(["between"], st.lists(scalar, min_size=2, max_size=2)),
        "membership": with_value(["in", "not_in"], members),
        "text": with_value(["like", "not_like"], text),
        "containing": with_value(["like", "not_like"], values),
    }
    # A condition on what a row says, or any other.
    about_a_fact = st.sampled_from(known).flatmap(
        lambda fact: (
            with_value(["eq", "ne", "gte", "lte"], st.just(fact[1]))(fact[0])
            if can_be_compared(fact[1]) and isinstance(fact[1], (int, float, str))
            else with_value(["eq", "ne"], values)(fact[0])
        )
    )
    leaves = (
        about_a_fact
        | st.sampled_from(list(leaf_of.values())).flatmap(lambda made: fields.flatmap(made))
        | st.builds(
            lambda field, op: {"field": field, "op": op},
            fields,
            st.sampled_from(["is_null", "is_not_null"]),
        )
    )
    trees = st.recursive(
        leaves,
        lambda inner: st.builds(
            lambda key, parts: {key: parts},
            st.sampled_from(["and_", "or_"]),
            st.lists(inner, max_size=4),
        ),
        max_leaves=6,
    )
    return data, draw(st.lists(trees, min_size=1, max_size=10))
