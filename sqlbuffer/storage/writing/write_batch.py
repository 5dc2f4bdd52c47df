"""A batch as it is handed to the database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.episodes.keys import EpisodeKey

# A time that the library made is no content: it makes no conflict.
MADE_TIME = frozenset(("execute_time",))


@dataclass(frozen=True)
class WriteBatch:
    """A batch as it is handed to the database: checked, encoded and compressed.

    Attributes:
        records: The rows; see `payload_parts.prepared`.
        ignore: Fields that do not make a conflict when they differ from the stored row.
        endings: How episodes end with it.
        metas: JSON of what the user says of episodes that may begin with it.
        whole: The episode that it is, under an id of the user's: stored whole or not at all.
    """

    records: Sequence[Record]
    ignore: frozenset[str] = frozenset()
    endings: Sequence[EpisodeEnd] = ()
    metas: Mapping[EpisodeKey, str] = field(default_factory=dict)
    whole: EpisodeKey | None = None
