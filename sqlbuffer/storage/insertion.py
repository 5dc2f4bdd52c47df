"""One batch on its way into a buffer: over ids that are there, races of writers and lost
connections.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.engine import URL

from sqlbuffer.storage import episodes as episode_rows
from sqlbuffer.storage import keys, statements
from sqlbuffer.storage.dialects import Dialect
from sqlbuffer.storage.errors import (
    ConnectionLost,
    Deadlock,
    ProgramLimitExceeded,
    UniqueViolation,
    too_large,
    translated,
)
from sqlbuffer.storage.keys import EpisodeKey
from sqlbuffer.storage.models import episodes, experiences, tasks
from sqlbuffer.storage.payload_parts import Payloads, without_parts
from sqlbuffer.storage.records import Record

Row = tuple[Any, ...]  # the columns of statements.ROW_COLUMNS
ID = 1 + Record._fields.index("id")


@dataclass
class Outcome:
    """What a transaction did, or would have done had its connection lived.

    Attributes:
        numbers: The number of each id that it inserted.
        stored: The rows that the buffer held of the others, by id.
        transaction: The server's name of the transaction.
        deletions: How often rows had been deleted inside the window.
        refused: The batch is a whole episode, and another one has its id.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    stored: dict[str, Row] = field(default_factory=dict)
    transaction: int | None = None
    deletions: int = 0
    refused: bool = False

    @property
    def seqs(self) -> dict[str, int]:
        """The number of each id, inserted or held before."""
        return {**{id_: row[0] for id_, row in self.stored.items()}, **self.numbers}


class Insertion:
    """Inserts records of distinct ids; may be tried again after a lost connection.

    Args:
        dialect: The database's operations.
        url: The database, as errors name it.
        buffer_id: The buffer.
        records: The batch.
        then: Called in the transaction with the numbers of all ids that the buffer then holds.
        metas: JSON of what the user says of episodes that may begin with the batch.
        whole: The episode that the batch is, under an id of the user's: stored whole or not at all.
        payloads: Writes and reads what rows have elsewhere.
        first: Called in the transaction before anything else is done.
        guarded: Another writer may commit one of the ids meanwhile.
        lock: Waits for whoever writes to the buffer, where `first` does. Called before it is looked
            whether a lost attempt was committed: its server process may go on for a while.
    """

    def __init__(
        self,
        dialect: Dialect,
        url: URL,
        buffer_id: int,
        records: Sequence[Record],
        then: Callable[[Connection, Mapping[str, int]], None] | None = None,
        metas: Mapping[EpisodeKey, str] | None = None,
        whole: EpisodeKey | None = None,
        payloads: Payloads | None = None,
        first: Callable[[Connection], None] | None = None,
        lock: Callable[[Connection], object] | None = None,
        *,
        guarded: bool = True,
    ) -> None:
        self._dialect, self._url, self._buffer_id = dialect, url, buffer_id
        self._records, self._then, self._metas = records, then, metas or {}
        self._whole, self._payloads, self._first = whole, payloads, first
        self._lock, self._guarded = lock, guarded
        self._lost: list[Outcome] = []

    def run(self, engine: Engine, durability: str | None) -> Outcome:
        """Insert what the buffer does not hold, in one transaction, unless an earlier run did.

        Raises:
            ConnectionLost: Whether the batch is stored is not known; run again.
            Deadlock: Another writer of the same ids waited for this one; run again.
        """
        outcome = Outcome()
        try:
            with (
                translated(self._url),
                self._dialect.writing(engine, durability) as connection,
            ):
                if self._lost and self._lock is not None:
                    self._lock(connection)
                for earlier in self._lost:
                    if self._committed(connection, earlier):
                        return earlier
                if self._first is not None:
                    self._first(connection)
                # What `first` refuses draws no numbers.
                if self._records or self._first is None:
                    self._insert_new(connection, outcome)
                if self._then is not None and (outcome.numbers or self._whole is None):
                    self._then(connection, outcome.seqs)
        except ConnectionLost:
            if outcome.numbers:
                self._lost.append(outcome)
            raise
        return outcome

    def replace(self, records: Sequence[Record]) -> None:
        """Insert other records; for `first`."""
        self._records = list(records)

    def _committed(self, connection: Connection, earlier: Outcome) -> bool:
        """Tell whether a transaction whose connection was lost was committed.

        Its rows prove it, and so does their absence where they would still be held. Otherwise the
        server says; alone it would not do, since after a crash it may give the name of a
        transaction that it has forgotten to another.
        """
        where = (experiences.c.buffer_id == self._buffer_id) & keys.one_of(
            experiences.c.id, earlier.numbers
        )
        found = connection.execute(select(experiences.c.id, experiences.c.seq).where(where)).all()
        if any(earlier.numbers[id_] == seq for id_, seq in found):
            return True
        held = self._would_be_held(connection, earlier)
        return not held and self._dialect.committed(connection, earlier.transaction)

    def _would_be_held(self, connection: Connection, earlier: Outcome) -> bool:
        window = connection.execute(statements.window(self._buffer_id)).one()
        if window.deletions != earlier.deletions:
            return False
        last = max(earlier.numbers.values())
        if window.evict_unit == "row":
            return bool(last > window.low_seq)
        if window.evict_unit == "episode":
            return self._has_episode(connection, earlier)
        # Tasks leave in the order of their last writes.
        oldest = select(func.min(tasks.c.last_seq)).where(tasks.c.buffer_id == self._buffer_id)
        left = connection.execute(oldest).scalar_one()
        return left is None or left < last

    def _has_episode(self, connection: Connection, earlier: Outcome) -> bool:
        """Tell whether an episode of the batch is held, which leaves whole, but for rows over the
        capacity: the oldest of all.
        """
        sent = (record for record in self._records if record.id in earlier.numbers)
        wanted = {record.episode_key for record in sent if record.episode_key is not None}
        where = (episodes.c.buffer_id == self._buffer_id) & (episodes.c.n_rows > 0)
        named = keys.one_of(episodes.c.key, wanted)
        if connection.execute(select(episodes.c.id).where(where, named)).first() is None:
            return False
        oldest = select(func.min(experiences.c.seq)).where(
            experiences.c.buffer_id == self._buffer_id
        )
        left = connection.execute(oldest).scalar_one()
        return left is not None and left < max(earlier.numbers.values())

    def _is_stored(self, connection: Connection, outcome: Outcome) -> bool:
        """Tell whether the buffer holds an episode of the batch's id; note its rows."""
        if self._whole is None:
            return False
        known = self._dialect.free_episode(connection, self._buffer_id, *self._whole)
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
        drawn = self._dialect.draw(connection, self._buffer_id, ids, priorities)
        held = drawn.held
        # Read before the insert, which may evict them.
        outcome.stored = self._rows_of_ids(connection, held)
        outcome.transaction, outcome.deletions = drawn.transaction, drawn.deletions
        outcome.refused = self._whole is not None and bool(held)
        while not outcome.refused:
            new = [record for record in self._records if record.id not in held]
            seqs = drawn.seqs[: len(new)]
            outcome.numbers = {record.id: seq for record, seq in zip(new, seqs, strict=True)}
            if not new:
                return
            try:
                self._dialect.insert(
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
            except UniqueViolation as error:
                self._check_others(error)
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

    def _check_others(self, error: UniqueViolation) -> None:
        """Raise unless another writer has the ids, and the transaction can go on."""
        if not self._guarded:
            raise error
        if self._lost:
            # Perhaps an attempt of ours whose server process ended only now: look again.
            raise Deadlock(f"{error}; try again") from error

    def _rows_of_ids(self, connection: Connection, ids: set[str]) -> dict[str, Row]:
        if not ids:
            return {}
        where = (experiences.c.buffer_id == self._buffer_id) & keys.one_of(experiences.c.id, ids)
        found = statements.fetch(connection, statements.rows(where))
        rows = found if self._payloads is None else self._payloads.held(connection, found)
        return {row[ID]: row for row in rows}
