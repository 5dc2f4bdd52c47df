"""Conditions and samplers print what they do."""

import pytest

from sqlbuffer import FifoSampler, LatestSampler, QueryBuilder, RandomSampler, RandomTaskSample


@pytest.mark.parametrize(
    ("builder", "shown"),
    [
        (QueryBuilder(), "QueryBuilder(empty)"),
        (QueryBuilder().eq("task_id", "t1"), "QueryBuilder(task_id eq 't1')"),
        (
            QueryBuilder().gt("step", 3).or_().is_null("state.x"),
            "QueryBuilder(step gt 3 or state.x is_null)",
        ),
    ],
)
def test_a_condition_prints_its_comparisons(builder, shown):
    assert repr(builder) == shown


def test_a_long_condition_prints_in_short():
    assert len(repr(QueryBuilder().in_("step", list(range(100_000))))) < 100


def test_a_chain_that_is_not_finished_prints():
    builder = QueryBuilder().eq("step", 1).and_()
    assert repr(builder) == "QueryBuilder(step eq 1)"
    assert repr(builder.nested(QueryBuilder().eq("id", 1))) == "QueryBuilder(step eq 1 and id eq 1)"


def test_a_sampler_prints_its_arguments():
    assert repr(RandomSampler(replace=True, seed=7)) == "RandomSampler(replace=True, seed=7)"
    assert repr(RandomTaskSample(seed=7)) == "RandomTaskSample(seed=7)"
    assert (repr(FifoSampler()), repr(LatestSampler())) == ("FifoSampler()", "LatestSampler()")
