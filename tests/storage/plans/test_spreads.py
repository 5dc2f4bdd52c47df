"""A skipped group costs the next claim nothing (I9): at 100,000 groups, with and without
statistics.
"""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer
from sqlbuffer.storage.leases.choosing import ClaimRequest, GroupChoice, Scope
from sqlbuffer.storage.rows.layouts import ROWS
from tests.storage.plans.test_leases import Cost
from tests.support.sql import fill

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_GROUPS, N_GOOD = 50_000, 100
MOST_ROWS_READ = 25_000
MOST_STEPS = 700_000
TABLES = "('experiences', 'episodes', 'queue_items', 'leases', 'rollout_stats', 'queue_groups')"


def fill_large(url):
    """Fill a buffer of 50,000 groups of two rows, of which 100 differ in their rewards."""
    with fill(url, 2 * N_GROUPS, rows_per_task=2, leases=True, max_use=2) as buffer:
        good = range(N_GROUPS, 2 * N_GROUPS, N_GROUPS // N_GOOD)
        buffer.annotate(list(good), reward=[float(1 + i) for i in range(N_GOOD)])
        with pytest.raises(InsufficientDataError, match=f" {N_GOOD} groups may be claimed"):
            buffer.lease(
                N_GOOD + 1, group_by="task_id", min_spread=0.0, order="fifo", timeout_s=0
            ).take()


@pytest.fixture(scope="module")
def large(large_url):
    with ReplayBuffer(large_url) as buffer:
        yield buffer


ORDERS = ("random", "fifo", "freshest", "stalest", "spread", "least_used")


def choice_of(connection, buffer, request):
    store = buffer._store
    now = store.source.window_answered(answer(connection))
    return GroupChoice(connection, Scope(store.info.id, now.low, now.high), request)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("min_spread", [0.0, None], ids=["groups with a spread", "all groups"])
def test_claims_do_not_read_skipped_groups(large, order, min_spread):
    request = ClaimRequest(
        8, 60.0, order=order, group_by="task_id", min_spread=min_spread, is_reused=True,
        needs_rewards=min_spread is not None, steps=ROWS,
    )  # fmt: skip
    store = large._store
    with translated(store.url), store.leases.claiming() as connection:
        choice = choice_of(connection, large, request)
        with Cost(connection, TABLES) as cost:
            found = choice.choose()
            choice.settle()
    assert len(found) == 8
    assert cost.scanned == 0
    assert cost.fetched < MOST_ROWS_READ
    assert cost.steps < MOST_STEPS
    assert cost.fetched or cost.steps


@pytest.mark.parametrize("min_spread", [0.0, 1_000.0], ids=["some", "none"])
def test_waiting_claims_do_not_read_skipped_groups(large, min_spread):
    request = ClaimRequest(
        1, 60.0, order="fifo", group_by="task_id", min_spread=min_spread, needs_rewards=True,
        steps=ROWS,
    )  # fmt: skip
    store = large._store
    with translated(store.url), store.leases.claiming() as connection:
        now = store.source.window_answered(answer(connection))
        scope = Scope(store.info.id, now.low, None)
        with Cost(connection, TABLES) as cost:
            choice = GroupChoice(connection, scope, request)
            assert choice.may_suffice() == (min_spread == 0.0)
            assert len(choice.choose()) == choice.may_suffice()
    assert cost.scanned == 0
    assert cost.fetched < MOST_ROWS_READ
    assert cost.steps < MOST_STEPS
