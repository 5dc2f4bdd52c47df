"""Steps of chunks read back, one at a time and in runs; damaged bytes are noticed."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlbuffer.encoding.blocks import expanded_rows, read_steps, stored_blocks
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import parse_specs
from tests.encoding.chunk_columns import read_chunk, steps

MAGIC = np.frombuffer(b"\x28\xb5\x2f\xfd", np.uint8)


def read_run(layout, chunk, start, stop, **also):
    return read_steps(
        layout,
        chunk.records,
        chunk.n_steps,
        chunk.block_steps,
        None if chunk.offsets is None else chunk.offsets.tolist(),
        start,
        stop,
        **also,
    )


def blocks_of(chunk, places):
    firsts = [place - place % chunk.block_steps for place in places]
    stored = stored_blocks(
        chunk.records,
        chunk.n_steps,
        chunk.block_steps,
        chunk.offsets,
        range(0, chunk.n_steps, chunk.block_steps),
    )
    return [stored[first // chunk.block_steps] for first in firsts]


@pytest.mark.thorough
@settings(max_examples=60)
@given(steps(), st.data())
def test_runs_and_single_steps_are_those_of_the_chunk(drawn, data):
    layout = drawn.layout
    columns = {name: drawn.columns[name] for name in layout.specs}
    for chunk in pack_columns(layout, columns).chunks:
        expected = layout.unpack_expanded(layout.pack(columns, drawn.n))
        start = data.draw(st.integers(0, chunk.n_steps))
        stop = data.draw(st.integers(start, chunk.n_steps))
        names = data.draw(st.none() | st.lists(st.sampled_from(list(layout.specs)), unique=True))
        found = read_run(layout, chunk, start, stop, fields=names)
        own = layout.unpack_expanded(layout.pack(columns, drawn.n)[start:stop], names)
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in own.items()
        }
        assert all(array.flags.writeable and array.flags.aligned for array in found.values())
        places = data.draw(st.lists(st.integers(0, chunk.n_steps - 1)))
        rows = expanded_rows(
            layout,
            blocks_of(chunk, places),
            [place % chunk.block_steps for place in places],
            range(len(places)),
        )
        single = layout.unpack_expanded(rows)
        assert all(
            single[name].tobytes() == expected[name][places].tobytes()
            for name, spec in layout.specs.items()
            if not spec.is_variable
        )
        for name, spec in layout.specs.items():
            if spec.is_variable:
                lens = single[f"{name}_lens"]
                assert np.array_equal(lens, expected[f"{name}_lens"][places])


@pytest.mark.parametrize("shape", [(100,), (-1,)])
def test_small_steps_share_a_block_where_they_are_compressed(shape):
    layout = Layout(parse_specs({"x": ("uint8", shape)}), "zstd")
    values = [np.full(100, i % 7, np.uint8) for i in range(200)]
    (chunk,) = pack_columns(layout, {"x": values}).chunks
    assert chunk.block_steps == 4_096 // (100 + 4 * (shape == (-1,)))
    assert len(chunk.offsets) == -(-200 // chunk.block_steps) + 1
    assert len(chunk.records) < 4_000
    assert np.array_equal(read_chunk(layout, chunk)["x"], values)
    rows = expanded_rows(layout, blocks_of(chunk, [5, 190, 5]), [5, 190 % chunk.block_steps, 5])
    assert np.array_equal(layout.unpack_expanded(rows)["x"], [values[5], values[190], values[5]])


def test_large_steps_are_compressed_one_by_one():
    layout = Layout(parse_specs({"x": ("uint8", (5_000,))}), "zstd")
    (chunk,) = pack_columns(layout, {"x": np.zeros((3, 5_000), np.uint8)}).chunks
    assert chunk.block_steps == 1
    assert len(chunk.offsets) == 4


def test_records_that_hardly_shrink_are_stored_as_they_are():
    layout = Layout(parse_specs({"x": ("float32", (40,))}), "zstd")
    values = np.random.default_rng(0).standard_normal((50, 40), np.float32)
    (chunk,) = pack_columns(layout, {"x": values}).chunks
    assert (chunk.offsets, chunk.block_steps) == (None, 50)
    assert chunk.records == values.tobytes()
    assert np.array_equal(read_chunk(layout, chunk)["x"], values)


def test_steps_that_begin_like_a_frame_come_back():
    layout = Layout(parse_specs({"x": ("uint8", (40,))}), "zstd")
    values = np.random.default_rng(0).integers(0, 256, (10, 40), np.uint8)
    values[7, :4] = MAGIC
    (chunk,) = pack_columns(layout, {"x": values}).chunks
    assert np.array_equal(read_chunk(layout, chunk)["x"], values)
    rows = expanded_rows(layout, blocks_of(chunk, range(10)), range(10), range(10))
    assert np.array_equal(layout.unpack_expanded(rows)["x"], values)


def test_a_block_is_expanded_once(monkeypatch):
    from sqlbuffer.encoding import blocks

    layout = Layout(parse_specs({"x": ("uint8", (40,))}), "zstd")
    (chunk,) = pack_columns(layout, {"x": np.zeros((10, 40), np.uint8)}).chunks
    expanded = []

    def counting(blocks, seqs):
        expanded.extend(blocks)
        return record_blocks_expand(blocks, seqs)

    record_blocks_expand = blocks.expand
    monkeypatch.setattr(blocks, "expand", counting)
    rows = expanded_rows(layout, [chunk.records] * 10, range(10), range(10))
    assert (len(rows), len(expanded)) == (10, 1)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("shape", [(40,), (-1,)])
def test_missing_and_short_blocks_are_named(shape, compression):
    layout = Layout(parse_specs({"x": ("uint8", shape)}), compression)
    (chunk,) = pack_columns(layout, {"x": np.zeros((3, 40), np.uint8)}).chunks
    block, *_ = blocks_of(chunk, [0])
    with pytest.raises(FieldError, match="the row with seq 8 holds no arrays"):
        layout.unpack_expanded(expanded_rows(layout, [block, None], [0, 0], [7, 8]), seqs=[7, 8])
    with pytest.raises(FieldError, match=r"the row with seq 8 (holds|has damaged)"):
        layout.unpack_expanded(
            expanded_rows(layout, [block, block[:9]], [0, 0], [7, 8]), seqs=[7, 8]
        )


@pytest.mark.thorough
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("shape", [(40,), (-1,)])
@given(data=st.data())
def test_damaged_chunks_give_a_field_error_or_other_values(shape, compression, data):
    layout = Layout(parse_specs({"x": ("uint8", shape)}), compression)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (5, 40), np.uint8)
    (chunk,) = pack_columns(layout, {"x": values}).chunks
    records = bytearray(chunk.records)
    if data.draw(st.booleans()):
        del records[data.draw(st.integers(0, len(records) - 1)) :]
    else:
        records[data.draw(st.integers(0, len(records) - 1))] ^= data.draw(st.integers(1, 255))
    offsets = chunk.offsets
    if offsets is not None and data.draw(st.booleans()):
        offsets = offsets.copy()
        offsets[data.draw(st.integers(0, len(offsets) - 1))] += data.draw(st.integers(-99, 99))
    with suppress(FieldError):
        found = read_steps(layout, bytes(records), 5, chunk.block_steps, offsets, 0, 5, first_seq=3)
        assert found["x"].shape[0] == 5
    with suppress(FieldError):
        stored = stored_blocks(
            bytes(records), 5, chunk.block_steps, offsets, range(0, 5, chunk.block_steps)
        )
        own = [stored[i // chunk.block_steps] for i in range(5)]
        rows = expanded_rows(layout, own, [i % chunk.block_steps for i in range(5)], range(5))
        assert layout.unpack_expanded(rows)["x"].shape[0] == 5


def test_a_cut_chunk_is_named():
    layout = Layout(parse_specs({"x": "int64"}))
    (chunk,) = pack_columns(layout, {"x": range(9)}).chunks
    with pytest.raises(FieldError, match="the row with seq 10 has damaged arrays"):
        read_steps(layout, chunk.records[:-1], 9, 9, None, 4, 6, first_seq=10)
