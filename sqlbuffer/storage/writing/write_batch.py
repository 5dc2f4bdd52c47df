"""A batch in the form in which it is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.episodes import EpisodeKey

# A time that the library made is not content: it never makes a conflict.
MADE_TIME = frozenset(("execute_time",))


@dataclass(frozen=True)
class WriteBatch:
    """A batch in the form in which it is stored: checked, encoded and compressed.

    Attributes:
        records: The rows; see `payload_parts.prepared`.
        ignore: Fields that make no conflict if they differ from the stored row.
        endings: Ends of episodes in the batch.
        metas: The user's JSON of episodes that may begin with it.
        whole: Id of the user's for an episode that is stored whole or not at all.
    """

    records: Sequence[Record]
    ignore: frozenset[str] = frozenset()
    endings: Sequence[EpisodeEnd] = ()
    metas: Mapping[EpisodeKey, str] = field(default_factory=dict)
    whole: EpisodeKey | None = None

    @property
    def n_steps(self) -> int:
        """Number of rows."""
        return len(self.records)
