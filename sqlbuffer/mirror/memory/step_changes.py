"""The changes of a buffer's steps, in addition to new steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlbuffer.storage.following.buffer_state import EpisodeState


@dataclass(frozen=True)
class StepChanges:
    """Changes of a buffer's steps.

    Attributes:
        deleted: Steps that were deleted.
        rewards: (seq, reward) of steps that were given a reward late.
        quarantined: Steps that are in quarantine.
        released: Steps that no longer are.
        matching: Steps that are drawn, where others are not.
        unmatched: Steps that no longer are.
        episodes: Episodes as they are now.
        sessions: (number, id) of sessions that were not known yet.
        limits: The oldest model version that may be sampled, and the number of the only session;
            None: any.
    """

    deleted: Sequence[int] = ()
    rewards: Sequence[tuple[int, float]] = ()
    quarantined: Sequence[int] = ()
    released: Sequence[int] = ()
    matching: Sequence[int] = ()
    unmatched: Sequence[int] = ()
    episodes: Sequence[EpisodeState] = ()
    sessions: Sequence[tuple[int, str]] = ()
    limits: tuple[int | None, int | None] = (None, None)
