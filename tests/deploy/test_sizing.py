"""The sizes of docs/how-to/size-a-server.md are those that databases have."""

import re

import numpy as np
import psycopg
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.docs.pages import text_of
from tests.support.sql import scalar

PAGE = "docs/how-to/size-a-server.md"
BATCH, BATCHES = 1_000, 12
TEXT = " ".join(map(str, np.random.default_rng(0).integers(0, 10_000, 500)))


def vectors(rng):
    return {
        "obs": rng.normal(size=(BATCH, 17)).astype("f4"),
        "action": rng.normal(size=(BATCH, 6)).astype("f4"),
        "next_obs": rng.normal(size=(BATCH, 17)).astype("f4"),
    }


def frames(rng):
    """Return a square on stripes, somewhere else in each frame."""
    made = np.broadcast_to(rng.integers(0, 4, (84, 1)) * 40, (BATCH, 84, 84)).astype("u1")
    for frame, (x, y) in zip(made, rng.integers(0, 80, (BATCH, 2)), strict=True):
        frame[x : x + 4, y : y + 4] = rng.integers(100, 255, (4, 4))
    return {"frame": made, "action": rng.integers(0, 4, BATCH)}


VECTORS = {name: ("float32", (n,)) for name, n in (("obs", 17), ("action", 6), ("next_obs", 17))}
FRAME = {"frame": ("uint8", (84, 84)), "action": "int64"}
SHAPES = {
    "vectors": (vectors, VECTORS, None),
    "one frame": (frames, FRAME, None),
    "the same frame": (frames, FRAME, "zstd"),
    "one turn": (None, None, None),
}


def turns(number):
    return [
        DataRow(
            ExpMeta(f"t{number}-{step // 20}", None, "a", step % 20, 1.0),
            Experience(
                state={"turn": step},
                actions=["x"],
                reward_t=0.0,
                messages=[{"role": "assistant", "content": TEXT[step % 300 :][:1_900]}],
            ),
        )
        for step in range(BATCH)
    ]


def fill(url, shape, start, stop):
    make, fields, compression = SHAPES[shape]
    rng = np.random.default_rng(start)
    options = {"fields": fields} if fields else {}
    if compression:
        options["compression"] = compression
    with ReplayBuffer(url, "sizes", **options) as buffer:
        for number in range(start, stop):
            if make is None:
                buffer.store_batch(turns(number))
            else:
                columns = {**make(rng), "reward": np.ones(BATCH, "f4")}
                buffer.extend(columns, task_id=f"t{number}")


def size_of(url):
    if url.startswith("sqlite"):
        return scalar(url, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    with psycopg.connect(url) as connection:
        query = "SELECT pg_database_size(current_database())"
        return connection.execute(query).fetchone()[0]


def documented(shape):
    """Return bytes a step on PostgreSQL and on SQLite."""
    text = text_of(PAGE)
    (row,) = re.findall(rf"^\| {shape}.*$", text, re.MULTILINE)
    on_sqlite = re.search(r"SQLite needs about the same \(([^)]*) bytes\)", " ".join(text.split()))
    numbers = on_sqlite[1].replace(" and ", ", ").split(", ")
    places = [int(number.replace(",", "")) for number in numbers]
    return {
        "postgresql": int(row.split("|")[3].strip().replace(",", "")),
        "sqlite": places[list(SHAPES).index(shape)],
    }


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_step_takes_the_bytes_of_the_page(make_database_url, kind, shape):
    if SHAPES[shape][2] == "zstd":
        pytest.importorskip("zstandard", reason="allowed: zstandard is not installed")
    url = make_database_url(kind, schema=True)
    fill(url, shape, 0, 2)  # what is there without rows, and the first pages of each table
    before = size_of(url)
    fill(url, shape, 2, BATCHES)
    taken = (size_of(url) - before) / (BATCH * (BATCHES - 2))
    assert taken == pytest.approx(documented(shape)[kind], rel=0.2)


def test_the_page_measures_a_step_of_the_reader(read):
    page = read(PAGE)
    assert page.names["N"] == 10_000
