"""Values of the steps of several chunks, as the tables have them, and a chunk after the other."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.encoding.chunks import ChunkColumns
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields import parse_specs
from sqlbuffer.storage.chunks.numbered_chunks import flag_columns, json_column, reward_column

LAYOUT = Layout(parse_specs({"x": "int64"}))


def chunks(rng, n_chunks):
    sizes = rng.integers(1, 6, n_chunks)
    tasks = [f"task-{i}" for i, n in enumerate(sizes) for _ in range(n)]
    return pack_columns(LAYOUT, {"x": np.arange(len(tasks)), "task_id": tasks}).chunks


def random_flags(rng, n, kind):
    flags = rng.random(n) < (0.0, 0.3)[int(rng.integers(2))]
    if kind == "some":
        return [None if rng.random() < 0.3 else bool(flag) for flag in flags]
    return None if kind == "none" else flags


def ends_of(terminated, truncated, n):
    flags = [[None] * n if values is None else list(values) for values in (terminated, truncated)]
    bits = [bool(end) + 2 * bool(cut) for end, cut in zip(*flags, strict=True)]
    if any(bits):
        return bytes(bits)
    return None if all(flag is None for column in flags for flag in column) else b""


@pytest.mark.parametrize("seed", range(40))
def test_flags_of_several_chunks_are_those_of_each(seed):
    rng = np.random.default_rng(seed)
    kinds = [("all",), ("none",), ("all", "none", "some")]
    of_terminated, of_truncated = (kinds[int(rng.integers(3))] for _ in range(2))
    packed = [
        replace(
            chunk,
            terminated=random_flags(rng, chunk.n_steps, str(rng.choice(of_terminated))),
            truncated=random_flags(rng, chunk.n_steps, str(rng.choice(of_truncated))),
        )
        for chunk in chunks(rng, 8)
    ]
    stored = flag_columns(ChunkColumns.of(packed))
    for name in ("terminated", "truncated"):
        texts = json_column(getattr(stored, name))
        for text, chunk in zip(texts, packed, strict=True):
            flags = getattr(chunk, name)
            if flags is None:
                assert text is None
            elif isinstance(flags, np.ndarray) and not flags.any():
                assert text == "[]"  # all are False
            else:
                assert json.loads(text) == list(flags)
    expected = [ends_of(chunk.terminated, chunk.truncated, chunk.n_steps) for chunk in packed]
    assert stored.ends == expected


@pytest.mark.parametrize("seed", range(20))
def test_numbers_of_several_chunks_are_those_of_each(seed):
    rng = np.random.default_rng(seed)
    odd = [1.0, -2.5, 1e-300, np.inf, -np.inf][: 3 + 2 * (seed % 2)]
    packed = [replace(chunk, reward=rng.choice(odd, chunk.n_steps)) for chunk in chunks(rng, 8)]
    rewards = [chunk.reward for chunk in packed]
    if seed % 3 == 2:
        rewards[3] = None
        packed[3] = replace(packed[3], reward=None)
    for text, values in zip(json_column(rewards), rewards, strict=True):
        loaded = None if text is None else [float(number) for number in json.loads(text)]
        assert loaded == (None if values is None else values.tolist())
    for raw, values in zip(reward_column(ChunkColumns.of(packed)), rewards, strict=True):
        assert raw == (None if values is None else values.astype(">f8").tobytes())


@pytest.mark.parametrize("ends", [np.array, list])
def test_any_byte_but_0_is_a_flag(database_url, ends):
    """A view of other bytes as bool is an array of bool as well."""
    flags = np.array([0, 1, 0, 255, 2], np.uint8).view(bool)
    columns = {
        "x": np.arange(5), "reward": np.zeros(5), "terminated": flags, "truncated": flags[::-1]
    }  # fmt: skip
    with ReplayBuffer(database_url, create=True, fields={"x": "int64"}) as buffer:
        if ends is list:
            columns["truncated"] = [False] * 5  # checked one by one
        buffer.extend(columns)
        steps = [row.exp_data for row in buffer.get_all()]
        stored = [(bool(step.terminated), bool(step.truncated)) for step in steps]
    wanted = [False, True, False, True, True]
    truncated = [False] * 5 if ends is list else wanted[::-1]
    assert stored == list(zip(wanted, truncated, strict=True))
