"""Buffers whose arrays are compressed: everything comes back, in fewer bytes."""

import itertools
import json
import pickle
import sys

import numpy as np
import pytest

from sqlbuffer import LatestSampler, ReplayBuffer
from sqlbuffer.errors import BufferConfigError, FieldError, MissingExtraError
from tests.support.array_rows import make_array_row
from tests.support.processes import run_at_once
from tests.support.sql import is_sqlite, run, scalar

MAGIC = b"\x28\xb5\x2f\xfd"
N = 6
DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "S3", "U5"]
FIELDS = {
    "frame": ("uint8", (32, 32)),
    "tokens": ("int32", (-1,)),
    **{f"a_{dtype}": (dtype, (4,)) for dtype in DTYPES},
}


def make_columns(n=N):
    rng = np.random.default_rng(3)
    return {
        "frame": np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None], (n, 32, 32)),
        "tokens": [np.arange(i, dtype=np.int32) for i in range(n)],
        **{f"a_{dtype}": rng.integers(0, 2, (n, 4)).astype(dtype) for dtype in DTYPES},
        "reward": np.arange(n, dtype=float),
    }


def check_batch(batch):
    expected = make_columns()
    steps = batch.info["step"]
    assert sorted(steps) == list(range(N))
    for name in FIELDS:
        if name != "tokens":
            np.testing.assert_array_equal(batch[name], expected[name][steps])
    for tokens, n, step in zip(batch.tokens, batch.tokens_lens, steps, strict=True):
        np.testing.assert_array_equal(tokens[:n], np.arange(step))


def all_of(buffer, n=N):
    return buffer.sample_arrays(n, sampler=LatestSampler())


def blocks(url, name="default"):
    """Return the block of each step, and its place in it."""
    found = run(
        url,
        "SELECT block, block_place FROM chunk_steps s JOIN v_buffers b USING (buffer_id) "
        f"WHERE buffer = '{name}' ORDER BY seq",
    )
    return [(bytes(block), place) for block, place in found]


def chunk_of(url, seq, columns):
    """Return the first number of the chunk with a step, and columns of its values."""
    chunk = f"WHERE first_seq <= {seq} ORDER BY first_seq DESC LIMIT 1"
    ((first, *values),) = run(url, f"SELECT first_seq, {columns} FROM chunk_data {chunk}")
    return first, *values


def change_block(url, seq, change):
    """Change the bytes of the block with a step; leave the others of its chunk."""
    first, records, offsets, size = chunk_of(url, seq, "records, offsets, block_steps")
    offsets = json.loads(offsets) if isinstance(offsets, str) else offsets
    parts = [bytes(records)[a:b] for a, b in itertools.pairwise(offsets)]
    n = (seq - first) // size
    parts[n] = change(parts[n])
    ends = list(itertools.accumulate(map(len, parts), initial=0))
    run(
        url,
        f"UPDATE chunk_data SET records = :records, offsets = :offsets WHERE first_seq = {first}",
        records=b"".join(parts),
        offsets=json.dumps(ends) if is_sqlite(url) else ends,
    )


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, compression="zstd") as buffer:
        yield buffer


def test_every_kind_of_field_comes_back_and_takes_fewer_bytes(buffer_url, buffer):
    buffer.extend(make_columns())
    check_batch(all_of(buffer))
    assert all(block.startswith(MAGIC) for block, _ in blocks(buffer_url))
    assert scalar(buffer_url, "SELECT sum(length(records)) FROM chunk_data") < N * 32 * 32 / 4
    with ReplayBuffer(buffer_url, name="plain", fields=FIELDS) as plain:
        assert plain.compression is None
        plain.extend(make_columns())
        assert all(len(block) > 32 * 32 for block, _ in blocks(buffer_url, "plain"))


def test_payloads_are_read_behind_the_fields_and_without_any(buffer_url, buffer):
    states = [{"grid": np.full((9, 9), i), "raw": b"x" * i, "note": "n"} for i in range(N)]
    buffer.extend({**make_columns(), "state": states, "messages": [["hello"]] * N})
    check_batch(all_of(buffer))
    with ReplayBuffer(buffer_url, name="rows", compression="zstd") as rows:
        big = [{"image": np.zeros((64, 64))}, np.arange(3), {"plain": 1}]
        for state in big:
            rows.add(state=state, actions=[np.int8(1)], extra={"$odd": np.ones(2)})
        for each, expected in [(buffer, states), (rows, big)]:
            for row, state in zip(each, expected, strict=True):
                np.testing.assert_equal(row.exp_data.state, state)
        rows.store(make_array_row(step=3))
        np.testing.assert_array_equal(list(rows)[-1].exp_data.state, np.full(4, 3, np.float32))
    for size in (
        "max(length(arrays)) FROM experiences",
        "max(length(payload_arrays) / n_steps) FROM chunk_data",
    ):
        assert scalar(buffer_url, f"SELECT {size}") < 3000


def test_transitions_and_final_observations_are_read(buffer_url):
    fields = {"obs": ("float32", (64,)), "action": "int64"}
    with ReplayBuffer(buffer_url, name="episodes", fields=fields, compression="zstd") as buffer:
        obs = np.broadcast_to(np.arange(4.0)[:, None], (4, 64)).astype(np.float32)
        steps = {"obs": obs, "action": np.arange(4), "reward": np.ones(4)}
        buffer.store_episode(steps, final={"obs": np.full(64, 4.0)})
        batch = buffer.sample_transitions(40)
        np.testing.assert_array_equal(batch.next_obs, batch.obs + 1)
        assert set(batch.info["t"]) == {0, 1, 2, 3}
    final = scalar(buffer_url, "SELECT final_arrays FROM episodes")
    assert bytes(final).startswith(MAGIC)


def test_chunks_that_shrink_and_others_are_read_together(buffer_url):
    fields = {"obs": ("uint8", (40,))}
    obs = np.random.default_rng(0).integers(0, 256, (600, 40), np.uint8)
    obs[:200] = 1
    obs[400, :4] = np.frombuffer(MAGIC, np.uint8)
    with ReplayBuffer(buffer_url, name="mixed", fields=fields, compression="zstd") as buffer:
        for start in range(0, 600, 200):
            part = obs[start : start + 200]
            buffer.store_episode({"obs": part, "reward": np.ones(200)}, final={"obs": part[-1]})
        plain = scalar(buffer_url, "SELECT count(*) FROM chunk_data WHERE offsets IS NULL")
        assert 0 < plain < scalar(buffer_url, "SELECT count(*) FROM chunk_data")
        everything = all_of(buffer, 600)
        np.testing.assert_array_equal(everything.obs, obs[everything.info["seq"] - 1])
        np.testing.assert_array_equal([row.fields["obs"] for row in buffer], obs)
        batch = buffer.sample_transitions(300, n_step=3)
        seqs = batch.info["seq"]
        np.testing.assert_array_equal(batch.obs, obs[seqs - 1])
        last = np.minimum(seqs + 2, (seqs - 1) // 200 * 200 + 199)
        np.testing.assert_array_equal(batch.next_obs, obs[last])
        with buffer.mirror() as mirror:
            drawn = mirror.sample_arrays(300)
            np.testing.assert_array_equal(drawn.obs, obs[drawn.info["seq"] - 1])


def test_steps_that_are_written_one_at_a_time_are_compressed(buffer_url):
    fields = {"obs": ("float32", (64,))}
    with ReplayBuffer(buffer_url, name="steps", fields=fields, compression="zstd") as buffer:
        with buffer.episode() as episode:
            for i in range(3):
                episode.append(obs=np.full(64, i, np.float32), state={"grid": np.full((9, 9), i)})
            episode.end(obs=np.full(64, 3, np.float32))
        assert all(block.startswith(MAGIC) for block, _ in blocks(buffer_url, "steps"))
        batch = buffer.sample_transitions(20)
        np.testing.assert_array_equal(batch.next_obs, batch.obs + 1)
        assert [row.exp_data.state["grid"][0, 0] for row in buffer] == [0, 1, 2]


def test_a_blob_that_plain_sql_returns_is_decoded(buffer_url, buffer):
    buffer.extend(make_columns())
    block, place = blocks(buffer_url)[4]
    found = buffer.decode(block, place)
    np.testing.assert_array_equal(found["frame"], np.full((32, 32), 4))
    np.testing.assert_array_equal(found["tokens"], [0, 1, 2, 3])
    for damaged in (block[:-1], MAGIC):
        with pytest.raises(FieldError, match="row 0 of these has damaged arrays"):
            buffer.decode(damaged)
    with pytest.raises(FieldError, match="damaged"):
        buffer.decode(b"ab")


def test_rows_that_would_not_shrink_are_kept_as_they_are(buffer_url):
    rng = np.random.default_rng(5)
    with ReplayBuffer(
        buffer_url, name="noise", fields={"x": ("uint8", (40,))}, compression="zstd"
    ) as buffer:
        noise = rng.integers(0, 256, (3, 40)).astype(np.uint8)
        noise[1, :4] = list(MAGIC)  # by chance
        buffer.extend({"x": noise[:1]})
        buffer.extend({"x": noise[1:]})
        np.testing.assert_array_equal(all_of(buffer, 3).x[::-1], noise)
        stored = blocks(buffer_url, "noise")
        assert stored[0] == (noise[0].tobytes(), 0)
        assert len(stored[1][0]) > 80
        assert stored[2] == (stored[1][0], 1)


def test_a_buffer_opened_again_knows_how_it_is_compressed(buffer_url, buffer):
    buffer.extend(make_columns())
    for again in (
        ReplayBuffer(buffer_url),
        ReplayBuffer(buffer_url, compression="zstd"),
        pickle.loads(pickle.dumps(buffer)),
    ):
        assert again.compression == "zstd"
        check_batch(all_of(again))
    (from_child,) = run_at_once([(all_of, buffer)])
    check_batch(from_child)


def test_another_compression_than_the_stored_one_is_refused(buffer_url):
    ReplayBuffer(buffer_url, name="plain")
    with pytest.raises(BufferConfigError, match="'plain' is stored with compression=none, and was"):
        ReplayBuffer(buffer_url, name="plain", compression="zstd")
    for unknown in ("gzip", "", True, 0):
        with pytest.raises(BufferConfigError, match="compression is one of zstd, or omitted, got"):
            ReplayBuffer(buffer_url, name="new", compression=unknown)
    assert ReplayBuffer.list(buffer_url) == ["plain"]


def test_rows_that_are_sent_again_are_duplicates_however_they_were_compressed(buffer_url, buffer):
    columns = {**make_columns(), "id": [f"r{i}" for i in range(N)]}
    states = {"state": [np.zeros(100)] * N}
    assert buffer.extend({**columns, **states}).inserted == N
    assert buffer.extend({**columns, **states}).duplicates == N
    # As another version of the package may have: the same content in other bytes.
    import zstandard

    before = blocks(buffer_url)[0]
    raw = zstandard.ZstdDecompressor().decompress(before[0])
    other = zstandard.ZstdCompressor(level=19).compress(raw)
    change_block(buffer_url, 1, lambda _: other)
    assert blocks(buffer_url)[0] == (other, 0) != before
    assert buffer.extend({**columns, **states}).duplicates == N
    assert buffer.extend({**columns, "frame": columns["frame"] + 1, **states}).conflicts == N
    assert buffer.extend({**columns, "state": [np.ones(100)] * N}).conflicts == N


@pytest.mark.parametrize("damage", [lambda block: block[:-3], lambda block: block[:9] + block[12:]])
def test_a_damaged_step_is_named(buffer_url, buffer, damage):
    buffer.extend(make_columns())
    change_block(buffer_url, 4, damage)
    with pytest.raises(FieldError, match=r"the row with seq [4-6] has damaged arrays"):
        all_of(buffer)


@pytest.mark.parametrize("damage", [lambda blob: blob[:-3], lambda blob: blob[:9] + blob[12:]])
def test_a_step_with_damaged_arrays_in_its_payload_is_named(buffer_url, buffer, damage):
    buffer.extend({**make_columns(), "state": [np.zeros(100)] * N})
    first, stored, n_steps = chunk_of(buffer_url, 3, "payload_arrays, n_steps")
    size = len(stored) // n_steps
    parts = [bytes(stored)[n * size : (n + 1) * size] for n in range(n_steps)]
    assert all(part.startswith(MAGIC) for part in parts)
    parts[3 - first] = damage(parts[3 - first])
    change = f"UPDATE chunk_data SET payload_arrays = :arrays WHERE first_seq = {first}"
    run(buffer_url, change, arrays=b"".join(parts))
    check_batch(all_of(buffer))
    with pytest.raises(FieldError, match="the row with seq 3 has damaged arrays"):
        list(buffer)


def test_without_the_package_a_compressed_buffer_is_not_opened(buffer_url, buffer, monkeypatch):
    ReplayBuffer(buffer_url, name="plain").add(state=np.zeros(3))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for open_it in (
        lambda: ReplayBuffer(buffer_url),
        lambda: ReplayBuffer(buffer_url, name="new", compression="zstd"),
    ):
        with pytest.raises(MissingExtraError, match="pip install zstandard"):
            open_it()
    assert ReplayBuffer.list(buffer_url) == ["default", "plain"]
    assert len(ReplayBuffer(buffer_url, name="plain").sample(1)) == 1
