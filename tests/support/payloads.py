"""Payloads of every kind that comes back as it was given, however odd."""

import datetime as dt
import math
import struct

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff800000000abcd"))[0]
FLOATS = [
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1e-7,
    0.1,
    1e15,
    9007199254740993.0,
    1e16,
    -1e16,
    1e17,
    2.0**63,
]
FLOATS += [1.7976931348623157e308, math.inf, -math.inf, math.nan, -math.nan, NAN_WITH_PAYLOAD]
INTEGERS = [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**400]
TEXTS = [
    "",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff\ud800",
    "\\u0000",
    "it's 100%",
    'a "quote"',
    "\\",
    "\n\x7f",
]
TEXTS += ["\U0001d11e", "$float", "U\u0308", "\ufeff", "\uffff"]
KEYS = [
    "",
    "a",
    "a.b",
    "0",
    "-1",
    "[0]",
    'q"q',
    "back\\slash",
    "%",
    "%0041",
    "é",
    "\0",
    "\n",
    "\ud800",
]
KEYS += ["$", "$$", "$%", "$%0041", "$a", "$array", "$float", "$tuple", "$str", "$none", "$reals"]

floats = st.sampled_from(FLOATS) | st.floats() | st.floats(width=32)
integers = st.sampled_from(INTEGERS) | st.integers()
texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=()), max_size=5)
keys = st.sampled_from(KEYS) | texts

dtypes = (
    hnp.scalar_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.unicode_string_dtypes(max_len=4)
    | hnp.array_dtypes(allow_subarrays=True)
    | hnp.nested_dtypes(max_leaves=3)
).filter(lambda dtype: dtype.subdtype is None)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def arrays(draw):
    """Draw an array of a fixed-size dtype: any byte order, Fortran order, empty, read-only."""
    array = draw(hnp.arrays(draw(dtypes), draw(shapes)))
    change = draw(st.sampled_from(["none", "fortran", "reversed", "read-only"]))
    if change == "fortran":
        return np.asfortranarray(array)
    if change == "reversed":
        return array[::-1] if array.ndim else array
    array.flags.writeable = change != "read-only"
    return array


timezones = st.none() | st.integers(-23 * 3600, 23 * 3600).map(
    lambda seconds: dt.timezone(dt.timedelta(seconds=seconds))
)
hashable_leaves = (
    st.none()
    | st.booleans()
    | integers
    | floats
    | texts
    | st.binary(max_size=5)
    | st.datetimes(timezones=timezones)
    | st.dates()
    | st.times(timezones=st.just(dt.UTC) | st.none())
    | st.timedeltas()
    | st.decimals().filter(lambda number: not number.is_snan())
    | st.uuids()
    | st.complex_numbers()
    | st.sampled_from([np.datetime64("2020-01-01"), np.complex64(1 - 2j)])
    # Each is another object, and so another member of a set.
    | st.builds(np.timedelta64, st.just("NaT"), st.just("s"))
)
hashables = st.recursive(
    hashable_leaves,
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)
payloads = st.recursive(
    hashable_leaves | arrays(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=3)
    ),
    max_leaves=8,
)
# One message as a dict is refused.
messages = payloads.filter(lambda value: not isinstance(value, dict))


def arrays_in(value):
    """Yield every array inside a value."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_in(item)


def nested(depth, wrap=lambda inner: [inner]):
    """Return 1 inside `depth` containers."""
    value = 1
    for _ in range(depth):
        value = wrap(value)
    return value
