"""Which steps of two chunks are the same, to the bit. No database."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sqlbuffer.encoding.chunks import same_steps
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import parse_specs
from tests.encoding.chunk_columns import steps

LAYOUT = Layout(parse_specs({"x": "float32", "n": ("int64", (-1,))}))
ROWS = {
    "x": np.arange(3, dtype="f4"),
    "n": [[1], [], [2, 3]],
    "reward": [1.0, np.nan, -0.0],
    "terminated": [False, False, True],
    "state": [{"a": 1, "b": np.ones(2)}, None, None],
}


def chunk_of(layout=LAYOUT, **columns):
    (chunk,) = pack_columns(layout, {**ROWS, **columns}).chunks
    return chunk


def compared(left, right):
    n = left.n_steps
    return same_steps(LAYOUT, left, range(n), right, range(n)).tolist()


@pytest.mark.thorough
@settings(max_examples=60)
@given(steps())
def test_chunks_of_the_same_steps_are_the_same(drawn):
    first = pack_columns(drawn.layout, drawn.columns).chunks
    second = pack_columns(drawn.layout, drawn.columns).chunks
    for left, right in zip(first, second, strict=True):
        n = left.n_steps
        assert left.id != right.id
        assert same_steps(drawn.layout, left, range(n), right, range(n)).all()
        # As JSON arrays of a database give them back.
        lists = {
            name: None if values is None else [None if v is None else v * 1 for v in values]
            for name in ("reward", "terminated", "truncated")
            for values in [getattr(right, name)]
        }
        assert same_steps(drawn.layout, left, range(n), replace(right, **lists), range(n)).all()


@pytest.mark.parametrize(
    ("columns", "same"),
    [
        ({"x": np.array([0, 1, 5], "f4")}, [True, True, False]),
        ({"x": np.array([-0.0, 1, 2], "f4")}, [False, True, True]),
        ({"n": [[1], [0], [2, 3]]}, [True, False, True]),
        ({"reward": [1.0, np.nan, 0.0]}, [True, True, False]),
        ({"reward": [1.0, -np.nan, -0.0]}, [True, False, True]),
        ({"reward": [2.0, 1.0, -0.0]}, [False, False, True]),
        ({"reward": None}, [False, False, False]),
        ({"terminated": [True, False, True]}, [False, True, True]),
        ({"terminated": None}, [False, False, False]),
        ({"truncated": [False] * 3}, [False] * 3),
        ({"state": [{"b": np.ones(2), "a": 1}, None, None]}, [True, True, True]),
        ({"state": [{"a": 1.0, "b": np.ones(2)}, None, None]}, [False, True, True]),
        ({"state": [{"a": 1, "b": np.zeros(2)}, None, []]}, [False, True, False]),
        ({"extra": [None, {}, None]}, [True, False, True]),
        ({"step": [0, 1, 3]}, [True, True, False]),
        ({"task_id": "other"}, [False] * 3),
        ({"session_id": "other"}, [False] * 3),
        ({"model_version": 1}, [False] * 3),
    ],
)
def test_steps_that_differ_are_found(columns, same):
    assert compared(chunk_of(), chunk_of(**columns)) == same


def test_ids_priorities_and_times_are_not_compared():
    other = replace(chunk_of(priority=[1, 2, 3], id=["a", "b", "c"]), first_time=1.0)
    assert compared(chunk_of(), other) == [True] * 3


def test_json_that_a_database_wrote_another_way_is_the_same():
    left = chunk_of()
    text = left.payloads[0].replace('"a":1,', "").replace('"arrays"', '"arrays" ')
    text = text.replace('"state":{', '"state": {"a": 1, ')
    right = replace(left, payloads=[text, *left.payloads[1:]])
    assert compared(left, right) == [True] * 3


@pytest.mark.thorough
@given(st.data(), steps())
def test_places_are_compared_in_pairs(data, drawn):
    layout, fields = drawn.layout, {n: drawn.columns[n] for n in drawn.layout.specs}
    chunks = pack_columns(layout, {**fields, "step": 0}).chunks
    assume(chunks)
    places = st.lists(st.integers(0, drawn.n - 1), min_size=3, max_size=3)
    left, right = data.draw(places), data.draw(places)
    rows = layout.pack(fields, drawn.n)
    found = same_steps(layout, chunks[0], left, chunks[0], right).tolist()
    assert found == [rows[i] == rows[j] for i, j in zip(left, right, strict=True)]


def test_damaged_bytes_are_noticed():
    chunk = chunk_of()
    with pytest.raises(FieldError, match="damaged"):
        compared(chunk, replace(chunk, records=chunk.records[:-1]))
