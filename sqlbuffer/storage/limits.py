"""Which rows may be sampled beside what a condition says: not used too often, and not too old."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Integer, and_, bindparam, select
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.storage import functions as fn
from sqlbuffer.storage.models import experiences, uses

MAX_USE, OLDEST_VERSION = "max_use", "oldest_version"
LEAST_VERSION = -(2**63)


@dataclass(frozen=True)
class Limits:
    """What holds for sampling at one moment.

    Attributes:
        max_use: A row is used so often at most; None: any number of times.
        oldest_version: The lowest `model_version` that is not stale; None: none is.
    """

    max_use: int | None = None
    oldest_version: int | None = None

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return self.max_use is not None or self.oldest_version is not None

    @property
    def kind(self) -> tuple[bool, bool]:
        """Which there are: statements are the same for all limits of a kind."""
        return self.max_use is not None, self.oldest_version is not None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The values for a statement made with `by_parameters`."""
        given = {MAX_USE: self.max_use, OLDEST_VERSION: self.oldest_version}
        return {name: value for name, value in given.items() if value is not None}

    def hold(self, over: Any = experiences) -> ColumnElement[bool]:
        """Return the expression for a row that may be sampled; not for `NO_LIMITS`."""
        return _hold(self.kind, over, _values(self))

    def is_barred(self, over: Any) -> ColumnElement[bool]:
        """Return the expression for a row that may not be sampled."""
        return ~self.hold(over)


NO_LIMITS = Limits()


def hold_by_parameters(
    kind: tuple[bool, bool], buffer_id: Any, seqs: Any
) -> list[ColumnElement[bool]]:
    """Return what `Limits.hold` does, of rows among numbers and limits whose values are
    parameters.
    """
    has_uses, has_versions = kind
    held: list[Any] = []
    if has_versions:
        held.append(_hold((False, True), experiences, _PARAMETERS))
    if has_uses:
        held.append(fn.not_used_up(buffer_id, seqs, _PARAMETERS[MAX_USE]))
    return held


def is_stale_by_parameter(version: Any) -> ColumnElement[bool]:
    """Return the expression for a version that is too old."""
    stale: ColumnElement[bool] = version < _PARAMETERS[OLDEST_VERSION]
    return stale


def oldest_version(clock: int | None, max_staleness: int | None) -> int | None:
    """Return the lowest version that is not stale; None where none is."""
    if clock is None or max_staleness is None:
        return None
    return max(clock - max_staleness, LEAST_VERSION)


def _hold(kind: tuple[bool, bool], over: Any, values: Mapping[str, Any]) -> ColumnElement[bool]:
    has_uses, has_versions = kind
    held: list[Any] = []
    if has_versions:
        version = over.c.model_version
        held.append(version.is_(None) | (version >= values[OLDEST_VERSION]))
    if has_uses:
        used_up = select(1).where(
            uses.c.buffer_id == over.c.buffer_id,
            uses.c.seq == over.c.seq,
            uses.c.n_uses >= values[MAX_USE],
        )
        # PostgreSQL would make an anti-join of it, over all rows of `uses`.
        held.append(~used_up.correlate(over).offset(0).exists())
    return and_(*held)


def _values(limits: Limits) -> dict[str, Any]:
    return {
        MAX_USE: bindparam(None, limits.max_use, Integer(), unique=True),
        OLDEST_VERSION: bindparam(None, limits.oldest_version, BigInteger(), unique=True),
    }


_PARAMETERS: dict[str, Any] = {
    MAX_USE: bindparam(MAX_USE, type_=Integer()),
    OLDEST_VERSION: bindparam(OLDEST_VERSION, type_=BigInteger()),
}
