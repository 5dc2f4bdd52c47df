"""The policies are functions of counts: compared with the formulas that they come from."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer import RateLimiter, RatioWindow
from sqlbuffer.errors import BufferConfigError, SQLBufferError
from sqlbuffer.rate_limits import NO_LIMIT, FlowCounts, policy_to_json, rate_limiter_of

RATIOS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0])  # exact in binary
ROWS = st.integers(0, 5_000)
BATCHES = st.integers(1, 300)


class Reverb:
    """`reverb.rate_limiters.SampleToInsertRatio` and `RateLimiter::CanInsert` and `CanSample`."""

    def __init__(self, samples_per_insert, min_size_to_sample, error_buffer):
        offset = samples_per_insert * min_size_to_sample
        self.ratio, self.min_size = samples_per_insert, min_size_to_sample
        self.min_diff, self.max_diff = offset - error_buffer, offset + error_buffer

    def can_sample(self, inserts, samples, n):
        if inserts < self.min_size:
            return False
        return inserts * self.ratio - samples - n >= self.min_diff

    def can_insert(self, inserts, samples, n):
        if inserts + n <= self.min_size:
            return True
        return (inserts + n) * self.ratio - samples <= self.max_diff


@given(RATIOS, st.integers(1, 1_000), st.integers(16, 4_000), ROWS, ROWS, BATCHES)
def test_the_limiter_says_what_reverb_says(ratio, min_size, error, inserted, sampled, n):
    ours, theirs = RateLimiter(ratio, min_size, error), Reverb(ratio, min_size, error)
    counts = FlowCounts(inserted, sampled)
    assert ours.may_sample(counts, n) == theirs.can_sample(inserted, sampled, n)
    assert ours.may_insert(counts, n) == theirs.can_insert(inserted, sampled, n)


@given(RATIOS, st.integers(1, 1_000), st.integers(16, 4_000), ROWS, ROWS)
def test_the_room_is_the_most_that_may_be_inserted(ratio, min_size, error, inserted, sampled):
    limiter, counts = RateLimiter(ratio, min_size, error), FlowCounts(inserted, sampled)
    room = limiter.room(counts)
    assert room == 0 or limiter.may_insert(counts, room)
    assert not limiter.may_insert(counts, room + 1)


@pytest.mark.thorough
@pytest.mark.slow
@given(RATIOS, st.integers(1, 200), st.integers(16, 900), BATCHES, BATCHES, st.randoms())
def test_one_side_can_always_go_on_where_the_buffer_of_errors_holds_both_batches(
    ratio, min_size, error, n_inserted, n_sampled, random
):
    limiter = RateLimiter(ratio, min_size, max(error, n_sampled + n_inserted * ratio))
    inserted = sampled = 0
    for _ in range(60):
        counts = FlowCounts(inserted, sampled)
        may = [limiter.may_insert(counts, n_inserted), limiter.may_sample(counts, n_sampled)]
        assert any(may)
        if may[0] and (not may[1] or random.random() < 0.5):
            inserted += n_inserted
        else:
            sampled += n_sampled


@given(st.integers(1, 400), RATIOS, st.integers(16, 300), st.sampled_from(["insert", "sample"]))
def test_what_can_never_pass_is_refused_and_nothing_else(n, ratio, error, role):
    limiter = RateLimiter(ratio, 1, error)
    ask = limiter.may_insert if role == "insert" else limiter.may_sample
    # Every state that can be reached lies between the two bounds.
    diffs = range(math.ceil(limiter.min_diff), math.floor(limiter.max_diff) + 1)
    counts = [FlowCounts(1_000, 1_000 * ratio - diff) for diff in diffs]
    possible = any(ask(each, n) for each in counts)
    refusal = limiter.refusal(FlowCounts(1_000, 0), role, n)
    assert (refusal is None) == possible or n * max(1, ratio) > limiter.width - 1
    if refusal is not None:
        assert not possible


def test_the_default_buffer_of_errors_lets_usual_batches_pass():
    for ratio, min_size in [(0.25, 1), (8, 1_000), (32, 100_000)]:
        limiter = RateLimiter(ratio, min_size)
        assert limiter.refusal(FlowCounts(min_size, 0), "sample", 1_000) is None
        assert limiter.refusal(FlowCounts(min_size, 0), "insert", 1_000) is None


@pytest.mark.parametrize("error", [10, (4.0, 36.0), [4, 36]])
def test_bounds_are_around_the_ratio_or_as_given(error):
    limiter = RateLimiter(2, 10, error)
    bounds = (10.0, 30.0) if error == 10 else (4.0, 36.0)
    assert (limiter.min_diff, limiter.max_diff) == bounds


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"samples_per_insert": 0}, "samples_per_insert"),
        ({"samples_per_insert": -1}, "samples_per_insert"),
        ({"samples_per_insert": math.nan}, "samples_per_insert"),
        ({"samples_per_insert": math.inf}, "samples_per_insert"),
        ({"samples_per_insert": True}, "samples_per_insert"),
        ({"samples_per_insert": "2"}, "samples_per_insert"),
        ({"samples_per_insert": None}, "samples_per_insert"),
        ({"samples_per_insert": 1, "min_size": 0}, "min_size"),
        ({"samples_per_insert": 1, "min_size": 1.0}, "min_size"),
        ({"samples_per_insert": 1, "min_size": True}, "min_size"),
        ({"samples_per_insert": 1, "error_buffer": 0}, "error_buffer"),
        ({"samples_per_insert": 1, "error_buffer": math.nan}, "error_buffer"),
        ({"samples_per_insert": 1, "error_buffer": "much"}, "error_buffer"),
        ({"samples_per_insert": 1, "error_buffer": (1,)}, "pair"),
        ({"samples_per_insert": 1, "error_buffer": (5, 1)}, "block both sides"),
        # Reverb refuses these two as well.
        ({"samples_per_insert": 8, "error_buffer": 7}, "block both sides.* 16,"),
        ({"samples_per_insert": 1, "min_size": 100, "error_buffer": (0, 99)}, "100"),
    ],
)
def test_a_limiter_that_cannot_work_is_refused(arguments, said):
    with pytest.raises(BufferConfigError, match=said):
        RateLimiter(**arguments)


class Ding:
    """`ThruputController` of DI-engine: its two counts and what it asks of them."""

    def __init__(self, most, least, window_s):
        self.most, self.least, self.window_s = most, least, window_s
        self.pushed = self.sampled = 0.0

    def second(self):
        factor = 0.01 ** (1 / self.window_s)
        self.pushed, self.sampled = self.pushed * factor, self.sampled * factor

    def can_push(self, n):
        return self.sampled < 1e-5 or (self.pushed + n) / self.sampled <= self.most

    def can_sample(self, n):
        return self.pushed / (self.sampled + n) >= self.least


@given(
    st.lists(st.tuples(st.sampled_from(["push", "sample", "second"]), BATCHES), max_size=60),
    st.sampled_from([0.5, 2.0, math.inf]),
    st.sampled_from([0.0, 0.125, 0.5]),
)
def test_the_window_says_what_di_engine_says(events, most, least):
    if most == math.inf and least == 0:
        least = 0.25
    window, theirs = RatioWindow(most, least, 30), Ding(most, least, 30)
    for kind, n in events:
        counts = FlowCounts(theirs.pushed, theirs.sampled)
        room = window.room(counts)
        assert window.may_sample(counts, n) == theirs.can_sample(n)
        assert window.may_insert(counts, n) == theirs.can_push(n) == (n <= room)
        if kind == "second":
            before = theirs.pushed
            theirs.second()
            assert window.decayed(before, 1.0) == pytest.approx(theirs.pushed)
        elif kind == "push":
            theirs.pushed += n
        else:
            theirs.sampled += n


def test_a_window_keeps_a_hundredth_after_its_seconds():
    assert RatioWindow(max_ratio=1, window_s=12).decayed(500.0, 12.0) == pytest.approx(5.0)
    assert RatioWindow(max_ratio=1).decayed(500.0, -1.0) == 500.0  # a clock that was set back


def test_a_window_without_samples_lets_everything_in():
    assert RatioWindow(max_ratio=0.1).may_insert(FlowCounts(1_000, 0), 10**9)
    assert RatioWindow(max_ratio=0.1).room(FlowCounts(1_000, 0)) == NO_LIMIT


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_ratio": 0},
        {"max_ratio": math.nan},
        {"min_ratio": -0.1},
        {"min_ratio": math.nan},
        {"max_ratio": 1, "min_ratio": 2},
        {"max_ratio": True},
        {"max_ratio": 1, "window_s": 0},
        {"max_ratio": 1, "window_s": math.inf},
        {"max_ratio": "1"},
    ],
)
def test_a_window_that_cannot_work_is_refused(arguments):
    with pytest.raises(BufferConfigError):
        RatioWindow(**arguments)


@pytest.mark.parametrize(
    "policy",
    [
        RateLimiter(4),
        RateLimiter(4, 100, 50),
        RateLimiter(2, 10, (4, 36)),
        RatioWindow(2),
        RatioWindow(min_ratio=0.5, window_s=3),
    ],
)
def test_policies_pickle_and_are_stored(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert rate_limiter_of(policy_to_json(policy)) == policy
    assert hash(policy) == hash(pickle.loads(pickle.dumps(policy)))


def test_the_error_is_a_timeout_and_one_of_the_library():
    from sqlbuffer.errors import FlowControlError

    assert issubclass(FlowControlError, TimeoutError)
    assert issubclass(FlowControlError, SQLBufferError)
