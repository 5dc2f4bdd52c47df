"""The result of a copy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CopyReport:
    """Result of a copy.

    The steps are those that the source held when the copy began. Their labels, priorities, uses and
    reasons of quarantine are those at the time at which each batch of steps was read; later changes
    are not in the copy. Leases are not copied.

    Attributes:
        source: Name and database of the buffer that was copied, without a password.
        target: Name and database of the copy.
        low_seq: The copy has steps with `low_seq < seq <= high_seq`.
        high_seq: See `low_seq`.
        n_steps: Number of steps in the copy.
        n_copied: Number of steps that this call copied; fewer if an earlier call was interrupted.
        was_finished: True if an earlier call has completed the copy, and this one did nothing.
        seconds: Duration of this call.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> source, target = ReplayBuffer("sqlite://", "a"), ReplayBuffer("sqlite://", "b")
        >>> source.add(task_id="t1", state={"x": 1}, reward=1.0).inserted
        1
        >>> report = source.copy_to(target)
        >>> report.n_steps, report.high_seq
        (1, 1)
    """

    source: str
    target: str
    low_seq: int
    high_seq: int
    n_steps: int
    n_copied: int
    was_finished: bool
    seconds: float

    def __str__(self) -> str:
        steps = f"{self.n_steps:,} steps with {self.low_seq:,} < seq <= {self.high_seq:,}"
        if self.was_finished:
            return (
                f"{self.target} has the copy of {self.source} already: {steps}; for later steps, "
                f"copy into another buffer"
            )
        rate = f"{self.n_copied / max(self.seconds, 1e-9):,.0f} steps/s"
        earlier = self.n_steps - self.n_copied
        before = f", {earlier:,} of them earlier" if earlier else ""
        return (
            f"copied {self.source} to {self.target}: {steps}{before}, in {self.seconds:.1f} s "
            f"({rate}); labels, priorities, uses and quarantine are those of the time at which "
            f"each step was read"
        )
