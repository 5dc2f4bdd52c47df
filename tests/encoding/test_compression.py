"""Compressed rows: whatever the bytes, what was compressed comes back. No database."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.encoding.packing import Layout, check_compression, compress, expand
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import parse_specs

MAGIC = b"\x28\xb5\x2f\xfd"
rows = st.none() | st.binary(max_size=60) | st.binary(max_size=9).map(lambda tail: MAGIC + tail)
long_rows = st.builds(lambda part, n: part * n, st.binary(max_size=5), st.integers(0, 200))


@given(st.lists(rows | long_rows, max_size=6))
def test_what_was_compressed_is_expanded(given_rows):
    stored = compress(given_rows)
    assert expand(stored) == given_rows
    for row, kept in zip(given_rows, stored, strict=True):
        if row is not None and not row.startswith(MAGIC):
            assert len(kept) <= len(row)
    again = compress(stored)  # frames are rows like any other
    assert expand(expand(again)) == given_rows


@given(st.binary(min_size=1, max_size=30), st.data())
def test_bytes_of_a_frame_that_changed_are_noticed(part, data):
    (frame,) = compress([part * 50])
    at = data.draw(st.integers(4, len(frame) - 1))
    changed = bytearray(frame)
    changed[at] ^= data.draw(st.integers(1, 255))
    found = None
    with suppress(FieldError):
        (found,) = expand([bytes(changed)])
    assert found in (None, part * 50)  # some bits mean nothing


def test_a_damaged_row_is_named():
    (frame,) = compress([b"a" * 50])
    with pytest.raises(FieldError, match="the row with seq 7 has damaged arrays"):
        expand([frame, frame[:-1]], [6, 7])


def test_a_layout_without_compression_leaves_rows_alone():
    layout = Layout(parse_specs({"x": "uint8"}))
    stored = [MAGIC, None, b"abc"]
    assert layout.compress(stored) == layout.expand(stored) == stored
    check_compression(None)


def test_rows_are_unpacked_as_they_are_stored():
    layout = Layout(parse_specs({"x": ("uint8", (100,)), "n": ("int32", (-1,))}), "zstd")
    tokens = np.array([1, 2], np.int32)
    columns = {"x": [[7] * 100] * 2, "n": [tokens] * 2}
    packed = [row + b"tail" for row in layout.pack(columns, 2)]
    stored = layout.compress(packed)
    assert max(map(len, stored)) < 60
    found = layout.unpack(stored)
    assert found["x"].tolist() == columns["x"]
    assert found["n"].tolist() == [[1, 2]] * 2
    cut = layout.compress([packed[0][:-9]])
    with pytest.raises(FieldError, match="row 0 of these holds too short arrays"):
        layout.unpack(cut)
