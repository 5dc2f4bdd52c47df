"""Keys of episodes and sessions in the target of a copy."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import CopyError
from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.holds.hold import Hold

# A copied step is free: the leases of the source are not copied.
_LEASES = ("lease_id", "leased_until")


class RowSource(Protocol):
    """Source of the rows that a target writes."""

    @property
    def dialect(self) -> str:
        """The kind of the database whose forms the rows have."""

    @property
    def hold(self) -> Hold | None:
        """Hold on the rows in their database."""


@dataclass(frozen=True)
class TargetKeys:
    """Keys of episodes and sessions in the target.

    Attributes:
        episodes: Keys in the source, in ascending order, and keys in the target; 0 for none.
        sessions: Keys in the target by keys in the source.
        is_complete: All episodes of the steps to be copied are among them.
    """

    episodes: tuple[NDArray[np.int64], NDArray[np.int64]]
    sessions: dict[int, int]
    is_complete: bool

    def renamed(self, rows: TableRows) -> TableRows:
        """Return rows with the target's keys of their episodes and sessions."""
        values = dict(rows.values)
        if "episode_id" in values:
            values["episode_id"] = self._episode_ids(values["episode_id"])
        if "session_id" in values:
            values["session_id"] = [self.sessions.get(each) for each in values["session_id"]]
        for name in _LEASES:
            if name in values:
                values[name] = [None] * len(rows)
        return TableRows(rows.table, values)

    def _episode_ids(self, given: list[int | None]) -> list[int | None]:
        theirs, ours = self.episodes
        if not len(theirs) or given.count(None) == len(given):
            return [None] * len(given)
        wanted = np.array([-1 if each is None else each for each in given], np.int64)
        places = np.minimum(np.searchsorted(theirs, wanted), len(theirs) - 1)
        found = np.where(theirs[places] == wanted, ours[places], 0)
        if self.is_complete and (found[wanted >= 0] == 0).any():
            raise CopyError(
                "an episode of steps to copy was stored again under the same id while the copy was "
                "interrupted; drop the unfinished copy, and copy again"
            )
        return [number or None for number in found.tolist()]
