"""Rows that may be sampled: not used up, not stale, of the current session, not in quarantine."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    Text,
    and_,
    bindparam,
    column,
    or_,
    select,
    table,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.expressions import pg_array, processed, utc_now
from sqlbuffer.storage.schema.metadata import TIME, overlay_table

uses = overlay_table(
    "uses",
    Column("n_uses", Integer, nullable=False, comment="number of times that it was sampled"),
    flag="has_uses",
    leaves_late=True,
    learner_may="INSERT, UPDATE (n_uses), DELETE",
    # A batch of random rows reads a page for each: half as many in one tree as in two.
    sqlite_with_rowid=False,
)

quarantine = overlay_table(
    "quarantine",
    Column("reason", Text, comment="reason why it is not sampled"),
    Column(
        "quarantined_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the quarantine",
    ),
    flag="has_quarantine",
    learner_may="INSERT, DELETE",
    learner_sets_flag=True,
    sqlite_with_rowid=False,
)


class not_used_up(FunctionElement[bool]):
    """True if a row of `experiences` was used less than `max_use` times.

    `not_used_up(seq, buffer_id, seqs, max_use)` is for rows with one of some numbers. PostgreSQL
    looks up the counts of all numbers together: a third of the time of one subquery for each row.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(not_used_up, "postgresql")
def _pg_not_used_up(element: not_used_up, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, seqs, max_use = processed(element, compiler, kw)
    return (
        f"{seq} NOT IN (SELECT u.seq FROM uses u WHERE u.buffer_id = {buffer_id} "
        f"AND u.seq = ANY ({pg_array(seqs)}) AND u.n_uses >= {max_use})"
    )


@compiles(not_used_up, "sqlite")
def _sqlite_not_used_up(element: not_used_up, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, _, max_use = processed(element, compiler, kw)
    return (
        f"NOT EXISTS (SELECT 1 FROM uses u WHERE u.buffer_id = {buffer_id} "
        f"AND u.seq = {seq} AND u.n_uses >= {max_use})"
    )


class not_in_quarantine(FunctionElement[bool]):
    """True if a row of `experiences` is not in quarantine.

    `not_in_quarantine(seq, buffer_id, seqs)` is for rows with one of some numbers; see
    `not_used_up`.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(not_in_quarantine, "postgresql")
def _pg_not_in_quarantine(element: not_in_quarantine, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, seqs = processed(element, compiler, kw)
    return (
        f"{seq} NOT IN (SELECT q.seq FROM quarantine q WHERE q.buffer_id = {buffer_id} "
        f"AND q.seq = ANY ({pg_array(seqs)}))"
    )


@compiles(not_in_quarantine, "sqlite")
def _sqlite_not_in_quarantine(element: not_in_quarantine, compiler: Any, **kw: Any) -> str:
    seq, buffer_id, _ = processed(element, compiler, kw)
    return (
        f"NOT EXISTS (SELECT 1 FROM quarantine q WHERE q.buffer_id = {buffer_id} AND q.seq = {seq})"
    )


MAX_USE, OLDEST_VERSION, SESSION = "max_use", "oldest_version", "session"
LEAST_VERSION = -(2**63)


class EligibilityKind(NamedTuple):
    """The limits that are set: statements are the same for all limits of a kind.

    Attributes:
        uses: Limit on the uses of the first row of an item.
        versions: Limit on the age of every row.
        sessions: Limit on the session of every row.
        quarantine: No row may be in quarantine.
        of_newest: The age of a row is that of the newest row of its episode.
    """

    uses: bool = False
    versions: bool = False
    sessions: bool = False
    quarantine: bool = False
    of_newest: bool = False

    @property
    def of_steps(self) -> "EligibilityKind":
        """The limits on every step of an item, and not only on the first."""
        return self._replace(uses=False)


NO_KIND = EligibilityKind()


class Eligibility(NamedTuple):
    """The limits of sampling at one moment.

    Attributes:
        max_use: Maximum number of uses of a row; None for no limit.
        oldest_version: The lowest `model_version` that is not stale; None if no version is stale.
        session: Number of the only session whose rows are sampled, in addition to rows without a
            session; None for all.
        quarantine: Rows in quarantine are not sampled.
        of_newest: A row is not stale while a row of its episode is not (`staleness_of`).
    """

    max_use: int | None = None
    oldest_version: int | None = None
    session: int | None = None
    quarantine: bool = False
    of_newest: bool = False

    def __bool__(self) -> bool:
        """Return True if there is any limit."""
        return self.kind != NO_KIND

    @property
    def kind(self) -> EligibilityKind:
        """Return which limits are set."""
        return EligibilityKind(
            self.max_use is not None,
            self.oldest_version is not None,
            self.session is not None,
            self.quarantine,
            self.of_newest and self.oldest_version is not None,
        )

    @property
    def of_steps(self) -> "Eligibility":
        """The limits on every step of an item, and not only on the first."""
        return self if self.max_use is None else self._replace(max_use=None)

    @property
    def of_versions(self) -> "Eligibility":
        """The limit on the age of rows alone."""
        return Eligibility(oldest_version=self.oldest_version, of_newest=self.of_newest)

    @property
    def lasting(self) -> "Eligibility":
        """The limits that exclude a row for ever, while the clock does not go back."""
        return self._replace(quarantine=False)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The values for a statement made with `hold_by_parameters`."""
        values = {
            MAX_USE: self.max_use,
            OLDEST_VERSION: self.oldest_version,
            SESSION: self.session,
        }
        return {name: value for name, value in values.items() if value is not None}

    def hold(self, over: Any) -> ColumnElement[bool]:
        """Return the expression for a step that may be sampled; not for `NO_LIMITS`.

        Args:
            over: A table of steps, or an alias of one.
        """
        return _hold(self.kind, over, _values(self))

    def excludes(self, version: int | None, session: int | None) -> bool:
        """Return True if steps of a model version and a session may not be sampled.

        With `of_newest` the steps around one that may be sampled are not stale.
        """
        has_limit = self.oldest_version is not None and not self.of_newest
        is_stale = version is not None and has_limit
        is_foreign = session is not None and self.session is not None
        return (is_stale and version < self.oldest_version) or (  # type: ignore[operator]
            is_foreign and session != self.session
        )

    def is_ineligible(self, over: Any) -> ColumnElement[bool]:
        """Return the expression for a row that may not be sampled."""
        return ~self.hold(over)


NO_LIMITS = Eligibility()


def hold_by_parameters(
    kind: EligibilityKind, steps: Any, buffer_id: Any, seqs: Any
) -> list[ColumnElement[bool]]:
    """Return the condition of `Eligibility.hold` for some numbers, with limits as parameters.

    Args:
        kind: The limits that are set.
        steps: A table of steps that has those of the numbers alone.
        buffer_id: The buffer.
        seqs: The numbers, a `SeqList`.
    """
    held: list[Any] = []
    if kind.versions:
        of_versions = EligibilityKind(versions=True, of_newest=kind.of_newest)
        held.append(_hold(of_versions, steps, _PARAMETERS))
    if kind.sessions:
        held.append(_hold(EligibilityKind(sessions=True), steps, _PARAMETERS))
    if kind.uses:
        held.append(not_used_up(steps.c.seq, buffer_id, seqs, _PARAMETERS[MAX_USE]))
    if kind.quarantine:
        held.append(not_in_quarantine(steps.c.seq, buffer_id, seqs))
    return held


def oldest_version(clock: int | None, max_staleness: int | None) -> int | None:
    """Return the lowest version that is not stale; None if no version is stale."""
    if clock is None or max_staleness is None:
        return None
    return max(clock - max_staleness, LEAST_VERSION)


def is_used_up(over: Any, max_use: Any) -> ColumnElement[bool]:
    """Return the expression for a step of a table or its alias that reached `max_use`."""
    used_up = select(1).where(
        uses.c.buffer_id == over.c.buffer_id, uses.c.seq == over.c.seq, uses.c.n_uses >= max_use
    )
    # Without the offset PostgreSQL would make an anti-join over all rows of `uses`.
    expression: ColumnElement[bool] = used_up.correlate(over).offset(0).exists()
    return expression


def _hold(kind: EligibilityKind, over: Any, values: Mapping[str, Any]) -> ColumnElement[bool]:
    held: list[Any] = []
    if kind.versions:
        version, oldest = over.c.model_version, values[OLDEST_VERSION]
        is_fresh = version.is_(None) | (version >= oldest)
        held.append(is_fresh | _has_newer(over, oldest) if kind.of_newest else is_fresh)
    if kind.sessions:
        session = over.c.session_id
        held.append(session.is_(None) | (session == values[SESSION]))
    if kind.uses:
        held.append(~is_used_up(over, values[MAX_USE]))
    if kind.quarantine:
        held.append(~is_in_quarantine(over.c.buffer_id, over.c.seq))
    return and_(*held)


_steps_of_episodes = {
    name: table(
        name,
        column("buffer_id", Integer()),
        column("episode_id", BigInteger()),
        column("model_version", BigInteger()),
    )
    for name in ("experiences", "chunks")
}


def _has_newer(over: Any, oldest: Any) -> ColumnElement[bool]:
    """Return the expression for a step whose episode has a step that is not stale."""
    found: list[ColumnElement[bool]] = []
    for name, steps in _steps_of_episodes.items():
        newer = steps.alias(f"newer_{name}")
        is_newer = select(1).where(
            newer.c.buffer_id == over.c.buffer_id,
            newer.c.episode_id == over.c.episode_id,
            newer.c.model_version >= oldest,
        )
        found.append(is_newer.correlate(over).offset(0).exists())
    return or_(*found)


def is_in_quarantine(buffer_id: Any, seq: Any) -> ColumnElement[bool]:
    """Return the expression that is true if a number of a buffer is in quarantine."""
    entry = select(1).where(quarantine.c.buffer_id == buffer_id, quarantine.c.seq == seq)
    # As above.
    ineligible: ColumnElement[bool] = entry.correlate_except(quarantine).offset(0).exists()
    return ineligible


def _values(limits: Eligibility) -> dict[str, Any]:
    return {
        MAX_USE: bindparam(None, limits.max_use, Integer(), unique=True),
        OLDEST_VERSION: bindparam(None, limits.oldest_version, BigInteger(), unique=True),
        SESSION: bindparam(None, limits.session, Integer(), unique=True),
    }


_PARAMETERS: dict[str, Any] = {
    MAX_USE: bindparam(MAX_USE, type_=Integer()),
    OLDEST_VERSION: bindparam(OLDEST_VERSION, type_=BigInteger()),
    SESSION: bindparam(SESSION, type_=Integer()),
}
