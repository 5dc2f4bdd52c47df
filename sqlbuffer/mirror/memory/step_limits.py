"""The limits on sampling of steps in memory: their versions, sessions and quarantine."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import NONE
from sqlbuffer.storage.following.buffer_state import ChunkRow

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NO_VERSION = np.iinfo(np.int64).max
# Version, whether there is one, session, quarantine, and whether it is wanted.
LIMIT_BYTES = 8 + 1 + 4 + 1 + 1


class StepLimits:
    """The model version, the session and the quarantine of each step.

    Args:
        selects: Only steps that are marked as matching are drawn.

    Attributes:
        version: The model version of each step, int64.
        has_version: Whether it has one.
        session: Number of its session, -1 if it has none, int32.
        session_keys: The user's id of each session, by number.
        is_quarantined: Whether it is in quarantine.
        is_outside: Whether it is kept only for those around it, and not drawn.
        selects: Whether there are such steps.
        oldest: The oldest model version that may be sampled; None: any.
        only: The number of the only session that may be; None: any.
    """

    version: NDArray[np.int64]
    has_version: Flags
    session: NDArray[np.int32]
    is_quarantined: Flags
    is_outside: Flags

    def __init__(self, selects: bool = False) -> None:
        self.selects = selects
        self.session_keys: dict[int, str] = {}
        self.oldest: int | None = None
        self.only: int | None = None

    def use(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep what each step has in these arrays; see `slot_shapes`."""
        self.version, self.has_version = arrays["version"], arrays["has_version"]
        self.session, self.is_quarantined = arrays["session"], arrays["is_quarantined"]
        self.is_outside = arrays["is_outside"]

    def stage(self, chunks: Sequence[ChunkRow], at: Any, counts: Integers) -> None:
        """Note what new steps have.

        Args:
            chunks: Their chunks.
            at: Their slots.
            counts: Number of each.
        """
        versions = [_NO_VERSION if c.model_version is None else c.model_version for c in chunks]
        self.version[at] = np.repeat(versions, counts)
        self.has_version[at] = np.repeat([c.model_version is not None for c in chunks], counts)
        numbers = [NONE if c.session_id is None else c.session_id for c in chunks]
        self.session[at] = np.repeat(numbers, counts)
        self.is_quarantined[at], self.is_outside[at] = False, self.selects

    def name_sessions(self, keys: Sequence[tuple[int, str]]) -> None:
        """Take the users' ids of sessions, by number."""
        self.session_keys.update(keys)

    def are_barred(self, slots: Integers) -> Flags:
        """Return which steps may not be sampled."""
        found: Flags = self.is_quarantined[slots]
        if self.oldest is not None:
            found = found | (self.version[slots] < self.oldest)
        if self.only is not None:
            own = self.session[slots]
            found = found | ((own != self.only) & (own != NONE))
        return found
