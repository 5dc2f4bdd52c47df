"""What a ring of priorities keeps next to its counters."""

from dataclasses import dataclass, replace

from sqlbuffer.rate_limits import FlowCounts, RatioWindow
from sqlbuffer.storage.extensions.ring_buffer import (
    RingCounts,
)


@dataclass(frozen=True)
class CreditLedger:
    """What a ring keeps in addition to its counters.

    Attributes:
        max_priority: The priority of items that are pushed without one: the largest that was set.
        beta: Exponent of the importance weights; None: it is as the opener's config says.
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
        """Return what the counters of a ring have along."""
        return cls() if counts.state is None else cls(**counts.state)

    def decayed(self, limit: RatioWindow, now: float) -> "CreditLedger":
        """Return it with what is left of its two counts at a moment."""
        left, at = limit.decayed_by_second(self.flow, self.decayed_at, now)
        return replace(self, pushed=left.inserted, sampled=left.sampled, decayed_at=at)

    @property
    def flow(self) -> FlowCounts:
        """The counts that a limit reads."""
        return FlowCounts(self.pushed, self.sampled)
