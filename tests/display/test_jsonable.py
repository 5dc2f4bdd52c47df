"""Values as other programs take them, and as a person takes them in."""

import datetime as dt
import io
import json
import math
import uuid
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given

from sqlbuffer.cli.output import write_csv, write_json
from sqlbuffer.display import brief, dumps, jsonable
from tests.support.payloads import payloads

UTC = dt.UTC
EAST = dt.timezone(dt.timedelta(hours=2))
VALUES = [
    (None, None),
    (True, True),
    (0, 0),
    (2**70, 2**70),
    (10**5000, hex(10**5000)),
    (0.0, 0.0),
    (0.1, 0.1),
    (math.nan, None),
    (-math.inf, None),
    (np.float32(0.5), 0.5),
    (np.float64("nan"), None),
    (Decimal("2.50"), 2.5),
    (Decimal("12345678901234567890"), 12345678901234567890),
    (Decimal("1e400"), "1E+400"),
    (Decimal("NaN"), None),
    ("数学\n\"'\ud800", "数学\n\"'\ud800"),
    (b"\0\xff", "AP8="),
    (memoryview(b"a"), "YQ=="),
    (dt.datetime(2024, 1, 2, 3, 4, 5, 600, EAST), "2024-01-02T01:04:05.000600Z"),
    (dt.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02T03:04:05"),
    (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=5))), "9999-12-31T23:59:59"),
    (dt.date(2024, 1, 2), "2024-01-02"),
    (dt.time(3, 4), "03:04:00"),
    (dt.timedelta(days=1), "1 day, 0:00:00"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (1 + 2j, "(1+2j)"),
    (np.array([[1, 2]], np.int8), [[1, 2]]),
    (np.array([np.nan, 1.0]), [None, 1.0]),
    (np.array(["2020-01-01"], "datetime64[D]"), ["2020-01-01"]),
    (np.array([(1, 0.5)], [("a", "i4"), ("b", "f8")]), [[1, 0.5]]),
    ({1: (1, {2}), "b": [b"a"]}, {"1": [1, [2]], "b": ["YQ=="]}),
    ([], []),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=range(len(VALUES)))
def test_a_value_has_one_json_form_wherever_it_stands(value, expected):
    def matches(found):
        if isinstance(expected, str) and isinstance(value, dt.datetime):
            return found.startswith(expected)
        return found == expected and type(found) is type(expected)

    assert matches(jsonable(value))
    for ascii_only in (False, True):
        text = dumps({"inner": [value]}, ascii_only=ascii_only)
        assert matches(json.loads(text)["inner"][0])
        assert text.isascii() or not ascii_only


@pytest.mark.thorough
@pytest.mark.slow
@given(payloads)
def test_every_payload_becomes_json_on_one_line_and_a_short_text(payload):
    text = dumps(payload)
    assert "\n" not in text
    json.loads(text, parse_constant=pytest.fail)
    shown = brief(payload)
    assert "\n" not in shown


def test_csv_keeps_what_separates_fields_and_rows_inside_them():
    out = io.StringIO(newline="")
    row = [None, "", 0, False, math.nan, 'a"b,c\nd', {"x": [1]}, b"a", 0.1]
    write_csv(list("abcdefghi"), [row, row], out)
    line = ',,0,false,nan,"a""b,c\nd","{""x"":[1]}",YQ==,0.1\n'
    assert out.getvalue() == "a,b,c,d,e,f,g,h,i\n" + 2 * line


def test_json_is_one_array_and_ndjson_an_object_a_line():
    rows = [(1, None), (math.inf, "é")]
    array, lines = io.StringIO(), io.StringIO()
    write_json(["a", "b"], rows, array)
    write_json(["a", "b"], rows, lines, one_a_line=True)
    expected = [{"a": 1, "b": None}, {"a": None, "b": "é"}]
    assert json.loads(array.getvalue()) == expected
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == expected
    assert "é" in lines.getvalue()


def test_json_of_no_rows_is_an_empty_array():
    out = io.StringIO()
    write_json(["a"], [], out)
    assert json.loads(out.getvalue()) == []


def test_json_keeps_every_column_of_a_name_that_comes_twice():
    out = io.StringIO()
    write_json(["a", "a", "a_2", "a"], [(1, 2, 3, 4)], out, one_a_line=True)
    assert sorted(json.loads(out.getvalue()).values()) == [1, 2, 3, 4]


def test_rows_are_written_as_they_come():
    out, written = io.StringIO(), []

    def rows():
        for number in range(3):
            written.append(out.getvalue().count("\n"))
            yield (number,)

    write_json(["a"], rows(), out, one_a_line=True)
    assert written == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([0.123456, 1], np.float32), "float32(2,) [0.1235 1]"),
        (np.zeros((84, 84), np.uint8), "uint8(84, 84) min 0 mean 0 max 0"),
        (np.array([[1, np.nan], [2, np.inf]]), "float64(2, 2) min 1 mean 1.5 max 2 2 not finite"),
        (np.full((2, 2), np.nan), "float64(2, 2) no finite number"),
        (np.array(["a", "b"]).reshape(2, 1), '<U1(2, 1) ["a" "b"]'),
        (np.float32(0.5), "0.5"),
        (np.zeros(0), "float64(0,) []"),
        ({"x": 1, "y": "a\nb", "z": None}, '{x: 1, y: "a b", z: none}'),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, ... 12 more]"),
        ([[[[[1]]]]], "[[[[...]]]]"),
        (b"abc", "3 bytes"),
        (True, "true"),
        (1, "1"),
        ("left", "left"),
        ("a" * 70, "a" * 60 + "... (70 characters)"),
    ],
)
def test_a_payload_is_shown_in_short(value, expected):
    assert brief(value) == expected
