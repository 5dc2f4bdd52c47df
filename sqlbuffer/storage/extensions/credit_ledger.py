"""Values that a ring of priorities stores next to its counters."""

from dataclasses import dataclass, replace

from sqlbuffer.rate_limits import FlowCounts, RatioWindow
from sqlbuffer.storage.extensions.ring_buffer import (
    RingCounts,
)


@dataclass(frozen=True)
class CreditLedger:
    """Values that a ring stores in addition to its counters.

    Attributes:
        max_priority: Priority of items pushed without one: the largest that was set.
        beta: Exponent of the importance weights; None for the one in the opener's config.
        pushed: Items pushed, decayed.
        sampled: Items sampled, decayed.
        decayed_at: Unix time up to which these two are decayed.
    """

    max_priority: float = 1.0
    beta: float | None = None
    pushed: float = 0.0
    sampled: float = 0.0
    decayed_at: float = 0.0

    @classmethod
    def of(cls, counts: RingCounts) -> "CreditLedger":
        """Return the ledger that is stored with the counters of a ring."""
        return cls() if counts.state is None else cls(**counts.state)

    def decayed(self, limit: RatioWindow, now: float) -> "CreditLedger":
        """Return the ledger with its two counts decayed to a moment."""
        left, at = limit.decayed_by_second(self.flow, self.decayed_at, now)
        return replace(self, pushed=left.inserted, sampled=left.sampled, decayed_at=at)

    @property
    def flow(self) -> FlowCounts:
        """The counts that a limit reads."""
        return FlowCounts(self.pushed, self.sampled)
