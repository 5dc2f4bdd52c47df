"""Payloads to JSON text and array bytes, and back without loss."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import re
import struct
import sys
import uuid
from collections import OrderedDict, deque, namedtuple
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, RootModel, computed_field

from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.equality import equal
from sqlbuffer.codec.plain_values import MAX_DEPTH, escape_key, unescape_key
from sqlbuffer.errors import FieldError
from tests.support.payloads import KEYS, NAN_WITH_PAYLOAD, arrays, keys, nested, payloads


def encoded(value):
    encoder = Encoder()
    text = encoder.json(value, "exp_data.state")
    return text, bytes(encoder.blob)


def back(value):
    return decode(*encoded(value))


def refusal(value):
    with pytest.raises(FieldError) as caught:
        encoded(value)
    return str(caught.value)


def shown(value):
    """Return a text that is the same in every process: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


class Color(enum.Enum):
    RED = "red"
    NESTED = ("a", 1)


class Level(enum.IntEnum):
    HIGH = 3


class Plain(str, enum.Enum):  # noqa: UP042 (users store such values)
    A = "a"


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any = None


class Base(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    a: Any = 1


class Derived(Base):
    b: int = 2


class Holder(BaseModel):
    held: Base

    @computed_field
    @property
    def twice(self) -> int:
        return 2


class TestRoundTrip:
    @pytest.mark.thorough
    @pytest.mark.slow
    @settings(max_examples=150)
    @given(payloads)
    def test_a_payload_comes_back_equal_to_the_bit(self, value):
        text, blob = encoded(value)
        assert equal(decode(text, blob), value, strict=True)
        check_json(text or "0")

    @pytest.mark.thorough
    @pytest.mark.slow
    @given(arrays())
    def test_arrays_come_back_writable_with_dtype_and_shape(self, array):
        read = back([array])[0]
        assert read.flags.writeable
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()

    @pytest.mark.thorough
    @pytest.mark.slow
    @settings(max_examples=50)
    @given(payloads)
    def test_equal_values_have_equal_text_in_whatever_order_their_keys_were_given(self, value):
        def reordered(value):
            if isinstance(value, dict):
                return {key: reordered(value[key]) for key in reversed(value)}
            return value

        text, blob = encoded(value)
        assert blob or encoded(reordered(value))[0] == text

    @given(keys)
    def test_every_text_is_a_key_that_a_json_path_can_name(self, key):
        escaped = escape_key(key)
        assert unescape_key(escaped) == key
        assert back({key: 1}) == {key: 1}
        assert not set(escaped) & {'"', "\\", "\0", "\n"}
        escaped.encode()

    def test_keys_that_look_like_the_codecs_own_are_keys(self):
        value = {key: {key: [key]} for key in KEYS}
        assert back(value) == value
        for key in KEYS:
            assert back({key: [0, 1]}) == {key: [0, 1]}

    def test_none_is_no_json_at_all(self):
        assert encoded(None) == (None, b"")
        assert back(None) is None

    def test_plain_json_goes_through_untouched(self):
        value = {"b": [1, 2.5, True, None, "text"], "a": {"é": []}}
        assert encoded(value) == ('{"a":{"é":[]},"b":[1,2.5,true,null,"text"]}', b"")

    def test_array_bytes_are_kept_beside_the_json(self):
        text, blob = encoded({"x": np.arange(3, dtype=np.int16), "y": b"abc"})
        assert json.loads(text) == {"x": {"$array": ["<i2", [3], 0, 6]}, "y": {"$bytes": [6, 3]}}
        assert blob == np.arange(3, dtype=np.int16).tobytes() + b"abc"

    @pytest.mark.parametrize("bits", ["7ff8000000000000", "fff8000000000000", "7ff8000000abcdef"])
    def test_every_nan_keeps_its_bits(self, bits):
        number = struct.unpack(">d", bytes.fromhex(bits))[0]
        assert struct.pack(">d", back([number])[0]).hex() == bits
        assert struct.pack(">d", back([complex(1, number)])[0].imag).hex() == bits

    def test_integers_have_no_limit_of_digits(self):
        value = [2**63, -(2**63) - 1, 10**5000, -(10**5000)]
        assert back(value) == value

    def test_datetimes_keep_the_offset_of_their_zone(self):
        zoned = dt.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
        assert back(zoned) == zoned
        assert back(zoned).utcoffset() == dt.timedelta(hours=2)
        assert back(dt.datetime(2024, 7, 1)).tzinfo is None


def check_json(text):
    """Check that neither database would refuse or change a JSON text."""

    def check_float(digits):
        assert abs(float(digits)) < 1e16
        assert (float(digits), math.copysign(1, float(digits))) != (0.0, -1)

    def check_integer(digits):
        assert -(2**63) <= int(digits) < 2**63

    def refuse(constant):
        raise AssertionError(constant)

    text.encode()
    assert "\\u0000" not in text.replace("\\\\", "")
    json.loads(text, parse_float=check_float, parse_int=check_integer, parse_constant=refuse)


class TestWhatBecomesPlain:
    def test_numbers_of_numpy_become_pythons(self):
        value = [
            np.float64(0.1),
            np.float32(0.5),
            np.int8(-3),
            np.uint64(2**64 - 1),
            np.bool_(True),
        ]
        assert equal(back(value), [0.1, 0.5, -3, 2**64 - 1, True], strict=True)
        assert equal(back([np.str_("a"), np.bytes_(b"b")]), ["a", b"b"], strict=True)
        assert math.isnan(back(np.float16("nan")))

    def test_scalars_that_python_has_no_equal_of_stay_numpys(self):
        record = np.array([(1, 2.5)], dtype=[("a", ">i4"), ("b", "f8")])[0]
        value = [np.datetime64("2020-01-01T00:00:00.123", "ms"), np.longdouble("0.1"), record]
        assert equal(back(value), value, strict=True)

    def test_enums_become_their_values(self):
        assert back([Color.RED, Color.NESTED, Level.HIGH, Plain.A]) == ["red", ("a", 1), 3, "a"]
        assert back({Level.HIGH: 1}) == {3: 1}

    def test_paths_become_text(self):
        assert back(Path("a/b")) == "a/b"

    def test_containers_become_those_of_json_or_python(self):
        pair = namedtuple("pair", "a b")(1, 2)
        value = [
            OrderedDict(b=1, a=2),
            deque([1]),
            pair,
            MappingProxyType({"x": 1}),
            bytearray(b"b"),
        ]
        assert equal(back(value), [{"a": 2, "b": 1}, [1], (1, 2), {"x": 1}, b"b"], strict=True)

    def test_dataclasses_and_models_become_dicts(self):
        value = [Point(1, Point(np.ones(2))), Base(a=(1, 2))]
        plain = [{"x": 1, "y": {"x": np.ones(2), "y": None}}, {"a": (1, 2)}]
        assert equal(back(value), plain, strict=True)

    def test_a_model_keeps_the_fields_of_a_subclass_and_leaves_out_computed_ones(self):
        assert back(Holder(held=Derived())) == {"held": {"a": 1, "b": 2}}

    def test_a_root_model_becomes_its_root(self):
        assert back(RootModel[list[int]]([1, 2])) == [1, 2]

    def test_subclasses_of_text_and_numbers_become_these(self):
        class Text(str):
            pass

        class Number(float):
            pass

        assert equal(back([Text("a\0"), Number(1.5)]), ["a\0", 1.5], strict=True)

    def test_tensors_become_arrays(self):
        torch = pytest.importorskip("torch")
        value = {"x": torch.arange(3, dtype=torch.int16), "w": torch.ones(2, 2, requires_grad=True)}
        plain = {"x": np.arange(3, dtype=np.int16), "w": np.ones((2, 2), np.float32)}
        assert equal(back(value), plain, strict=True)
        assert back(torch.tensor(2.5)) == np.array(2.5, np.float32)

    def test_whatever_offers_to_dict_becomes_that(self):
        class Observation:
            def to_dict(self):
                return {"content": np.zeros(2)}

        assert equal(back([Observation()]), [{"content": np.zeros(2)}], strict=True)


class TestArrays:
    @pytest.mark.parametrize(
        "dtype",
        [
            np.dtype([("a", "i1"), ("b", "f8")], align=True),
            np.dtype({"names": ["b", "a"], "formats": ["<f4", "<i2"], "offsets": [4, 0]}),
            np.dtype({"names": ["all", "low"], "formats": ["<i4", "<i2"], "offsets": [0, 0]}),
            np.dtype([("grid", [("x", ">f4", (2, 3)), ("name", "U3")], (2,))]),
            np.dtype([("a\0b", "i4"), ("\ud800", "i4")]),
            np.dtype([("x", "M8[25s]"), ("y", "m8[ns]"), ("z", "V5"), ("w", "S2")]),
            np.dtype([(("title", "a"), "i4"), ("b", "i4")]),
            np.dtype("i4", metadata={"unit": "m"}),
            np.dtype([("a", "i4")], metadata={"unit": "m"}),
        ],
        ids=str,
    )
    def test_structured_dtypes_come_back_whatever_their_layout(self, dtype):
        array = np.frombuffer(bytes(range(2 * dtype.itemsize)), np.uint8).view(dtype)
        assert back(array).dtype == dtype
        assert back(array).tobytes() == array.tobytes()

    def test_fields_chosen_out_of_order_come_back(self):
        array = np.array([(1, 2.0, 3)], dtype=[("a", "i4"), ("b", "f8"), ("c", "i2")])[["c", "a"]]
        assert equal(back(array), array, strict=True)

    def test_a_record_array_comes_back_as_an_array(self):
        array = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
        assert equal(back(array), np.asarray(array), strict=True)

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 5, 2)])
    def test_arrays_without_elements_or_dimensions_keep_their_shape(self, shape):
        array = np.zeros(shape, ">U3")
        assert back(array).shape == shape
        assert back(array).dtype == np.dtype(">U3")


class Cyclic:
    def to_dict(self):
        return {"me": self}


def list_in_itself():
    value = []
    value.append(value)
    return value


def model_in_itself():
    value = Base()
    value.a = {"again": [value]}
    return value


class TestRefusals:
    def test_a_dtype_that_numpy_lacks_is_refused_with_the_remedy(self):
        torch = pytest.importorskip("torch")
        value = torch.ones(2, dtype=torch.bfloat16)
        assert refusal(value).endswith("first: tensor.float()")
        assert refusal({"t": value}).startswith("exp_data.state.t:")

    def test_a_sparse_tensor_is_refused_with_its_path(self):
        torch = pytest.importorskip("torch")
        assert refusal({"t": torch.ones(2, 2).to_sparse()}).startswith("exp_data.state.t:")

    @pytest.mark.parametrize(
        ("value", "remedy"),
        [
            (pd.NaT, "give None for a missing one"),
            (pd.Timestamp(1), "a numpy.datetime64 or numpy.timedelta64 for nanoseconds, or its"),
            (pd.Timedelta(1), "a numpy.datetime64 or numpy.timedelta64 for nanoseconds, or its"),
            (pd.DataFrame({"a": [1]}), "would lose its columns; give a dict with a list for each"),
            (pd.Series([1]), "would lose its index; give a dict with a list for each label, or"),
        ],
        ids=shown,
    )
    def test_what_would_lose_something_is_refused_with_the_remedy(self, value, remedy):
        assert remedy in refusal(value)
        assert refusal({"t": [value]}).startswith("exp_data.state.t[0]: ")

    def test_times_of_pandas_without_nanoseconds_become_pythons(self):
        moment, zone = dt.datetime(2024, 1, 1, 0, 0, 0, 5), dt.timezone(dt.timedelta(hours=1))
        assert back(pd.Timestamp(moment)) == moment
        in_zone = pd.Timestamp(moment, tz=zone)
        assert back(in_zone).isoformat() == "2024-01-01T00:00:00.000005+01:00"
        assert back(pd.Timedelta(5, "us")) == dt.timedelta(microseconds=5)
        # An hour that the clocks repeat, of which Python says that it equals no other.
        repeated = dt.datetime(2020, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
        assert back(repeated).isoformat() == "2020-10-25T02:30:00+01:00"

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (object(), "exp_data.state:"),
            ({"a": [1, {"b": object()}]}, "exp_data.state.a[1].b:"),
            ({1: {"x": object()}}, "exp_data.state[1].x:"),
            ((1, len), "exp_data.state[1]:"),
            ([int], "exp_data.state[0]:"),
            ({"a": np.array([object()])}, "exp_data.state.a:"),
            ([np.zeros(1, [("a", object)])], "exp_data.state[0]:"),
            ([np.ma.array([1, 2], mask=[0, 1])], "exp_data.state[0]:"),
            ({"s": np.array(["a"], np.dtypes.StringDType())}, "exp_data.state.s:"),
            (Point(1, object()), "exp_data.state.y:"),
            (Base(a=[object()]), "exp_data.state.a[0]:"),
            (range(3), "exp_data.state:"),
            (dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(0, 0, 1))), "exp_data.state:"),
            (iter([1]), "exp_data.state:"),
            (1j * np.ones(1, object), "exp_data.state:"),
            ({"members": {Point(1)}}, "exp_data.state.members:"),
            ({Point(1): 1}, "exp_data.state:"),
            ({Color.RED: 1, "red": 2}, "exp_data.state:"),
        ],
        ids=shown,
    )
    def test_what_cannot_be_stored_is_refused_with_its_path(self, value, path):
        assert refusal({"x": 1, "y": value}).startswith(f"exp_data.state.y{path[14:]}")
        assert refusal(value).startswith(path)

    @pytest.mark.parametrize(
        "value", [list_in_itself(), model_in_itself(), Cyclic(), {"a": Cyclic()}], ids=shown
    )
    def test_cycles_are_refused(self, value):
        assert refusal(value).startswith("exp_data.state")

    @pytest.mark.parametrize(
        ("wrap", "levels"),
        [
            (lambda inner: [inner], 1),
            (lambda inner: {"a": inner}, 1),
            (lambda inner: (inner,), 2),
            (lambda inner: {1: inner}, 3),
            (lambda inner: frozenset([inner]), 2),
        ],
        ids=["list", "dict", "tuple", "dict of numbers", "set"],
    )
    def test_nesting_ends_at_the_stated_depth_for_every_container(self, wrap, levels):
        deepest = nested(MAX_DEPTH // levels, wrap)
        assert back(deepest) == deepest
        assert "nested deeper than 100 levels" in refusal(wrap(deepest))
        assert "nested deeper than 100 levels" in refusal([wrap(deepest), "\0"])

    @pytest.mark.parametrize("depth", [150, 300, 5000, 200_000])
    def test_far_too_deep_is_refused_too(self, depth):
        assert refusal(nested(depth)).startswith("exp_data.state")

    def test_deep_calls_refuse_rather_than_overflow(self):
        def deeper(levels):
            return deeper(levels - 1) if levels else refusal({"a": nested(99), "b": "\0"})

        for levels in range(sys.getrecursionlimit() - 150, 200, -50):
            try:
                assert deeper(levels).startswith("exp_data.state")
            except (pytest.fail.Exception, RecursionError):
                continue
            return
        raise AssertionError("never refused")


class TestEqual:
    @pytest.mark.thorough
    @settings(max_examples=50)
    @given(payloads)
    def test_a_value_equals_itself_decoded(self, value):
        assert equal(back(value), back(value), strict=True)
        assert equal(back(value), back(value))

    @pytest.mark.slow
    @settings(max_examples=50)
    @given(payloads, payloads)
    def test_strictly_equal_values_have_equal_encodings(self, left, right):
        left, right = back(left), back(right)
        assert equal(left, right, strict=True) == (encoded(left) == encoded(right))

    @pytest.mark.parametrize(
        ("left", "right", "loosely"),
        [
            (1, 1.0, True),
            (1, True, True),
            (0.0, -0.0, True),
            (math.nan, NAN_WITH_PAYLOAD, True),
            ([1], (1,), False),
            ({"a": 1}, {"a": 1.0}, True),
            ({"a": 1}, {"b": 1}, False),
            ({1}, {1.0}, True),
            ({1: "x"}, {True: "x"}, True),
            (np.zeros(2), -np.zeros(2), True),
            (np.array([math.nan]), np.array([NAN_WITH_PAYLOAD]), True),
            (np.zeros(2), np.zeros(2, np.float32), False),
            (np.zeros(2), np.zeros((2, 1)), False),
            (np.zeros(1), 0.0, False),
            (decimal.Decimal("1.0"), decimal.Decimal("1.00"), True),
            ({1}, frozenset([1]), True),
            ("a", b"a", False),
            (None, 0, False),
        ],
    )
    def test_strictly_unequal_values(self, left, right, loosely):
        assert not equal(left, right, strict=True)
        assert not equal([left], [right], strict=True)
        assert equal(left, right) is loosely
        assert equal({"k": right}, {"k": left}) is loosely

    @pytest.mark.parametrize(
        "value",
        [
            math.nan,
            complex(math.nan, 1),
            decimal.Decimal("sNaN"),
            {float("nan"), 1},
            {float("nan"): np.ones(1)},
            np.datetime64("NaT", "ns"),
            np.array(["NaT"], "M8[s]"),
            uuid.UUID(int=1),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_values_without_an_equal_of_their_own_equal_their_copy(self, value):
        assert equal(back(value), back(value), strict=True)
        assert equal(back(value), back(value))

    def test_equal_sets_have_the_same_bytes_and_each_nan_is_a_member(self):
        def value():
            return frozenset({np.timedelta64("NaT", "s"), np.timedelta64(1, "s"), 3}), ("x",)

        values = [value() for _ in range(20)]
        assert len({encoded(nested) for nested in values}) == 1
        assert all(equal(nested, values[0], strict=True) for nested in values)
        assert not equal({math.nan, float("nan")}, {math.nan}, strict=True)

    def test_models_that_hold_arrays_can_be_compared(self):
        assert equal(Base(a=np.ones(2)), Base(a=np.ones(2)))
        assert not equal(Base(a=np.ones(2)), Base(a=np.zeros(2)))
        assert not equal(Point(np.ones(2)), Point(np.zeros(2)))

    def test_what_cannot_be_stored_is_compared_as_python_does(self):
        anything = object()
        assert equal(anything, anything, strict=True)
        assert not equal(anything, object())


@given(st.floats())
def test_floats_have_one_text_each(number):
    assert struct.pack(">d", back(number)) == struct.pack(">d", number)
