"""Fragments: one experience whose payload is nested arrays."""

from typing import Any

import numpy as np

from sqlbuffer import DataRow, Experience, ExpMeta
from tests.support.sql import run, scalar
from tests.support.storage_hooks import PART_BYTES

# What `make_fragment` has beside its image.
SMALL_BYTES = 5 * 8 + 5


def make_fragment(number: int = 0, size: int = PART_BYTES + 1, **meta: Any) -> DataRow:
    """Return a row of one fragment, whose image has `size` bytes of noise."""
    image = np.random.default_rng(number).integers(0, 256, size, np.uint8)
    steps = np.arange(number, number + 5)
    state = {"obs": {"image": image, "steps": steps}, "number": number}
    meta = {"task_id": f"t{number}", "task_name": None, "agent_id": "a", "step": number, **meta}
    id_ = meta.pop("id", f"f{number}")
    return DataRow(
        ExpMeta(execute_time=float(number), **meta),
        Experience(state, [{"done": steps > number + 3}, None], float(number)),
        id=id_,
    )


def parts_of(url: str) -> dict[int, int]:
    """Return how many parts each row has that has any."""
    return dict(run(url, "SELECT seq, count(*) FROM payload_parts GROUP BY seq ORDER BY seq"))


def lost_parts(url: str) -> int:
    """Return how many parts belong to no row, or are not all that their row should have."""
    n: int = scalar(
        url,
        "SELECT count(*) FROM payload_parts p LEFT JOIN experiences e ON e.buffer_id = p.buffer_id "
        "AND e.seq = p.seq WHERE e.payload_bytes IS NULL",
    )
    return n
