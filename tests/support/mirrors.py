"""What a mirror draws, next to what the buffer itself draws of the same state."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sqlbuffer import Batch, PrioritizedSampler, ReplayBuffer
from sqlbuffer.mirror.buffer_mirror import Mirror

Row = dict[str, Any]
# Copies the first chunk of a buffer, as a writer whose transaction takes long.
LATE_CHUNK = """
WITH own AS (SELECT sqlbuffer_reserve_v1(1, 10) AS first_seq),
data AS (
    INSERT INTO chunk_data SELECT d.* FROM own CROSS JOIN LATERAL (
        SELECT (jsonb_populate_record(c, jsonb_build_object(
            'first_seq', own.first_seq, 'task_id', 'late', 'agent_id', 'a'))).*
        FROM chunk_data c WHERE first_seq = 1) d
)
INSERT INTO chunks (buffer_id, first_seq, n_steps, id, task_id, agent_id, step)
SELECT 1, own.first_seq, 10, gen_random_uuid(), 'late', 'a', 0 FROM own
"""


def rows_of(batch: Batch) -> dict[int, Row]:
    """Return all that a batch says of each row, by seq."""
    columns = {**batch, **{f"info.{name}": values for name, values in batch.info.items()}}
    return {
        seq: {name: as_plain(values[i]) for name, values in columns.items()}
        for i, seq in enumerate(batch.info["seq"].tolist())
    }


def as_plain(value: Any) -> Any:
    # NaN is not equal to itself; its text is.
    return repr(value.tolist()) if isinstance(value, (np.ndarray, np.generic)) else value


def every_row(buffer: ReplayBuffer, mode: str, **options: Any) -> dict[int, Row]:
    """Return what the buffer itself makes of each step that can be drawn."""
    found: dict[int, Row] = {}
    options = with_mode(mode, options)
    for batch in buffer.loader(mode, 64, shuffle=False, epochs=1, **options):
        found |= rows_of(batch)
    return found


def drawn_rows(mirror: Mirror, mode: str, n: int, **options: Any) -> dict[int, Row]:
    """Return what a mirror makes of n steps that it draws."""
    draw: Any = mirror.sample_arrays if mode == "step" else mirror.sample_transitions
    return rows_of(draw(n, **with_mode(mode, options)))


def with_mode(mode: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options; transitions are drawn next to steps that have no episode."""
    return {**options, "skip_single": True} if mode in ("transition", "n_step") else options


def assert_same_draws(buffer: ReplayBuffer, mirror: Mirror, mode: str, **options: Any) -> None:
    """Assert that a mirror draws the same steps as the buffer, with the same values.

    So many are drawn that one is left out less than once in a million times.
    """
    expected = every_row(buffer, mode, **options)
    assert len(mirror) == len(buffer)
    if expected:
        n = len(expected) * (16 + len(expected).bit_length())
        assert drawn_rows(mirror, mode, n, **options) == expected


def assert_same_batches(expected: Iterable[Batch], found: Iterable[Batch]) -> None:
    """Assert that batches have the same arrays, of the same dtypes and in the same order."""
    for theirs, own in zip(expected, found, strict=True):
        for expected_arrays, arrays in ((theirs, own), (theirs.info, own.info)):
            assert list(arrays) == list(expected_arrays)
            for name, values in expected_arrays.items():
                assert (arrays[name].dtype, arrays[name].shape) == (values.dtype, values.shape)
                np.testing.assert_array_equal(arrays[name], values, err_msg=name)


def assert_same_priorities(buffer: ReplayBuffer, mirror: Mirror) -> None:
    """Assert that all steps that can be drawn have the priorities that the buffer says."""
    steps = every_row(buffer, "step")
    sampler = PrioritizedSampler(replace=False)
    expected, found = (
        dict(zip(batch.seq.tolist(), batch.priorities.tolist(), strict=True))
        for batch in (source.sample_arrays(len(steps), sampler=sampler)
                      for source in (buffer, mirror))
    )  # fmt: skip
    assert found == expected
