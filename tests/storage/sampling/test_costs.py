"""What is not asked for costs nothing, and what is asked for no more than it must."""

import re
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from sqlbuffer import RandomSampler, ReplayBuffer
from sqlbuffer.storage.eligibility import oldest_version
from tests.support.limited_rows import FIELDS, store_episodes
from tests.support.statements import selects

CALLS = {
    "arrays": lambda buffer: buffer.sample_arrays(4),
    "transitions": lambda buffer: buffer.sample_transitions(4, n_step=2),
    "tasks": lambda buffer: buffer.sample_tasks(2),
    "windows": lambda buffer: next(iter(buffer.loader("window", 4, length=2))),
    "trajectories": lambda buffer: next(iter(buffer.loader("trajectory", 2))),
}


@contextmanager
def writes(buffer):
    """Note the statements that change something."""
    engine, noted = buffer._store.engine, []

    def note(_connection, _cursor, statement, *_):
        if statement.split()[0] in ("INSERT", "UPDATE", "DELETE"):
            noted.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(engine, "before_cursor_execute", note)


@pytest.mark.parametrize("call", CALLS)
def test_statements_know_of_no_limit_where_there_is_none(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        store_episodes(buffer, [[1] * 6] * 4)
        buffer.set_clock(9)
        with selects(buffer) as noted, writes(buffer) as written:
            CALLS[call](buffer)
        # The window comes with what limits would go by, and a step of a chunk with its version.
        whole = " ".join(text for text in noted if "FROM v_windows" not in text)
        assert whole
        whole = whole.replace("c.model_version AS model_version", "")
        if buffer._store.info.has_chunks:
            # Steps of chunks are a table of all their columns: those not used cost nothing.
            whole = re.sub(
                r"\bc\.model_version AS model_version|\bmodel_version, first_time", "", whole
            )
        named = "uses" in whole or "clock" in whole or (call != "tasks" and "version" in whole)
        assert not named, whole
        assert not written


@pytest.mark.thorough
@pytest.mark.parametrize("call", CALLS)
def test_a_limit_of_age_costs_no_statement_more(buffer_url, call):
    numbers = []
    for name, limits in (("free", {}), ("limited", {"max_staleness": 1})):
        with ReplayBuffer(buffer_url, name=name, fields=FIELDS, **limits) as buffer:
            store_episodes(buffer, [[1] * 6] * 4)
            buffer.set_clock(1)
            with selects(buffer) as noted, writes(buffer) as written:
                CALLS[call](buffer)
            assert not written
            numbers.append(len(noted))
    assert numbers[0] == numbers[1]


def test_a_counted_batch_that_is_noted_writes_twice(sqlite_url):
    # The counts go past SQLAlchemy on both databases.
    with ReplayBuffer(sqlite_url, fields=FIELDS, max_use=9, track_samples=True) as buffer:
        store_episodes(buffer, [[1] * 6] * 4)
        one = RandomSampler(seed=1)
        buffer.sample_arrays(4, sampler=one)  # looks for old notes
        with writes(buffer) as written:
            buffer.sample_arrays(4, sampler=one)
        assert [statement.split()[2] for statement in written] == ["samples"]


@pytest.mark.parametrize(
    ("clock", "max_staleness", "oldest"),
    [
        (None, 3, None),
        (5, None, None),
        (5, 3, 2),
        (5, 0, 5),
        (-(2**63), 1, -(2**63)),
        (2**63 - 1, 2**63 - 1, 0),
    ],
)
def test_the_oldest_version_that_may_be_sampled(clock, max_staleness, oldest):
    assert oldest_version(clock, max_staleness) == oldest
