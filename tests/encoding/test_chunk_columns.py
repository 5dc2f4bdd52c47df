"""Chunks as columns: the same chunks as objects of them, one by one."""

from dataclasses import fields

import numpy as np
import pytest

from sqlbuffer.encoding.chunks import ChunkColumns, PackedChunk
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields import parse_specs

LAYOUT = Layout(parse_specs({"x": "int64"}))
NAMES = [field.name for field in fields(PackedChunk)]


def drawn(rng: np.random.Generator) -> ChunkColumns:
    """Return chunks with some of what steps can have."""
    n = int(rng.integers(1, 60))
    columns = {"x": np.arange(n), "task_id": [f"task-{rng.integers(4)}" for _ in range(n)]}
    more = {
        "reward": rng.standard_normal(n),
        "terminated": rng.random(n) < 0.2,
        "step": rng.integers(0, 9, n),
        "priority": rng.random(n),
        "id": [f"id-{i}" for i in range(n)],
        "state": [{"x": i} if i % 3 else None for i in range(n)],
        "model_version": rng.integers(0, 2, n).tolist(),
    }
    return pack_columns(
        LAYOUT, columns | {name: more[name] for name in more if rng.random() < 0.5}
    ).chunks


def values(chunk: PackedChunk) -> list[object]:
    held = (getattr(chunk, name) for name in NAMES)
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in held]


@pytest.mark.parametrize("seed", range(20))
def test_columns_and_objects_have_the_same_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = drawn(rng)
    chunks = list(columns)
    assert len(chunks) == len(columns)
    again = ChunkColumns.of(chunks)
    for name in NAMES:
        held = [getattr(chunk, name) for chunk in chunks]
        for one in (columns, again):
            assert all(a is b for a, b in zip(one.column(name), held, strict=True))
            assert one.has(name) == any(value is not None for value in held)
    places = slice(*sorted(rng.integers(0, len(chunks) + 1, 2).tolist()))
    assert list(map(values, columns[places])) == list(map(values, chunks[places]))
    assert columns[0] is chunks[0]


def test_replaced_columns_leave_the_chunks_as_they_were() -> None:
    columns = drawn(np.random.default_rng(0))
    ids = [chunk.id for chunk in columns]
    replaced = columns.replaced(id=["new"] * len(columns))
    assert [chunk.id for chunk in replaced] == ["new"] * len(columns)
    assert [chunk.id for chunk in columns] == ids


def test_a_function_of_the_chunks_is_called_once() -> None:
    columns, called = drawn(np.random.default_rng(0)), []

    def n_steps(chunks: ChunkColumns) -> int:
        called.append(chunks)
        return sum(chunks.column("n_steps"))

    assert columns.once(n_steps) == columns.once(n_steps) == sum(c.n_steps for c in columns)
    assert called == [columns]


def test_no_chunks_have_nothing() -> None:
    none = ChunkColumns.of([])
    assert not none
    assert list(none) == list(none.column("id")) == list(none[:5]) == []
    assert not none.has("task_id")
