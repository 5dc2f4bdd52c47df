"""Of steps of 4 KB and more, n-step transitions read the first and the last only."""

import json

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import FieldError
from tests.support.sql import is_sqlite, run

SIZE = 5_000


@pytest.fixture(params=["plain", "zstd", "of varying length"])
def buffer(request, schema_url):
    size = -1 if "length" in request.param else SIZE
    fields = {"obs": ("uint8", (size,)), "action": "int64"}
    compression = "zstd" if request.param == "zstd" else None
    with ReplayBuffer(
        schema_url, "b", create=True, fields=fields, compression=compression,
        observation_fields=["obs"],
    ) as buffer:  # fmt: skip
        yield buffer


def frames(n, first=0):
    return np.repeat(np.arange(first, first + n, dtype=np.uint8)[:, None], SIZE, axis=1)


def store(buffer, n, **more):
    buffer.store_episode({"obs": frames(n), "action": np.arange(n), "reward": np.ones(n)}, **more)


def test_the_observations_are_those_of_the_first_and_the_last_step(buffer):
    store(buffer, 8, final={"obs": frames(1, 100)[0]})
    buffer.annotate([3], action=70)
    (batch,) = buffer.loader("n_step", 8, n_step=3, gamma=1.0, epochs=1, shuffle=False)
    assert batch.obs[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert batch.next_obs[:, 0].tolist() == [3, 4, 5, 6, 7, 100, 100, 100]
    assert batch.action.tolist() == [0, 1, 70, 3, 4, 5, 6, 7]
    assert batch.reward.tolist() == [3, 3, 3, 3, 3, 3, 2, 1]


def test_no_step_is_read_for_final_observations(buffer):
    store(buffer, 2, final={"obs": frames(1, 100)[0]})
    batch = buffer.sample_transitions(4, n_step=5)
    assert set(batch.next_obs[:, 0].tolist()) == {100}


@pytest.mark.parametrize("size", [20_000, -1])
def test_a_step_in_the_middle_is_not_read(schema_url, size):
    fields = {"obs": ("uint8", (size,)), "action": "int64"}
    # Compressed it has half the size.
    noise = np.random.default_rng(0).integers(0, 16, (4, 20_000), np.uint8)
    with ReplayBuffer(
        schema_url, "b", create=True, fields=fields, compression="zstd", observation_fields=["obs"]
    ) as buffer:
        buffer.store_episode({"obs": noise, "action": np.arange(4)}, final={"obs": noise[0]})
        chunks = "SELECT first_seq, offsets FROM chunk_data WHERE first_seq <= 2 ORDER BY 1 DESC"
        first_seq, offsets = run(schema_url, chunks)[0]
        offsets = json.loads(offsets) if isinstance(offsets, str) else offsets
        start, end = offsets[2 - first_seq], offsets[3 - first_seq]
        frame, n = b"\x28\xb5\x2f\xfd".ljust(end - start, b"\0"), end - start
        damaged = (
            f"CAST(substr(records, 1, {start}) || x'{frame.hex()}' || substr(records, {end + 1}) "
            "AS BLOB)"
            if is_sqlite(schema_url)
            else f"overlay(records placing '\\x{frame.hex()}'::bytea from {start + 1} for {n})"
        )
        run(schema_url, f"UPDATE chunk_data SET records = {damaged} WHERE first_seq = {first_seq}")

        def of_step(number):
            first = QueryBuilder().eq("step", number).build()
            return buffer.sample_transitions(2, n_step=3, condition=first)

        assert (of_step(0).next_obs == noise[3]).all()
        with pytest.raises(FieldError, match="seq 2"):
            of_step(1)
