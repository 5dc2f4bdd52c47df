"""Where too few rows may be sampled, the error says which ones may not."""

import numpy as np
import pytest

from sqlbuffer import PrioritizedSampler, RandomSampler, ReplayBuffer
from sqlbuffer.errors import InsufficientDataError

FIELDS = {"obs": "float32"}
CALLS = {
    "rows": lambda buffer, sampler: buffer.sample(4, sampler=sampler, strict=True),
    "arrays": lambda buffer, sampler: buffer.sample_arrays(4, sampler=sampler),
    "transitions": lambda buffer, sampler: buffer.sample_transitions(4, sampler=sampler),
    "loader": lambda buffer, sampler: next(iter(buffer.loader("step", 4, sampler=sampler))),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_error_names_the_limits_of_use_and_staleness(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_use=2, max_staleness=3) as buffer:
        buffer.extend({"obs": np.zeros(4)}, model_version=1)
        buffer.set_clock(9)
        limits = r"sampled 2 times \(max_use\) or are more than 3 behind the clock \(max_stale"
        with pytest.raises(InsufficientDataError, match=f"0 match; .*{limits}"):
            CALLS[call](buffer, RandomSampler())


def test_the_error_of_tasks_names_the_limits(buffer_url):
    said = pytest.raises(InsufficientDataError, match=r"sampled 1 times \(max_use\)$")
    with ReplayBuffer(buffer_url, max_use=1) as buffer, said:
        buffer.sample_tasks(1, strict=True)


@pytest.mark.parametrize("call", CALLS)
def test_the_error_of_a_draw_by_priority_names_priorities_of_zero(buffer_url, call):
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True) as buffer:
        buffer.extend({"obs": np.zeros(4)}, priority=0)
        with pytest.raises(InsufficientDataError, match=r"0 match; .*have the priority 0$"):
            CALLS[call](buffer, PrioritizedSampler())


def test_without_limits_the_error_names_none(buffer_url):
    said = pytest.raises(InsufficientDataError, match=r"lower the batch size$")
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer, said:
        buffer.sample_arrays(4)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (PrioritizedSampler, r"the class PrioritizedSampler; make one: PrioritizedSampler\(\)"),
        ("prioritized", "got str"),
    ],
)
def test_what_is_no_sampler_is_refused(call, sampler, said):
    refused = pytest.raises(TypeError, match=said)
    with ReplayBuffer("sqlite://", fields=FIELDS) as buffer, refused:
        CALLS[call](buffer, sampler)
