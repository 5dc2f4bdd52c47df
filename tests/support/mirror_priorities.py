"""What a mirror and its buffer say of priorities."""

from typing import Any

import numpy as np
import pytest

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from sqlbuffer.mirror.buffer_mirror import Mirror
from tests.support.episodes import FIELDS
from tests.support.sql import run

ALPHA = 0.7
# What a batch that was drawn by priority says of each step.
STATED = ("weights", "probabilities", "priorities")


def columns(n: int, first: int = 0) -> dict[str, Any]:
    t = np.arange(first, first + n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


def opened(url: Any, **settings: Any) -> ReplayBuffer:
    """Return a buffer with priorities."""
    given: dict[str, Any] = {
        "fields": FIELDS, "priorities": True, "alpha": ALPHA, "max_capacity": 300, **settings
    }  # fmt: skip
    return ReplayBuffer(url, **given)


def whole(source: ReplayBuffer | Mirror, n: int, **options: Any) -> dict[int, dict[str, Any]]:
    """Return all n steps that can be drawn by priority, by seq."""
    sampler = PrioritizedSampler(replace=False, **options)
    batch = source.sample_arrays(n, sampler=sampler)
    return {int(seq): {name: batch[name][i] for name in STATED} for i, seq in enumerate(batch.seq)}


def priorities_of(source: ReplayBuffer | Mirror, n: int) -> dict[int, float]:
    """Return the priorities of all n steps that can be drawn by priority, by seq."""
    return {seq: float(row["priorities"]) for seq, row in whole(source, n).items()}


def weights_of(url: str) -> dict[int, float]:
    """Return the weights that the database states, by seq; of those that are not 0."""
    found = run(url, "SELECT seq, priority FROM v_priorities WHERE priority > 0")
    return {int(seq): float(priority) ** ALPHA for seq, priority in found}


def assert_same(mirror: Mirror, buffer: ReplayBuffer, n: int, **options: Any) -> None:
    """Assert that both state the same of all n steps that can be drawn."""
    found, expected = whole(mirror, n, **options), whole(buffer, n, **options)
    assert sorted(found) == sorted(expected)
    for seq, row in expected.items():
        assert found[seq]["priorities"] == row["priorities"]
        assert found[seq]["weights"] == pytest.approx(row["weights"], rel=1e-6)
        assert found[seq]["probabilities"] == pytest.approx(row["probabilities"], rel=1e-9)
