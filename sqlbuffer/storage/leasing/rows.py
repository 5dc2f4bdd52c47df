"""Which rows a consumer gets, each by itself; those chosen are locked until the claim is done."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, bindparam, func, select

from sqlbuffer.storage import functions as fn
from sqlbuffer.storage.leasing.wanted import ORDERS, Scope, Wanted
from sqlbuffer.storage.models import queue_items as items
from sqlbuffer.storage.types import SeqList

# Of a window this narrow all rows are put into a random order: about a millisecond.
SMALL_SPAN = 1_024
PROBE_ROUNDS = 4
# Below this share of hits, one scan over the queue is cheaper than the probes.
LOWEST_HIT_RATE = 1 / 32


def choose_rows(connection: Connection, scope: Scope, wanted: Wanted) -> list[int]:
    """Return up to n rows that may be claimed, in the order asked for."""
    found = select(items.c.seq).where(scope.claimable).limit(wanted.n)
    if wanted.order != "random":
        return _locked(connection, found.order_by(*ORDERS[wanted.order]))
    probed = _probed(connection, scope, wanted.n)
    return _locked(connection, found.order_by(func.random())) if probed is None else probed


def one_of(seqs: Sequence[int]) -> Any:
    """Return the expression for a row of the queue having one of the numbers."""
    return fn.is_number_of(items.c.seq, bindparam(None, list(seqs), SeqList(), unique=True))


def lowest(connection: Connection, scope: Scope) -> int:
    """Return the number below the first row of the queue, or the lower end of the window."""
    own = (items.c.buffer_id == scope.buffer_id) & (items.c.seq > scope.low)
    first = select(items.c.seq).where(own).order_by(items.c.seq).limit(1)
    found = connection.execute(first).scalar_one_or_none()
    return scope.low if found is None else int(found) - 1


def _probed(connection: Connection, scope: Scope, n: int) -> list[int] | None:
    """Return n rows by rejection, uniform over those that may be claimed; None where numbers of the
    window are too seldom such rows.
    """
    assert scope.high is not None
    low = lowest(connection, scope)
    span = scope.high - low
    if span <= max(SMALL_SPAN, 4 * n):
        return None
    rng = np.random.default_rng()
    drawn: set[int] = set()
    found: list[int] = []
    size = n
    for _ in range(PROBE_ROUNDS):
        numbers = (low + 1 + (rng.random(size) * span).astype(np.int64)).tolist()
        new = [seq for seq in dict.fromkeys(numbers) if seq not in drawn]
        drawn.update(new)
        hits = set(_locked(connection, select(items.c.seq).where(scope.claimable, one_of(new))))
        found += [seq for seq in new if seq in hits]
        if len(found) >= n:
            return found[:n]
        hit_rate = max(len(found) / len(drawn), LOWEST_HIT_RATE)
        size = math.ceil(1.2 * (n - len(found)) / hit_rate) + 4
    return None


def _locked(connection: Connection, statement: Select[Any]) -> list[int]:
    return list(connection.execute(statement.with_for_update(skip_locked=True)).scalars())
