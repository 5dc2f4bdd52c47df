"""Whole operations as PostgreSQL does them."""

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, text

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.buffers.standby import StandbyWatermark
from sqlbuffer.storage.database.engine import begin_epoch, server_epoch
from sqlbuffer.storage.database.fork_lock import ForkLock
from sqlbuffer.storage.database.transactions import AT_ONCE, BEGIN, Begin, invalidated_when_lost
from sqlbuffer.storage.database.vacuum import cleaner_for
from sqlbuffer.storage.dialects.arrays import id_array, number_array, real_array
from sqlbuffer.storage.priorities.blocks import SEAL_TIMEOUT_S, Blocks
from sqlbuffer.storage.writing.reservation import ReservedSeqs, WriteId

_NULL = b"\xff\xff\xff\xff"


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">i", len(raw)) + raw


def _json(value: str) -> bytes:
    raw = value.encode()
    return (
        struct.pack(">ib", len(raw) + 1, 1) + raw
    )  # JSONB's binary form: a version, then the text


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _bigint(value: int) -> bytes:
    return struct.pack(">iq", 8, value)


def _integer(value: int) -> bytes:
    return struct.pack(">ii", 4, value)


def _double(value: float) -> bytes:
    return struct.pack(">id", 8, value)


def _bool(value: bool) -> bytes:
    return struct.pack(">i?", 1, value)


# Column -> its binary COPY form, for the columns of a record that need no other table.
_ENCODE: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("id", "task_id", "task_name", "agent_id", "pre_agent"), _text),
    **dict.fromkeys(("step", "model_version"), _bigint),
    "t": _integer,
    **dict.fromkeys(("execute_time", "reward_t", "adv_t", "v_t"), _double),
    **dict.fromkeys(("state", "actions", "messages", "extra", "fields"), _json),
    **dict.fromkeys(("terminated", "truncated"), _bool),
    "arrays": _bytes,
    "payload_bytes": _bigint,
}
_FIELDS = [(Record._fields.index(name), encode) for name, encode in _ENCODE.items()]
_PRIORITY = Record._fields.index("initial_priority")
_COPY_COLUMNS = ", ".join(
    ["buffer_id", "seq", "episode_id", "session_id", *_ENCODE, "initial_priority"]
)
_COPY = f"COPY experiences ({_COPY_COLUMNS}) FROM STDIN (FORMAT BINARY)"
_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
# A transaction that draws numbers of a buffer holds (this, buffer id) as a shared advisory lock
# until it ends. `sqlbuffer_draw_v1` and `sqlbuffer_number_row_v1` take it: it is written there too.
WRITERS_LOCK = 1_397_836_866
# Two statements in one message: a number drawn after the first one is not looked at. The lock is
# taken for this message alone, 0.03 ms; a standby knows no locks of its primary.
_LOOK = (
    "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM sqlbuffer_seq_{0}; "
    "SELECT CASE WHEN NOT pg_is_in_recovery() "
    f"THEN pg_try_advisory_xact_lock({WRITERS_LOCK}, {{0}}) END"
)
# Readers hold it in another mode, for the moment of a look. With 5,000 locks of others: 7 ms.
_WRITERS = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' "
    f"AND granted AND classid = {WRITERS_LOCK} AND objid = {{}} AND objsubid = 2 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_PREPARED = "-1/"  # how the names of prepared transactions begin
SETTLING_PAUSE_S = 0.001
# Without statistics the planner takes a queue for a few rows, and would sort all of them.
_IN_ORDER = "; ".join(f"SET LOCAL enable_{way} = off" for way in ("bitmapscan", "seqscan", "sort"))
_TRAILER = struct.pack(">h", -1)
_ROW_HEAD = struct.Struct(">hii")


def copy_rows(
    buffer_id: int,
    seqs: Sequence[int],
    records: Sequence[Record],
    episode_ids: Sequence[int | None],
    session_ids: Sequence[int | None],
    priority: float | None = None,
) -> bytes:
    """Return the body of a COPY.

    Column by column: most hold the same value in every row of a batch, which is encoded once.
    """
    values = list(zip(*records, strict=True))
    given = values[_PRIORITY]
    columns = [
        (seqs, _bigint),
        (episode_ids, _bigint),
        (session_ids, _integer),
        *((values[i], encode) for i, encode in _FIELDS),
        ([priority if own is None else own for own in given], _double),
    ]
    same = _ROW_HEAD.pack(len(columns) + 1, 4, buffer_id)
    parts: list[Iterable[bytes]] = []
    for column, encode in columns:
        if column.count(column[0]) == len(column):
            same += _NULL if column[0] is None else encode(column[0])
            continue
        if same:
            parts.append(repeat(same))
            same = b""
        parts.append([_NULL if value is None else encode(value) for value in column])
    parts.append([same] * len(records))
    return b"".join(chain.from_iterable(zip(*parts)))  # noqa: B905, `repeat` has no end


@dataclass
class Watermark:
    """What is known of the numbers of a buffer.

    Attributes:
        epoch: The server's epoch when this began.
        settled: No row up to this number can appear any more.
        pending: The same will be true of this number when `writers` have ended.
        writers: The transactions that may still write rows up to `pending`, by the server's names.
        on_standby: What is known instead where the server is a standby.
    """

    epoch: int
    settled: int = 0
    pending: int = 0
    writers: frozenset[str] = frozenset()
    on_standby: StandbyWatermark = field(default_factory=StandbyWatermark)

    def note(self, last_value: int, running: frozenset[str]) -> None:
        """Note a look at the sequence, and the writers that a later look found."""
        if any(not name.startswith(_PREPARED) for name in self.writers - running):
            # It may have been prepared: then it goes on under another name.
            prepared = {name for name in running if name.startswith(_PREPARED)}
            self.writers = self.writers | prepared
        self.writers = self.writers & running
        if not self.writers:
            self.settled = max(self.settled, self.pending)
            self.pending, self.writers = last_value, running
        if not running:
            self.settled = last_value


class PostgreSQL:
    """The operations that SQLite does otherwise; `sqlite.SQLite` has the same ones."""

    def __init__(self) -> None:
        self._watermarks: dict[int, Watermark] = {}
        self._mutex = ForkLock()

    @contextmanager
    def writing(
        self, engine: Engine, durability: str | None = None, query: str | None = None
    ) -> Iterator[Connection]:
        """A transaction that writes: committed at the end of the block, rolled back on an
        exception.
        """
        options = {BEGIN: Begin(writes=True, durability=durability, query=query)}
        with (
            engine.connect().execution_options(**options) as connection,
            connection.begin(),
            invalidated_when_lost(connection),
        ):
            yield connection

    def make_room(self, engine: Engine) -> str:
        """Return what to do where the disk has no room for a deletion: nothing can be done here."""
        return (
            "a deletion writes to the disk of the server as well: free a few megabytes there (a "
            "table that is dropped gives its space back at once), then delete again"
        )

    @contextmanager
    def claiming(self, engine: Engine, durability: str | None, query: str) -> Iterator[Connection]:
        """A transaction that claims rows of a queue; see `Begin.query`."""
        with self.writing(engine, durability, f"{_IN_ORDER}; {query}") as connection:
            yield connection

    @contextmanager
    def at_once(self, engine: Engine) -> Iterator[Connection]:
        """A connection whose statements are each its own transaction: they only read, and few
        rows (see `transactions.AT_ONCE`).
        """
        with engine.connect().execution_options(**{BEGIN: AT_ONCE}) as connection:
            driver: Any = connection.connection.driver_connection
            if not driver.autocommit:  # an engine of the user's
                connection.execution_options(isolation_level="AUTOCOMMIT")
            with invalidated_when_lost(connection):
                yield connection

    @contextmanager
    def hurried(self, engine: Engine, wait_s: float = 0.0) -> Iterator[Connection]:
        """A transaction that writes what can be left out as well: it waits for others so long at
        most, or 20 ms, and not for the disk.
        """
        with self.writing(engine, "relaxed") as connection:
            timeout_ms = max(20, int(wait_s * 1000))
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {timeout_ms}")
            yield connection

    @contextmanager
    def snapshot(self, engine: Engine, query: str | None = None) -> Iterator[Connection]:
        """A transaction that reads one state of the database throughout; see `Begin.query`."""
        options = {BEGIN: Begin(snapshot=True, query=query)}
        with engine.connect().execution_options(**options) as connection:
            if query is not None:
                connection.begin()
            yield connection

    def reserve_seqs(
        self,
        connection: Connection,
        buffer_id: int,
        ids: Sequence[str],
        priorities: Sequence[float | None] | None = None,
        note: WriteId | None = None,
    ) -> ReservedSeqs:
        """Return which ids the buffer holds, and numbers for the others; note the priorities that
        these are given. Store the id of the write, if there is one to store.
        """
        statement = (
            "SELECT held, seqs, priority FROM sqlbuffer_draw_v1(%s::integer, %s::text[], "
            "%s::double precision[], %s::uuid, %s::double precision)"
        )
        reals = None if priorities is None else real_array(priorities)
        write_id, keep_s = (None, None) if note is None else (note.write_id, note.keep_s)
        ((held, seqs, priority),) = _driver(connection).execute(
            statement, (buffer_id, id_array(ids), reals, write_id, keep_s)
        )
        return ReservedSeqs(set(held), sorted(seqs or ()), priority)

    def free_episode(
        self, connection: Connection, buffer_id: int, key: str, task_id: str
    ) -> tuple[str, int | None] | None:
        """Make the id of an ended episode free whose steps have all left; return the status and
        length of one that is not free.
        """
        statement = "SELECT status, length FROM sqlbuffer_free_episode_v1(%s::integer, %s, %s)"
        ((status, length),) = _driver(connection).execute(statement, (buffer_id, key, task_id))
        return None if status is None else (status, length)

    def lock(self, connection: Connection, buffer_id: int) -> None:
        """Hold the row of a buffer until the transaction ends, as any writer may."""
        _driver(connection).execute("SELECT sqlbuffer_lock_v1(%s::integer)", (buffer_id,))

    def note_write(self, buffer_id: int, write_id: str, keep_s: float) -> str | None:
        """Return the query that stores the id of a write and is false where it was applied before;
        see `Begin.query`. None: no connection can be lost.
        """
        return f"SELECT sqlbuffer_note_write_v1({buffer_id:d}, '{write_id}', {keep_s:f})"

    def insert(
        self,
        connection: Connection,
        buffer_id: int,
        seqs: Sequence[int],
        records: Sequence[Record],
        episode_ids: Sequence[int | None],
        session_ids: Sequence[int | None],
        priority: float | None = None,
        *,
        guarded: bool = True,
    ) -> None:
        """Write the records under their numbers; those that were given no priority have this one.

        Raises:
            UniqueViolation: Another writer has committed one of the ids; where it was guarded the
                transaction goes on.
        """
        rows = copy_rows(buffer_id, seqs, records, episode_ids, session_ids, priority)
        with (
            connection.begin_nested() if guarded else nullcontext(),
            _driver(connection).cursor() as cursor,
            cursor.copy(_COPY) as copy,
        ):
            copy.write(b"".join([_HEADER, rows, _TRAILER]))

    def evict(self, connection: Connection, buffer_id: int) -> None:
        """Evict what is one too many where tasks or episodes leave whole. The caller holds the lock
        on the row of the buffer.
        """
        unit = text("SELECT evict_unit FROM buffers WHERE id = :id")
        found = connection.execute(unit, {"id": buffer_id}).scalar_one()
        if found != "row":
            evict = text(f"SELECT sqlbuffer_evict_{found}s_v1(:id)")
            connection.execute(evict, {"id": buffer_id})

    def update_priorities(
        self, connection: Connection, of: Blocks, seqs: Sequence[int], priorities: Sequence[float]
    ) -> int:
        """Set the priorities of those rows that the buffer holds; return how many."""
        statement = (
            "SELECT sqlbuffer_update_priorities_v1(%s::integer, %s::bigint[], "
            "%s::double precision[])"
        )
        numbers = number_array(seqs)
        parameters = (of.buffer_id, numbers, real_array(priorities))
        ((n_updated,),) = _driver(connection).execute(statement, parameters)
        return int(n_updated)

    def seal(self, connection: Connection, of: Blocks, blocks: Sequence[int], settled: int) -> int:
        """Add up those of the blocks of priorities that no row can come to and that lie in the
        window; delete what has left it. Return how many were added up.
        """
        driver = _driver(connection)
        driver.execute(f"SET LOCAL lock_timeout = '{SEAL_TIMEOUT_S}s'")
        statement = "SELECT sqlbuffer_seal_v1(%s::integer, %s::bigint[], %s::bigint, %s::bigint)"
        parameters = (of.buffer_id, list(blocks), settled, of.n_cleaned)
        ((n_sealed,),) = driver.execute(statement, parameters)
        return int(n_sealed)

    def wrote(
        self, engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: int | None = None
    ) -> None:
        """Look after what eviction leaves behind, and count full blocks of rows, from time to time.

        Args:
            engine: The engine.
            n_rows: How many rows were written.
            n_bytes: Bytes of parts.
            inserted_into: The buffer that rows were inserted into.
        """
        cleaner = cleaner_for(engine)
        if inserted_into is not None:
            cleaner.inserted(inserted_into, partial(self._count_rows, engine))
        cleaner.wrote(engine, n_rows, n_bytes)

    def _count_rows(self, engine: Engine, connection: Connection, buffer_id: int) -> None:
        """Count the rows of those blocks that no row can come to, a few in a transaction."""
        try:
            settled = self.settled(engine, buffer_id)
        except psycopg.errors.UndefinedTable:  # the buffer was dropped
            return
        statement = "SELECT sqlbuffer_count_rows_v1(%s::integer, %s::bigint)"
        while connection.exec_driver_sql(statement, (buffer_id, settled)).scalar_one():
            pass

    def settled(self, engine: Engine, buffer_id: int, wait_s: float = 0.0) -> int | None:
        """Return a seq up to which no row can appear any more.

        A writer locks the buffer before it draws numbers, until its transaction ends; see
        `WRITERS_LOCK`. So the numbers up to `last_value` belong to transactions that have ended or
        that hold the lock at a later look. In the other order a writer between the two looks would
        be missed. Whoever reads rows by the result opens its snapshot afterwards.

        Args:
            engine: The engine.
            buffer_id: The buffer.
            wait_s: How long to wait for the writers of now, so that what is there now is settled.
        """
        deadline = time.monotonic() + wait_s
        with self._mutex, self.at_once(engine) as connection:
            last_value, is_free = _look(connection, buffer_id)
            known = self._watermark(engine, buffer_id)
            if is_free is None:
                return known.on_standby.look(_driver(connection), buffer_id)
            if last_value < max(known.settled, known.pending):
                # A crash that no connection told of, behind a pooler say.
                begin_epoch(engine)
                known = self._watermark(engine, buffer_id)
            if is_free:
                known.note(last_value, frozenset())
            while known.settled < last_value:
                found = _driver(connection).execute(_WRITERS.format(int(buffer_id)))
                known.note(last_value, frozenset(name for (name,) in found))
                if known.settled >= last_value or time.monotonic() >= deadline:
                    break
                time.sleep(SETTLING_PAUSE_S)
            return known.settled

    def _watermark(self, engine: Engine, buffer_id: int) -> Watermark:
        known = self._watermarks.get(buffer_id)
        epoch = server_epoch(engine)
        if known is None or known.epoch != epoch:
            # After a crash a server may give numbers and ids anew that it gave before.
            known = self._watermarks[buffer_id] = Watermark(epoch)
        return known


def _look(connection: Connection, buffer_id: int) -> tuple[int, bool | None]:
    """Return the last number of a buffer, and whether no writer held its lock after that; None: a
    standby.
    """
    # Several statements in one message need a cursor that asks for text.
    cursor = psycopg.Cursor(_driver(connection)).execute(_LOOK.format(int(buffer_id)))
    ((last_value,),) = cursor.fetchall()
    cursor.nextset()
    ((is_free,),) = cursor.fetchall()
    return last_value, is_free


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver_connection: Any = connection.connection.driver_connection
    return driver_connection  # type: ignore[no-any-return]
