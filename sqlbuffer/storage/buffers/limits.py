"""The limits that a buffer is opened with."""

from dataclasses import dataclass
from typing import Any

from sqlbuffer.rate_limits import Policy, policy_to_json
from sqlbuffer.storage.schema.metadata import json_literal

# Measured: 2,000 blocks are read in about 2 ms, and a block of 512 rows whose weights
# are like errors accepts two draws in five. A buffer without a limit is taken for one of four
# million, since its blocks keep their size: with blocks of 2,048 a draw at one million rows takes
# 2 ms less than with 512 for weights like errors, 4 ms of 28 more where a few are far above the
# others; but at ten million rows it reads 5,000 blocks instead of 20,000, at 1.3 us each on SQLite.
LEAST_BLOCK, MOST_BLOCK, BLOCKS_BITS = 256, 65_536, 11
USUAL_ROWS = 2**22


@dataclass(frozen=True)
class Limits:
    """The limits of a buffer. None is the stored value, or the default of a new buffer.

    Attributes:
        max_capacity: Rows.
        evict_by: The unit of eviction: `row`, `task` or `episode`.
        max_episodes: Episodes; they are evicted whole.
        keep_episodes: Rows of `episodes` whose steps have left.
        open_timeout_s: How long an open episode may be without a write before it is abandoned.
        priorities: Whether rows have priorities.
        max_use: Samples of a row.
        max_staleness: How much older than the clock a sampled row may be.
        min_size: Rows that the buffer needs before any is sampled.
        track_samples: Whether batches are logged.
        keep_samples_s: How long the log is kept.
        rate_limiter: What limits inserts and samples.
        leases: Whether rows are handed out by leases.
        current_session_only: Whether rows of other sessions are not sampled.
        keep_expired: Whether rows stay that can never be sampled again.
        max_row_bytes: How large the payload of a row may be.
    """

    max_capacity: int | None = None
    evict_by: str | None = None
    max_episodes: int | None = None
    keep_episodes: int | None = None
    open_timeout_s: float | None = None
    priorities: bool | None = None
    max_use: int | None = None
    max_staleness: int | None = None
    min_size: int | None = None
    track_samples: bool | None = None
    keep_samples_s: float | None = None
    rate_limiter: Policy | None = None
    leases: bool | None = None
    current_session_only: bool | None = None
    keep_expired: bool | None = None
    max_row_bytes: int | None = None

    def columns(self) -> dict[str, Any]:
        """Return the values of a new row of `buffers`."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        unit = given.pop("evict_by", "row" if self.max_episodes is None else "episode")
        has_priorities = given.pop("priorities", False)
        has_queue = given.pop("leases", False)
        if (policy := given.pop("rate_limiter", None)) is not None:
            given["flow"] = json_literal(
                {**policy_to_json(policy), "inserted_before": 0, "sampled_before": 0}
            )
        return {
            **given,
            "evict_unit": unit,
            "has_priorities": has_priorities,
            # Where rows are leased, the queue counts their uses.
            "has_uses": self.max_use is not None and not has_queue,
            "has_queue": has_queue,
            "block_size": block_size(self.max_capacity),
        }


def block_size(max_capacity: int | None) -> int:
    """Return how many numbers a block of priorities has: few enough blocks to read all of them for
    each batch.
    """
    bits = ((max_capacity or USUAL_ROWS) - 1).bit_length() - BLOCKS_BITS
    return min(max(LEAST_BLOCK, 1 << max(bits, 0)), MOST_BLOCK)
