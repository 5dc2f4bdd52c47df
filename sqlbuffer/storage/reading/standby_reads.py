"""Reads from a standby, for a process that writes to its primary."""

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, text

from sqlbuffer.errors import BufferConfigError, StorageBusyError
from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer, OwnWrites, WaitingSteps
from sqlbuffer.storage.buffers.writes import commits_of
from sqlbuffer.storage.migrations.required_features import check_first_opening

# Seconds between two looks at the lag, and between two looks during a wait.
LOOK_EVERY_S, PAUSE_S = 0.2, 0.002
# Seconds that a read waits for what this process has written, without `max_lag_s`.
LONGEST_WAIT_S = 30.0

# All that was received is replayed, and more can come. The age is that of the last replayed
# transaction: it says nothing while the primary is idle.
_LAG = text("""
SELECT pg_is_in_recovery(),
    EXISTS (SELECT FROM pg_stat_wal_receiver)
        AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn(),
    extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::double precision
""")
# A commit that waits for the disk: earlier ones that did not are then on their way as well.
_FLUSH = (text("SET LOCAL synchronous_commit TO local"), text("SELECT pg_current_xact_id()"))
_WRITTEN = text("SELECT pg_current_wal_flush_lsn()::text")
_HAS_REPLAYED = text(
    "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= CAST(:lsn AS pg_lsn)"
)
_CLUSTER = text("SELECT current_database(), (SELECT system_identifier FROM pg_control_system())")
_SERVER = text("SELECT pg_postmaster_start_time()::text, pg_is_in_recovery()")


class StandbyReads(OwnWrites):
    """Brings a standby up to date before a read, as far as the read needs it.

    A read sees all that this process has written before. It is refused if the standby is too far
    behind, or is none any more.

    Args:
        primary: The buffer on the primary.
        standby: The same buffer on the standby.
        own_writes: Steps of this process that wait to be stored on the primary.
        max_lag_s: Largest lag in seconds; None: any.
    """

    def __init__(
        self,
        primary: OpenBuffer,
        standby: OpenBuffer,
        own_writes: OwnWrites,
        max_lag_s: float | None,
    ) -> None:
        super().__init__()
        self._primary, self._standby, self._own = primary, standby, own_writes
        self._max_lag_s = max_lag_s
        self._commits = commits_of(primary.url, primary.info.id)
        self._mutex = ForkLock()
        # The buffer may be new.
        self._n_seen = -1
        self._caught_up_at = self._looked_at = float("-inf")

    def add(self, queue: WaitingSteps) -> None:
        """Add a queue whose waiting steps are stored before reads."""
        self._own.add(queue)

    def store(self) -> None:
        """Store all waiting steps, and wait until the standby has them."""
        self._own.store()
        self.catch_up()

    def store_before_draw(self, n: int, count: Callable[[], int]) -> None:
        """Store the waiting steps if there are many; see `OwnWrites.store_before_draw`."""
        self._own.store_before_draw(n, count)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the standby has all that this process has committed.

        Raises:
            StorageBusyError: It is too far behind, or has become a server of its own.
        """
        with self._mutex:
            n = self._commits.n
            if n != self._n_seen:
                self._wait_for(self._written())
                self._n_seen = n
            self._check_lag()

    def catch_up_with_all(self) -> None:
        """Wait until the standby has all that any process has committed up to now.

        Raises:
            StorageBusyError: See `catch_up`.
        """
        with self._mutex:
            self._n_seen = -1
        self.catch_up()

    def wait_for(self, seq: int) -> None:
        """Wait until the standby has a step that another process has read."""
        deadline = time.monotonic() + self._longest_wait_s
        while self._standby.window().high < seq:
            self._pause(deadline, f"it does not have step {seq:,} yet")

    def check(self) -> None:
        """Raise unless the server is a standby of the primary.

        Raises:
            BufferConfigError: It is not.
            UnsupportedDatabaseError: A pooler before it lacks what each opening needs.
        """
        url = self._standby.url
        self._standby.read(lambda connection: check_first_opening(connection, url))
        shown = self._standby.shown_url
        _, is_standby = self._ask(self._standby, _SERVER)
        if not is_standby:
            raise BufferConfigError(
                f"read_url={shown!r} is not a standby: it accepts writes of its own; give the URL "
                f"of a standby of {self._primary.shown_url}, or leave out read_url"
            )
        ours, theirs = self._ask(self._primary, _CLUSTER), self._ask(self._standby, _CLUSTER)
        if tuple(ours) != tuple(theirs):
            what = "another cluster" if ours[1] != theirs[1] else f"the database {theirs[0]!r}"
            raise BufferConfigError(
                f"read_url={shown!r} shows {what}, and not what {self._primary.shown_url} has; "
                f"give a standby of that server, with the same database"
            )

    @property
    def _longest_wait_s(self) -> float:
        return LONGEST_WAIT_S if self._max_lag_s is None else self._max_lag_s

    def _wait_for(self, lsn: str) -> None:
        deadline = time.monotonic() + self._longest_wait_s
        while not self._ask(self._standby, _HAS_REPLAYED, lsn=lsn)[0]:
            self._pause(deadline, "it does not have what this process has written")
        self._looked_at = float("-inf")

    def _written(self) -> str:
        """Return where the log of the primary ends, with all that was committed."""
        primary = self._primary

        def flush(connection: Connection) -> str:
            for statement in _FLUSH:
                connection.execute(statement)
            connection.commit()
            return str(connection.execute(_WRITTEN).scalar_one())

        return primary.read(flush)

    def _pause(self, deadline: float, why: str) -> None:
        if time.monotonic() > deadline:
            raise self._behind(f"{why}, after {self._longest_wait_s:g} s")
        time.sleep(PAUSE_S)

    def _check_lag(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        is_standby, is_current, age_s = self._ask(self._standby, _LAG)
        if not is_standby:
            self._check_promoted()
        elif is_current:
            self._caught_up_at = now
        elif self._max_lag_s is not None:
            lag_s = min(float("inf") if age_s is None else age_s, now - self._caught_up_at)
            if lag_s > self._max_lag_s:
                raise self._behind(f"it is {lag_s:.1f} s behind, and max_lag_s={self._max_lag_s:g}")
        self._looked_at = now

    def _check_promoted(self) -> None:
        """Raise unless the standby has become the server that this process writes to."""
        ours, theirs = self._ask(self._primary, _SERVER), self._ask(self._standby, _SERVER)
        if tuple(ours) != tuple(theirs):
            raise StorageBusyError(
                f"{self._standby.shown_url} was promoted, and is no standby of "
                f"{self._primary.shown_url} any more; open the buffer with the URL of the new "
                f"primary, and another read_url or none"
            )

    def _behind(self, why: str) -> StorageBusyError:
        return StorageBusyError(
            f"the standby {self._standby.shown_url} is behind its primary: {why}; try again, allow "
            f"a larger max_lag_s, or leave out read_url"
        )

    def _ask(self, buffer: OpenBuffer, statement: Any, **values: Any) -> Any:
        return buffer.read(lambda connection: connection.execute(statement, values).one())
