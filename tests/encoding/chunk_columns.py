"""Steps in columns of every kind, and chunks read back as the columns that they were made of."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sqlbuffer.codec.decoder import decode
from sqlbuffer.encoding.blocks import read_steps
from sqlbuffer.encoding.chunks import split_payload
from sqlbuffer.encoding.columns import reward_array
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import decode_extra
from sqlbuffer.fields import FieldSpec

DTYPES = ["?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "U3", "S5"]
REWARDS = st.sampled_from([0.0, -0.0, 1.5, np.nan, -np.nan, np.inf, -np.inf, 1e300]) | st.floats()
TEXTS = st.sampled_from(["a", "b", "ä", "", "task 1", "\U0001d11e"])
VALUES = st.none() | st.sampled_from(
    [0, 1.5, -0.0, "é\U0001d11e", [1, None], {"b": 1, "a": {"$x": float("nan")}}, b"ab\0", True]
)
ARRAYS = hnp.arrays("f4", st.sampled_from([(0,), (3,), (2, 2)]), elements=st.floats(width=32))


@dataclass
class Steps:
    """Steps as columns, and the layout that they are stored with."""

    layout: Layout
    columns: dict[str, Any]
    n: int


@st.composite
def specs(draw, min_size=1):
    """Draw declared fields: of fixed shape, and some of varying length."""
    found = {}
    for i in range(draw(st.integers(min_size, 3))):
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        shape = draw(st.sampled_from([(), (2,), (2, 3), (-1,), (2, -1), (-1, 2)]))
        column = shape == () and dtype.kind in "biufU" and dtype.str != "<u8"
        found[f"x{i}"] = FieldSpec(f"x{i}", dtype, shape, None, column and draw(st.booleans()))
    return found


@st.composite
def steps(draw, n=None, compressions=(None, "zstd")):
    """Draw steps with typed fields, and with whatever else a step may have."""
    n = draw(st.integers(0, 12)) if n is None else n
    layout = Layout(draw(specs()), draw(st.sampled_from(compressions)))
    columns: dict[str, Any] = {}
    for name, spec in layout.specs.items():
        if spec.is_variable:
            lens = [draw(st.integers(0, 4)) for _ in range(n)]
            columns[name] = [draw(values_of(spec, length)) for length in lens]
        else:
            columns[name] = draw(hnp.arrays(spec.dtype, (n, *spec.shape)))

    def column(values):
        return st.lists(values, min_size=n, max_size=n)

    optional = {
        "reward": column(REWARDS),
        "terminated": column(st.booleans()),
        "truncated": column(st.booleans()),
        "task_id": TEXTS | column(TEXTS),
        "agent_id": TEXTS | column(TEXTS),
        "model_version": column(st.integers(0, 1)),
        "session_id": column(st.sampled_from("xy")),
        "step": st.lists(
            st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2), min_size=n, max_size=n
        ),
        "priority": column(st.floats(0, 10)),
        "state": column(VALUES | ARRAYS),
        "extra": st.lists(
            st.none() | st.dictionaries(TEXTS, VALUES | ARRAYS), min_size=n, max_size=n
        ),
        "id": column(st.text("ab", min_size=1)),
    }
    for name, values in optional.items():
        if draw(st.booleans()):
            columns[name] = draw(values)
    return Steps(layout, columns, n)


def values_of(spec, length):
    return hnp.arrays(spec.dtype, tuple(length if n == -1 else n for n in spec.shape))


def read_chunk(layout, chunk):
    """Return the typed fields of a chunk as arrays."""
    return read_steps(
        layout, chunk.records, chunk.n_steps, chunk.block_steps, chunk.offsets, 0, chunk.n_steps
    )


def payload_of(layout, chunk, place):
    """Return the state, actions, messages and extra of a step."""
    text = None if chunk.payloads is None else chunk.payloads[place]
    found = split_payload(layout, text, chunk.payload_arrays)
    plain = [decode(part, found.arrays) for part in found[:3]]
    return [*plain, decode_extra(found.extra, found.arrays, {})]


def rewards_of(layout, chunk):
    """Return the rewards of the steps of a chunk, NaN where there is none."""
    texts = chunk.payloads or [None] * chunk.n_steps
    extras = [split_payload(layout, text, chunk.payload_arrays).extra for text in texts]
    return reward_array(each(chunk.reward, chunk.n_steps), extras)


def each(values, n):
    """Return a value for each step, None where there is none."""
    return [None] * n if values is None else list(values)
