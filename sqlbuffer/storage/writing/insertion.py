"""One batch on its way into a buffer: ids that are there already, and races of writers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.buffers.applied_writes import WriteOnce
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.errors import ProgramLimitExceeded, UniqueViolation, too_large
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes import keys
from sqlbuffer.storage.episodes import lifecycle as episode_rows
from sqlbuffer.storage.episodes.keys import EpisodeKey
from sqlbuffer.storage.episodes.lifecycle import free_episode
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.payload_parts import Payloads, without_parts
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.writing import postgresql, sqlite

ID = 1 + Record._fields.index("id")

reserve_seqs = by_database(sqlite=sqlite.reserve_seqs, postgresql=postgresql.reserve_seqs)
insert_records = by_database(sqlite=sqlite.insert_records, postgresql=postgresql.insert_records)


@dataclass(frozen=True)
class Written:
    """What became of a batch, as ids; and the number of each."""

    inserted: list[str]
    duplicates: list[str]
    conflicts: list[str]
    seqs: dict[str, int]


@dataclass
class Outcome:
    """What a transaction did.

    Attributes:
        numbers: The number of each id that it inserted.
        stored: The rows that the buffer held of the others, by id.
        refused: The batch is a whole episode, and another one has its id.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    stored: dict[str, Row] = field(default_factory=dict)
    refused: bool = False

    @property
    def seqs(self) -> dict[str, int]:
        """The number of each id, inserted or held before."""
        return {**{id_: row[0] for id_, row in self.stored.items()}, **self.numbers}


class Insertion:
    """Inserts records of distinct ids; may be tried again after a lost connection.

    Args:
        once: Has each transaction take effect once.
        buffer_id: The buffer.
        records: The batch.
        then: Called in the transaction with the numbers of all ids that the buffer then holds.
        metas: JSON of what the user says of episodes that may begin with the batch.
        whole: The episode that the batch is, under an id of the user's: stored whole or not at all.
        payloads: Writes and reads what rows have elsewhere.
        first: Called in the transaction before anything else is done.
        guarded: Another writer may commit one of the ids meanwhile.
    """

    def __init__(
        self,
        once: WriteOnce[Outcome],
        buffer_id: int,
        records: Sequence[Record],
        then: Callable[[Connection, Mapping[str, int]], None] | None = None,
        metas: Mapping[EpisodeKey, str] | None = None,
        whole: EpisodeKey | None = None,
        payloads: Payloads | None = None,
        first: Callable[[Connection], None] | None = None,
        *,
        guarded: bool = True,
    ) -> None:
        self._once, self._buffer_id = once, buffer_id
        self._records, self._then, self._metas = records, then, metas or {}
        self._whole, self._payloads, self._first = whole, payloads, first
        self._guarded = guarded

    def run(self, engine: Engine, durability: str | None) -> Outcome:
        """Insert what the buffer does not hold, in one transaction, unless an earlier run did.

        Raises:
            ConnectionLost: Whether the batch is stored is not known; run again.
            Deadlock: Another writer of the same ids waited for this one; run again.
        """
        # What draws the numbers stores the id as well, for a third of a question of its own.
        notes = self._first is None and self._whole is None
        return self._once.run(engine, durability, self._insert, notes=notes)

    def replace(self, records: Sequence[Record]) -> None:
        """Insert other records; for `first`."""
        self._records = list(records)

    def _insert(self, connection: Connection) -> Outcome:
        outcome = Outcome()
        if self._first is not None:
            self._first(connection)
        # What `first` refuses draws no numbers.
        if self._records or self._first is None:
            self._insert_new(connection, outcome)
        if self._then is not None and (outcome.numbers or self._whole is None):
            self._then(connection, outcome.seqs)
        return outcome

    def _is_stored(self, connection: Connection, outcome: Outcome) -> bool:
        """Tell whether the buffer holds an episode of the batch's id; note its rows."""
        if self._whole is None:
            return False
        known = free_episode(connection, self._buffer_id, *self._whole)
        if known is None:
            return False
        status, length = known
        if status != "complete":
            raise episode_rows.exists(*self._whole, status)
        outcome.stored = self._rows_of_ids(connection, {record.id for record in self._records})
        outcome.refused = length != len(self._records)
        return True

    def _insert_new(self, connection: Connection, outcome: Outcome) -> None:
        if self._is_stored(connection, outcome):
            return
        ids = [record.id for record in self._records]
        given = [record.initial_priority for record in self._records]
        priorities = given if given.count(None) < len(given) else None
        drawn = reserve_seqs(connection, self._buffer_id, ids, priorities, self._once.note)
        held = drawn.held
        # Read before the insert, which may evict them.
        outcome.stored = self._rows_of_ids(connection, held)
        outcome.refused = self._whole is not None and bool(held)
        while not outcome.refused:
            new = [record for record in self._records if record.id not in held]
            seqs = drawn.seqs[: len(new)]
            outcome.numbers = {record.id: seq for record, seq in zip(new, seqs, strict=True)}
            if not new:
                return
            try:
                insert_records(
                    connection,
                    self._buffer_id,
                    seqs,
                    without_parts(new),
                    keys.episode_ids(connection, self._buffer_id, new, self._metas),
                    keys.session_ids(connection, self._buffer_id, new),
                    drawn.priority,
                    guarded=self._guarded,
                )
                if self._payloads is not None:
                    self._payloads.insert(connection, zip(seqs, new, strict=True))
                return
            except ProgramLimitExceeded as error:
                raise too_large(error, [record.id for record in new]) from error
            except UniqueViolation:
                if not self._guarded:
                    raise
                # Another writer committed some of the ids meanwhile. The numbers drawn stay ours.
                found = self._rows_of_ids(connection, {record.id for record in new})
                if not found:
                    raise
                if self._whole is not None:
                    outcome.numbers, outcome.stored = {}, found
                    outcome.refused = len(found) != len(self._records)
                    return
                outcome.stored |= found
                held |= found.keys()

    def _rows_of_ids(self, connection: Connection, ids: set[str]) -> dict[str, Row]:
        if not ids:
            return {}
        where = (experiences.c.buffer_id == self._buffer_id) & keys.one_of(experiences.c.id, ids)
        found = fetch(connection, statements.rows(where))
        rows = found if self._payloads is None else self._payloads.held(connection, found)
        return {row[ID]: row for row in rows}
