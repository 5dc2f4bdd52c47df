"""Choose single rows for a consumer, and lock them until they are claimed."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, Connection, Select, bindparam, func, select

from sqlbuffer.query.tree import Node
from sqlbuffer.storage.eligibility.eligible_rows import Eligibility
from sqlbuffer.storage.leases.claim_request import (
    COUNT,
    ORDERS,
    SEQS,
    ClaimRequest,
    Order,
    Scope,
    claimable,
    held,
    held_by_key,
    held_unindexed,
    in_buffer,
    in_seqs,
)
from sqlbuffer.storage.leases.tables import queue_items as items
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.rows.statement_cache import remembered

# In a window this narrow all rows are put into a random order: about a millisecond.
SMALL_SPAN = 1_024
PROBE_ROUNDS = 4
# Below this share of hits, one scan over the queue is cheaper than the probes.
LOWEST_HIT_RATE = 1 / 32

_LOWEST = select(func.min(items.c.seq)).where(in_buffer)


def choose_rows(connection: Connection, scope: Scope, wanted: ClaimRequest) -> list[int]:
    """Return up to n rows that may be claimed, in the requested order."""
    probed = _probed(connection, scope, wanted) if wanted.order == "random" else None
    if probed is not None:
        return probed
    statement = _first_rows(scope.limits, wanted.node, wanted.steps, wanted.order)
    return _scalars(connection, statement, scope.parameters(**{COUNT: wanted.n}))


def lowest(connection: Connection, scope: Scope) -> int:
    """Return the number below the first row of the queue, or the lower end of the window."""
    found = scope.first
    if found is None:
        found = connection.execute(_LOWEST, scope.parameters()).scalar_one()
    return scope.low if found is None else max(scope.low, int(found) - 1)


def _probed(connection: Connection, scope: Scope, wanted: ClaimRequest) -> list[int] | None:
    """Return n rows by rejection, uniform over those that may be claimed.

    Return None if too few numbers of the window are such rows.
    """
    assert scope.high is not None
    n, low = wanted.n, lowest(connection, scope)
    span = scope.high - low
    if span <= max(SMALL_SPAN, 4 * n):
        return None
    statement = _among(scope.limits, wanted.node, wanted.steps)
    rng = np.random.default_rng()
    drawn: set[int] = set()
    found: list[int] = []
    size = n
    for _ in range(PROBE_ROUNDS):
        numbers = (low + 1 + (rng.random(size) * span).astype(np.int64)).tolist()
        new = [seq for seq in dict.fromkeys(numbers) if seq not in drawn]
        drawn.update(new)
        hits = set(_scalars(connection, statement, scope.parameters(**{SEQS: new})))
        found += [seq for seq in new if seq in hits]
        if len(found) >= n:
            return found[:n]
        hit_rate = max(len(found) / len(drawn), LOWEST_HIT_RATE)
        size = math.ceil(1.2 * (n - len(found)) / hit_rate) + 4
    return None


@remembered
def _first_rows(limits: Eligibility, node: Node, steps: StepLayout, order: Order) -> Select[Any]:
    by = (func.random(),) if order == "random" else ORDERS[order]
    count = bindparam(COUNT, type_=BigInteger())
    within = held if order in ("random", "fifo") else held_unindexed
    found = select(items.c.seq).where(claimable(limits, node, steps, within))
    return found.order_by(*by).limit(count).with_for_update(skip_locked=True)


@remembered
def _among(limits: Eligibility, node: Node, steps: StepLayout) -> Select[Any]:
    found = select(items.c.seq).where(claimable(limits, node, steps, held_by_key), in_seqs)
    return found.with_for_update(skip_locked=True)


def _scalars(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any]
) -> list[int]:
    return list(connection.execute(statement, parameters).scalars())
