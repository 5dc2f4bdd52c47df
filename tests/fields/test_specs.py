"""Typed fields: declarations, casts, packing. No database."""

import numpy as np
import orjson
import pytest
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import Fields, FieldSpec, parse_specs

F32 = np.float32


def spec_of(given, name="x"):
    return FieldSpec.parse(name, given)


@pytest.mark.parametrize(
    ("given", "dtype", "shape", "default"),
    [
        ("float32", "f4", (), None),
        (np.int8, "i1", (), None),
        (bool, "?", (), None),
        (("float32", (3, 16, 16)), "f4", (3, 16, 16), None),
        (("int64", 2), "i8", (2,), None),
        (("int64", (-1,)), "i8", (-1,), None),
        (("float32", (2,), (0.5, 1)), "f4", (2,), [0.5, 1.0]),
        (("uint8", (), 7), "u1", (), 7),
        ("U16", "U16", (), None),
        ("S4", "S4", (), None),
        (">i4", "<i4", (), None),
        ({"dtype": "int64", "column": True}, "i8", (), None),
    ],
)
def test_a_declaration_is_a_dtype_with_a_shape_and_a_default(given, dtype, shape, default):
    spec = spec_of(given)
    assert spec.dtype == np.dtype(dtype)
    assert spec.dtype.byteorder in "<|="
    assert spec.shape == shape
    value = spec.default_value
    assert (None if value is None else value.tolist()) == default
    assert FieldSpec.from_json("x", spec.to_json()) == spec


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("float31", "not a numpy dtype"),
        (object, "no fixed size"),
        ("U", "no fixed size"),
        ("datetime64[s]", "no fixed size"),
        (("float32", (-1, -1)), "only one length may vary"),
        (("float32", (0,)), "positive lengths"),
        (("float32", "ab"), "positive lengths"),
        (("float32", (True,)), "positive lengths"),
        (("float32", (2,), [1, 2], 3), "not a numpy dtype"),
        ({"shape": (2,)}, "a declaration has"),
        ({"dtype": "f4", "size": 2}, "a declaration has"),
        ({"dtype": "f4", "shape": (2,), "column": True}, "only a number of up to 64 bits, a bool"),
        ({"dtype": "longdouble", "column": True}, "only a number of up to 64 bits"),
        ({"dtype": "S4", "column": True}, "only a number of up to 64 bits"),
        ({"dtype": "c8", "column": True}, "only a number of up to 64 bits"),
        ({"dtype": "f4", "column": 1}, "column is True or False"),
        (("uint8", (), 300), "out of the range"),
        (np.zeros((3, 2), F32), r"give \('float32', \(3, 2\)\)"),
        (Box(-1, 1, (4,), F32), r"give \('float32', \(4,\)\)"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused_by_the_name_of_its_field(given, reason):
    with pytest.raises(FieldError, match=rf"field 'x'.*{reason}"):
        spec_of(given)


@pytest.mark.parametrize(
    "given", [("float32", (3, 2)), ("uint8", (), 7), {"dtype": "int64", "column": True}]
)
def test_a_field_of_a_buffer_is_a_declaration(given):
    assert spec_of(spec_of(given, name="other")) == spec_of(given)


@pytest.mark.parametrize("given", [("float32", (3,)), ("obs", "float32"), ("obs", ())])
def test_a_spec_that_is_made_without_a_dtype_says_how_fields_are_declared(given):
    with pytest.raises(FieldError, match=r"declare fields as \{'obs': \('float32', \(4,\)\)\}"):
        FieldSpec(*given)


@pytest.mark.parametrize("name", ["", "a b", "1a", "class", 3, None])
def test_a_name_is_one_that_python_could_use(name):
    with pytest.raises(FieldError, match="one that Python could use"):
        FieldSpec.parse(name, "float32")


@pytest.mark.parametrize("name", ["reward", "terminated", "truncated"])
def test_built_in_fields_are_not_declared(name):
    with pytest.raises(FieldError, match="built in: leave it out"):
        FieldSpec.parse(name, "float32")


@pytest.mark.parametrize(
    "name", ["mask", "info", "seq", "obs_lens", "_hidden", "state", "step", "values", "id"]
)
def test_names_that_a_batch_uses_itself_are_refused(name):
    with pytest.raises(FieldError, match="the name is reserved"):
        FieldSpec.parse(name, "float32")


def test_fields_that_differ_from_the_stored_ones_are_named_with_both_declarations():
    stored = Fields(specs={"obs": ("float32", (4,)), "action": "int64"})
    Fields(specs={"action": "int64", "obs": ("float32", (4,))}).check_same(stored)
    for declared, message in [
        ({"obs": ("float32", (5,)), "action": "int64"}, r"'obs'.*float32\(4,\).*float32\(5,\)"),
        ({"obs": ("float32", (4,))}, "'action' is stored as int64, and was given as nothing"),
        ({"obs": ("float32", (4,)), "action": ("int64", (), 3)}, "int64, default 3"),
        ({"obs": ("float32", (4,)), "action": "int64", "z": "i1"}, "'z' is stored as nothing"),
    ]:
        with pytest.raises(FieldError, match=message):
            Fields(specs=declared).check_same(stored)
    with pytest.raises(FieldError, match="fields is a dict"):
        parse_specs([("obs", "float32")])


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("float32", np.float64(0.1), F32(0.1)),
        ("float32", 3, F32(3)),
        ("float32", float("inf"), F32("inf")),
        ("float32", True, F32(1)),
        ("uint8", np.int64(255), np.uint8(255)),
        ("int8", np.uint64(127), np.int8(127)),
        ("int64", True, np.int64(1)),
        ("bool", np.bool_(True), np.bool_(True)),
        ("bool", 0, np.bool_(False)),
        (("bool", (2,)), [1, 0], np.array([True, False])),
        ("U4", "ärgr", "ärgr"),
        ("complex64", 1.5, np.complex64(1.5)),
        (("float32", (2,)), [1, 2.5], np.array([1, 2.5], F32)),
    ],
)
def test_a_value_that_keeps_its_meaning_is_cast(field, value, expected):
    cast = spec_of(field).cast(value)
    assert cast.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(cast, expected)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("int64", 1.0, "expected int64, got float64"),
        ("bool", 2, "2 is out of the range of bool, 0 to 1"),
        ("bool", 1.0, "expected bool, got float64"),
        ("uint8", 256, "256 is out of the range of uint8, 0 to 255"),
        ("uint8", -1, "-1 is out of the range"),
        ("int64", np.uint64(2**63), "out of the range"),
        ("float32", 1e300, "1e\\+300.* is too large for float32"),
        ("float16", 70_000, "too large for float16"),
        ("float32", 1j, "expected float32, got complex128"),
        ("float32", "1", "expected float32"),
        ("U2", "abc", "a text of 3 is longer than U2"),
        ("U2", 12345, "expected U2, got int64"),
        ("U4", 1234.5, "expected U4, got float64"),
        ("U8", b"ab", "expected U8, got S2"),
        ("int64", 2**70, f"{2**70} is out of the range of int64"),
        ("float32", np.ma.array(1.0, mask=True), "a masked array would lose its mask"),
        ("float32", None, "expected float32"),
        ("float32", [1.0], r"expected shape \(\), got \(1,\)"),
        (("float32", (2,)), [1.0, 2.0, 3.0], r"expected shape \(2,\), got \(3,\)"),
        (("float32", (2,)), [[1.0], [2.0, 3.0]], "expected float32"),
        (("float32", (-1, 2)), np.ones((4, 3)), r"expected shape \(-1, 2\), got \(4, 3\)"),
    ],
)
def test_a_value_that_would_lose_its_meaning_is_refused(field, value, reason):
    with pytest.raises(FieldError, match=rf"field 'x'.*{reason}") as caught:
        spec_of(field).cast(value)
    assert str(caught.value).count("field 'x'") == 1


def test_unsafe_casts_are_those_of_numpy():
    assert spec_of("uint8").cast(-1, casting="unsafe") == 255
    assert spec_of("int64").cast(1.9, casting="unsafe") == 1
    with pytest.raises(FieldError, match="casting is one of"):
        spec_of("int64").cast(1, casting="same")


def test_a_cast_value_is_a_copy():
    own = np.ones(3, F32)
    cast = spec_of(("float32", (3,))).cast(own)
    own[:] = 2
    np.testing.assert_array_equal(cast, np.ones(3, F32))


FIELDS = {
    "obs": ("float32", (2, 3)),
    "tokens": ("int32", (-1,)),
    "done": "bool",
    "frames": ("uint8", (2, -1, 3)),
    "name": "U5",
}


@st.composite
def rows_of_fields(draw):
    n = draw(st.integers(0, 6))
    lens = st.integers(0, 4)
    rows = [
        {
            "obs": draw(hnp.arrays(F32, (2, 3), elements=st.floats(width=32))),
            "tokens": draw(hnp.arrays(np.int32, draw(lens))),
            "done": np.bool_(draw(st.booleans())),
            "frames": draw(hnp.arrays(np.uint8, (2, draw(lens), 3))),
            "name": np.str_(draw(st.text("aZ ä漢🎲", max_size=5))),
        }
        for _ in range(n)
    ]
    tails = [draw(st.binary(max_size=5)) for _ in range(n)]
    return rows, tails


@pytest.mark.thorough
@pytest.mark.slow
@given(rows_of_fields())
def test_what_was_packed_is_unpacked_whatever_follows_it(made):
    rows, tails = made
    layout = Layout(parse_specs(FIELDS))
    columns = {
        name: [row[name] for row in rows]
        if spec.is_variable
        else np.array([row[name] for row in rows], spec.dtype).reshape(len(rows), *spec.shape)
        for name, spec in layout.specs.items()
    }
    packed = layout.pack(columns, len(rows))
    found = layout.unpack([row + tail for row, tail in zip(packed, tails, strict=True)])
    assert set(found) == {*FIELDS, "tokens_lens", "frames_lens"}
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(found["obs"][i], row["obs"])
        np.testing.assert_array_equal(found["done"][i], row["done"])
        assert found["name"][i] == row["name"]
        n = found["tokens_lens"][i]
        np.testing.assert_array_equal(found["tokens"][i, :n], row["tokens"])
        assert not found["tokens"][i, n:].any()
        n = found["frames_lens"][i]
        np.testing.assert_array_equal(found["frames"][i, :, :n], row["frames"])
        assert not found["frames"][i, :, n:].any()


def test_chosen_fields_alone_are_unpacked_into_memory_of_their_own():
    layout = Layout(parse_specs(FIELDS))
    columns = {
        "obs": np.ones((2, 2, 3), F32),
        "tokens": [np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int32)],
        "done": np.array([True, False]),
        "frames": [np.ones((2, 1, 3), np.uint8)] * 2,
        "name": np.array(["a", "b"]),
    }
    packed = layout.pack(columns, 2)
    found = layout.unpack(packed, ["frames", "obs"])
    assert sorted(found) == ["frames", "frames_lens", "obs"]
    for array in found.values():
        assert array.flags.writeable
        assert array.flags.c_contiguous
    with pytest.raises(FieldError, match="unknown field 'x'; the buffer has obs, tokens"):
        layout.unpack(packed, ["x"])


def test_a_buffer_without_fields_has_empty_records():
    layout = Layout({})
    assert layout.pack({}, 3) == [b"", b"", b""]
    assert layout.unpack([b"tail", b""]) == {}


def test_an_observation_is_made_of_the_field_obs_unless_something_else_is_said():
    declared = {"obs": "f4", "camera": ("u1", (2,)), "action": "i8"}
    assert Fields(specs=declared).observations == ("obs",)
    assert Fields(specs={"action": "i8"}).observations == ()
    both = Fields(specs=declared, observations=["obs", "camera"])
    assert both.observations == ("obs", "camera")
    assert Fields.model_validate_json(both.model_dump_json()) == both
    with pytest.raises(FieldError, match=r"field 'image' is not declared.*obs, camera"):
        Fields(specs=declared, observations="image")
    with pytest.raises(FieldError, match=r"stored as \['obs', 'camera'\].*given as \['obs'\]"):
        Fields(specs=declared, observations="obs").check_same(both)


@pytest.mark.parametrize(
    "declared",
    [
        ("int64", (-1,), np.zeros(0, int)),
        ("float32", (-1, 3), np.zeros((0, 3))),
        ("float32", (2,), [np.nan, np.inf]),
        ("float32", (), float("nan")),
        ("complex64", (), 1j),
        ("S4", (), b"ab"),
        ("bool", (), True),
        ("uint64", (), 2**64 - 1),
    ],
)
def test_a_default_is_what_it_was_when_the_buffer_is_opened_again(declared):
    spec = spec_of(declared)
    again = FieldSpec.from_json("x", orjson.loads(orjson.dumps(spec.to_json())))
    assert again == spec
    assert hash(again) == hash(spec)
    np.testing.assert_array_equal(again.default_value, np.asarray(declared[2], spec.dtype))
    assert again.default_value.shape == spec.default_value.shape


def test_rows_without_items_have_no_dtype_to_refuse():
    tokens = spec_of(("int64", (-1,)))
    assert tokens.cast([]).dtype == np.int64
    assert tokens.cast(np.zeros(0)).shape == (0,)
    assert spec_of(("float32", (-1, 3))).cast([]).shape == (0, 3)


def test_integers_beyond_what_numpy_guesses_are_taken_as_they_are():
    spec = spec_of(("uint64", (2,)))
    assert spec.cast([2**64 - 1, 0]).tolist() == [2**64 - 1, 0]
    with pytest.raises(FieldError, match="out of the range of uint64"):
        spec.cast([2**64, 0])


def test_what_an_observation_is_made_of_need_not_be_said_again():
    declared = {"a": "f4", "b": "f4"}
    stored = Fields(specs=declared, observations=["a"])
    Fields(specs=declared).check_same(stored)
    with pytest.raises(FieldError, match="observation fields are stored"):
        Fields(specs=declared, observations=["b"]).check_same(stored)


def test_a_row_too_large_for_the_databases_is_refused():
    with pytest.raises(FieldError, match="field 'x': a row of these fields has 40,000,000,004"):
        parse_specs({"n": "int32", "x": ("float32", (10**10,))})


def test_an_integer_that_the_databases_do_not_have_is_no_column():
    with pytest.raises(FieldError, match="only a number of up to 64 bits"):
        parse_specs({"hash": {"dtype": "uint64", "column": True}})


@pytest.mark.parametrize("name", ["self", "has_final"])
def test_names_that_calls_and_batches_use_are_refused(name):
    with pytest.raises(FieldError, match="the name is reserved"):
        parse_specs({name: "int32"})
