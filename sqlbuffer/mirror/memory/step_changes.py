"""The changes of a buffer's steps, in addition to new steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlbuffer.storage.following.buffer_state import EpisodeState, Late


@dataclass(frozen=True)
class StepChanges:
    """Changes of a buffer's steps.

    Attributes:
        deleted: Steps that were deleted.
        labels: Steps that were labelled.
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
    labels: Sequence[Late] = ()
    quarantined: Sequence[int] = ()
    released: Sequence[int] = ()
    matching: Sequence[int] = ()
    unmatched: Sequence[int] = ()
    episodes: Sequence[EpisodeState] = ()
    sessions: Sequence[tuple[int, str]] = ()
    limits: tuple[int | None, int | None] = (None, None)
