"""The changes of a buffer's steps, in addition to new steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlbuffer.storage.following.buffer_state import EpisodeState
from sqlbuffer.storage.marks import Marks


@dataclass(frozen=True)
class StepChanges:
    """Changes of a buffer's steps.

    Attributes:
        marks: What became of steps after they were stored, as it is now.
        released: Steps that no longer are.
        matching: Steps that are drawn, where others are not.
        unmatched: Steps that no longer are.
        episodes: Episodes as they are now.
        sessions: (number, id) of sessions that were not known yet.
        limits: The oldest model version that may be sampled, and the number of the only session;
            None: any.
    """

    marks: Marks = field(default_factory=Marks)
    released: Sequence[int] = ()
    matching: Sequence[int] = ()
    unmatched: Sequence[int] = ()
    episodes: Sequence[EpisodeState] = ()
    sessions: Sequence[tuple[int, str]] = ()
    limits: tuple[int | None, int | None] = (None, None)
