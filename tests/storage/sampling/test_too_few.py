"""Where too few rows may be sampled, the error says which ones may not."""

from contextlib import nullcontext

import numpy as np
import pytest

from sqlbuffer import (
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    RateLimiter,
    ReplayBuffer,
    mix,
)
from sqlbuffer.errors import BufferConfigError, InsufficientDataError

FIELDS = {"obs": "float32"}
CALLS = {
    "rows": lambda buffer, sampler, **of: buffer.sample(4, sampler=sampler, strict=True, **of),
    "arrays": lambda buffer, sampler, **of: buffer.sample_arrays(4, sampler=sampler, **of),
    "transitions": lambda buffer, sampler, **of: buffer.sample_transitions(
        4, sampler=sampler, skip_single=True, **of
    ),
    "loader": lambda buffer, sampler, **of: next(
        iter(buffer.loader("step", 4, sampler=sampler, **of))
    ),
}
OTHER_CALLS = {
    "pass": lambda buffer, sampler, **of: next(iter(buffer.loader("step", 4, shuffle=False, **of))),
    "mixture": lambda buffer, sampler, **of: mix({buffer: 1}).sample_arrays(
        4, sampler=sampler, **of
    ),
    "redistributed": lambda buffer, sampler, **of: mix(
        {buffer: 1}, on_empty="redistribute"
    ).sample_arrays(4, sampler=sampler, **of),
    "tasks": lambda buffer, sampler, **of: buffer.sample_tasks(1, strict=True, **of),
}


def why(buffer, call, sampler=None):
    """Return the end of the error of a call, which says what was not drawn."""
    with pytest.raises(InsufficientDataError, match="and 0 match") as caught:
        CALLS[call](buffer, sampler or RandomSampler())
    return str(caught.value).partition("of the rows that match these are not drawn: ")[2]


@pytest.mark.parametrize("call", CALLS)
def test_the_error_counts_steps_that_are_too_old(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=2, max_staleness=3) as buffer:
        buffer.store_episode({"obs": np.zeros(4)}, model_version=1)
        buffer.set_clock(9)
        assert why(buffer, call) == "4 more than 3 behind the clock (max_staleness)"


@pytest.mark.parametrize("call", ["rows", "arrays", "loader"])
def test_the_error_counts_steps_that_are_used_up(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=1, keep_expired=True) as buffer:
        buffer.extend({"obs": np.zeros(3)})
        assert len(buffer.sample(3)) == 3
        assert why(buffer, call) == "3 sampled 1 times (max_use)"


@pytest.mark.parametrize("call", CALLS)
def test_the_error_counts_steps_of_other_sessions(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS, current_session_only=True) as buffer:
        buffer.start_session("first")
        buffer.store_episode({"obs": np.zeros(3)}, session_id="first")
        buffer.start_session("second")
        assert why(buffer, call) == "3 of another session (current_session_only)"


@pytest.mark.parametrize("fields", [None, FIELDS], ids=["rows", "chunks"])
def test_the_error_counts_rows_in_quarantine_that_match(buffer_url, fields):
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        values = {"obs": np.zeros(6)} if fields else {}
        buffer.extend({**values, "reward": np.ones(6), "task_id": ["a", "b"] * 3})
        of_a = QueryBuilder().eq("exp_meta.task_id", "a")
        buffer.quarantine(of_a, reason="broken")
        with pytest.raises(InsufficientDataError, match=r"these are not drawn: 3 in quarantine\n"):
            buffer.sample(4, strict=True)
        of_b = QueryBuilder().eq("exp_meta.task_id", "b")
        with pytest.raises(InsufficientDataError, match=r"and 3 match; .*lower the batch size\n"):
            buffer.sample(4, condition=of_b, strict=True)


def test_the_error_of_transitions_counts_steps_in_no_episode(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        buffer.extend({"obs": np.zeros(5)})
        found = why(buffer, "transitions")
        assert found.startswith("5 in no episode (store_episode or episode() stores")
        assert "declare the field next_obs" in found
        with pytest.raises(InsufficientDataError, match=r"asked for 6, .*lower the batch size\n"):
            buffer.sample(6, strict=True)


def test_a_buffer_below_its_least_size_is_counted(buffer_url):
    with ReplayBuffer(buffer_url, min_size=10) as buffer:
        buffer.add(state=1)
        with pytest.raises(InsufficientDataError, match=r"1 rows, .* from 10 on \(min_size\)"):
            buffer.sample(1)


def test_the_error_of_tasks_counts_their_rows(buffer_url):
    with ReplayBuffer(buffer_url, max_use=1, keep_expired=True) as buffer:
        buffer.add(state=1)
        assert len(buffer.sample_tasks(1, strict=True)) == 1
        with pytest.raises(InsufficientDataError, match=r"1 sampled 1 times \(max_use\)\n"):
            buffer.sample_tasks(1, strict=True)


@pytest.mark.parametrize("call", CALLS)
def test_the_error_of_a_draw_by_priority_names_priorities_of_zero(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True) as buffer:
        buffer.extend({"obs": np.zeros(4)}, priority=0)
        with pytest.raises(InsufficientDataError, match=r"0 match; .*have the priority 0\n"):
            CALLS[call](buffer, PrioritizedSampler())


@pytest.mark.parametrize("call", CALLS)
def test_an_empty_buffer_has_no_priorities_of_zero(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True) as buffer:
        message = refused(buffer, call, PrioritizedSampler())
    assert message.endswith(
        "(nothing has been stored into it); wait for more data or lower the batch size"
    )


def refused(buffer, call, sampler=None, **of):
    """Return the first line of the error of a call."""
    with pytest.raises(InsufficientDataError) as caught:
        {**CALLS, **OTHER_CALLS}[call](buffer, sampler, **of)
    return str(caught.value).splitlines()[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("call", "of"),
    [
        *((call, "rows") for call in ("rows", "loader", "tasks")),
        *((call, "chunks") for call in (*CALLS, *OTHER_CALLS)),
        *((call, "mirror") for call in ("arrays", "transitions", "loader", "pass")),
    ],
)
def test_the_error_says_why_no_row_matches(buffer_url, call, of):
    settings = {"max_capacity": 3, "max_staleness": 3, "fields": None if of == "rows" else FIELDS}
    name = "buffer 'default'"
    with (
        ReplayBuffer(buffer_url, **settings) as buffer,
        buffer.mirror() if of == "mirror" else nullcontext(buffer) as drawn_from,
    ):
        never = refused(drawn_from, call)
        assert f"{name} is empty (nothing has been stored into it)" in never
        field = "reward" if of == "rows" else "obs"
        buffer.store_episode({field: np.zeros(5)}, model_version=1, task_id="t")
        if call not in ("mixture", "redistributed"):
            none = refused(drawn_from, call, condition=QueryBuilder().eq("task_id", "x"))
            assert f"{name} has 3 rows, and none of them matches the condition" in none
        buffer.set_clock(9)
        buffer.expire()
        buffer.store_episode({field: np.zeros(2)}, model_version=9)
        buffer.clear()
        emptied = refused(drawn_from, call)
        assert f"{name} is empty (all rows that were stored have left: 3 expired" in emptied
        assert "(max_staleness), 4 evicted, deleted or rolled back)" in emptied


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_the_error_of_min_size_says_that_a_buffer_is_empty(buffer_url, is_mirrored):
    with (
        ReplayBuffer(buffer_url, fields=FIELDS, min_size=10) as buffer,
        buffer.mirror() if is_mirrored else nullcontext(buffer) as drawn_from,
    ):
        assert "'default' is empty (nothing has been stored into it), and is sampled from 10" in (
            refused(drawn_from, "arrays")
        )
        buffer.extend({"obs": np.zeros(4)})
        assert "'default' holds 4 rows, and is sampled from 10 on" in refused(drawn_from, "arrays")


def test_the_error_of_a_mixture_says_why_a_source_is_empty(buffer_url):
    with (
        ReplayBuffer(buffer_url, "stale", fields=FIELDS, max_staleness=3) as stale,
        ReplayBuffer(buffer_url, "fresh", fields=FIELDS) as fresh,
    ):
        for each in (stale, fresh):
            each.extend({"obs": np.zeros(4)}, model_version=1)
        stale.set_clock(9)
        with pytest.raises(InsufficientDataError, match=r"stale: .*4 more than 3 behind the clock"):
            mix({stale: 1, fresh: 1}).sample_arrays(8)


def test_without_limits_the_error_names_none(buffer_url):
    said = pytest.raises(InsufficientDataError, match=r"and 0 match.*lower the batch size\n")
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer, said:
        buffer.sample_arrays(4)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (PrioritizedSampler, r"the class PrioritizedSampler; make one: PrioritizedSampler\(\)"),
        ("prioritized", "got 'prioritized'"),
    ],
)
def test_what_is_no_sampler_is_refused(call, sampler, said):
    refused = pytest.raises(TypeError, match=said)
    with ReplayBuffer("sqlite://", fields=FIELDS) as buffer, refused:
        CALLS[call](buffer, sampler)


# Settings under which a buffer would never be sampled are refused.


# Lets 30 rows in before any is sampled.
LIMITER = RateLimiter(1, min_size=10, error_buffer=20)


def test_a_capacity_below_min_size_is_refused(buffer_url):
    with pytest.raises(BufferConfigError, match=r"max_capacity=9 never holds the 10 rows"):
        ReplayBuffer(buffer_url, max_capacity=9, min_size=10)
    with ReplayBuffer(buffer_url, max_capacity=10, min_size=10) as buffer:
        with pytest.raises(BufferConfigError, match=r"max_capacity=9 never holds"):
            buffer.resize(9)
        for step in range(10):
            buffer.add(step=step)
        assert len(buffer.sample(10)) == 10
        buffer.resize(None)
        assert buffer.max_capacity is None


def test_a_limiter_that_stops_inserts_below_min_size_is_refused(buffer_url):
    with pytest.raises(BufferConfigError, match=r"lets 30 rows in .*from 31 on.*min_size=31"):
        ReplayBuffer(buffer_url, min_size=31, rate_limiter=LIMITER)
    with ReplayBuffer(buffer_url, min_size=30, rate_limiter=LIMITER, wait_s=0) as buffer:
        for step in range(30):
            buffer.add(step=step)
        assert len(buffer.sample(10)) == 10


def test_a_limiter_that_is_set_later_counts_the_rows_there_are(buffer_url):
    with ReplayBuffer(buffer_url, min_size=31) as buffer:
        with pytest.raises(BufferConfigError, match=r"holds 0 and is sampled from 31 on"):
            buffer.set_rate_limiter(LIMITER)
        assert buffer.flow().policy is None
        buffer.add(step=0)
        buffer.set_rate_limiter(LIMITER)
        assert buffer.flow().policy == LIMITER


def test_one_transition_among_few_steps_is_always_found(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        for n in (1, 1, 1, 1, 2):
            buffer.store_episode({"obs": np.zeros(n)})
        drawn = [buffer.sample_transitions(1).info["seq"][0] for _ in range(200)]
    assert set(drawn) == {5}
