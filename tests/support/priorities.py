"""Priorities written by plain SQL, and what a draw by them ought to be."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare
from sqlalchemy import text

from sqlbuffer import ReplayBuffer
from tests.support.sql import connected
from tests.support.storage_hooks import summarize_blocks

P_VALUE = 0.001


def filled(
    url: str, priorities: Sequence[float], *, block_size: int = 16, **settings: Any
) -> ReplayBuffer:
    """Return a buffer of rows with these priorities, the first of seq 1, in small blocks."""
    ReplayBuffer(url, fields={"x": "int64"}, priorities=True, **settings).close()
    with connected(url) as connection:
        connection.execute(text("UPDATE buffers SET block_size = :n"), {"n": block_size})
    buffer = ReplayBuffer(url)
    n = len(priorities)
    if n:
        buffer.extend({"x": np.arange(1, n + 1)})
    set_priorities(url, dict(enumerate(priorities, 1)))
    return buffer


def set_priorities(url: str, priorities: Mapping[int, float]) -> None:
    """Set priorities by seq; what is known of their blocks is forgotten."""
    with connected(url) as connection:
        ((number, size),) = connection.execute(text("SELECT id, block_size FROM buffers")).all()
        rows = [{"b": number, "s": seq, "p": float(p)} for seq, p in priorities.items()]
        if rows:
            connection.execute(
                text(
                    "INSERT INTO priorities (buffer_id, seq, priority) VALUES (:b, :s, :p) "
                    "ON CONFLICT (buffer_id, seq) DO UPDATE SET priority = excluded.priority"
                ),
                rows,
            )
            blocks = [{"b": number, "k": seq // size} for seq in priorities]
            connection.execute(
                text("DELETE FROM priority_blocks WHERE buffer_id = :b AND block = :k"), blocks
            )


def loosen(url: str, factor: float, every: int = 1) -> None:
    """Make the bounds of every so manieth block looser than need be."""
    with connected(url) as connection:
        connection.execute(
            text(
                "UPDATE priority_blocks SET max_priority = max_priority * :f, "
                "min_priority = min_priority / :f, max_is_upper_bound = true, "
                "min_is_lower_bound = true "
                "WHERE block % :n = 0"
            ),
            {"f": factor, "n": every},
        )


def summarize_all(buffer: ReplayBuffer, n: int = 10_000) -> int:
    """Summarize all blocks that can be."""
    return summarize_blocks(buffer, n)


def skewed(n: int, seed: int = 0) -> NDArray[np.float64]:
    """Return priorities from 1e-6 to 1e6, a tenth of them 0."""
    rng = np.random.default_rng(seed)
    found = 10.0 ** rng.uniform(-6, 6, n)
    found[rng.random(n) < 0.1] = 0.0
    return found


def assert_shares(drawn: Sequence[int], weights: Mapping[int, float]) -> None:
    """Test that keys were drawn by their weights, and nothing else; those that are expected fewer
    than 5 times are taken together.
    """
    keys, counts = np.unique(np.asarray(drawn), return_counts=True)
    observed_of = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    assert set(observed_of) <= {key for key, weight in weights.items() if weight > 0}
    total = sum(weights.values())
    observed, expected, rare = [], [], [0.0, 0.0]
    for key, weight in weights.items():
        wanted = weight / total * len(drawn)
        if wanted < 5:
            rare[0] += observed_of.get(key, 0)
            rare[1] += wanted
        else:
            observed.append(float(observed_of.get(key, 0)))
            expected.append(wanted)
    if rare[1] > 0:
        observed.append(rare[0])
        expected.append(rare[1])
    assert len(observed) > 1, "too few rows for a chi-square test"
    assert chisquare(observed, expected).pvalue > P_VALUE
