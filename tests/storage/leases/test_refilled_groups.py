"""Groups whose rollouts fail, are refilled, and come late."""

import time
from contextlib import suppress

import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import ArgumentError, InsufficientDataError, LeaseLostError

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
GROUP = {"group_by": "task_id", "min_group_size": 3, "timeout_s": 0}


@pytest.fixture(params=LAYOUTS)
def opened(buffer_url, request):
    buffers = []

    def make(**settings):
        settings = {"leases": True, "max_use": 1, **LAYOUTS[request.param], **settings}
        buffers.append(ReplayBuffer(buffer_url, **settings))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.close()


def roll(buffer, key, how="end", n=2):
    episode = buffer.episode("p", episode_id=key)
    for t in range(n):
        episode.append(**{"obs" if buffer.fields else "state": float(t)}, reward=1.0)
    if how == "open":
        buffer.flush()
    else:
        getattr(episode, how)()


def leased(buffer, *, fails=False, **options):
    """Return the episodes of the groups that a lease gets, by group."""
    try:
        with buffer.lease(1, **{**GROUP, **options}) as batch:
            groups = [sorted({row.exp_meta.episode_id for row in group}) for group in batch.groups]
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    return groups


def test_an_aborted_rollout_does_not_count_and_its_refill_joins_the_group(opened):
    buffer = opened()
    for key, how in (("a", "end"), ("b", "end"), ("c", "abort")):
        roll(buffer, key, how)
    with pytest.raises(InsufficientDataError, match=r"of fewer than 3 rollouts \('p': 2\)"):
        leased(buffer)
    with buffer.episode("p", episode_id="c", resume=True) as episode:
        episode.append(**{"obs" if buffer.fields else "state": 2.0}, reward=1.0)
    assert leased(buffer) == [["a", "b", "c"]]
    assert len(buffer) == 0


@pytest.mark.parametrize("how", ["abort", "open"])
def test_incomplete_rollouts_are_handed_out_on_request(opened, how):
    buffer = opened(open_timeout_s=0.05)
    for key in "ab":
        roll(buffer, key)
    roll(buffer, "c", how)
    time.sleep(0.1)
    with pytest.raises(InsufficientDataError):
        leased(buffer)
    assert leased(buffer, min_group_size=2, fails=True) == [["a", "b"]]
    assert leased(buffer, incomplete="include") == [["a", "b", "c"]]


def test_an_aborted_episode_is_no_group_of_its_own(opened):
    buffer = opened()
    roll(buffer, "a", "abort")
    alone = {"group_by": "episode_id", "min_group_size": None}
    with pytest.raises(InsufficientDataError):
        leased(buffer, **alone)
    assert leased(buffer, **alone, incomplete="include") == [["a"]]


@pytest.mark.parametrize("order", ["random", "fifo"])
def test_a_group_that_was_given_back_takes_late_siblings(opened, order):
    buffer = opened()
    for key in "abc":
        roll(buffer, key)
    assert leased(buffer, fails=True, order=order) == [["a", "b", "c"]]
    roll(buffer, "d")
    assert leased(buffer, min_group_size=4, fails=True, order=order) == [["a", "b", "c", "d"]]
    with suppress(LeaseLostError), buffer.lease(1, lease_s=0.2, order=order, **GROUP):
        roll(buffer, "e")
        time.sleep(0.3)  # it runs out
        assert leased(buffer, min_group_size=5, order=order) == [["a", "b", "c", "d", "e"]]


def test_a_group_that_was_acknowledged_is_closed(opened):
    buffer = opened(max_use=2)
    for key in "abc":
        roll(buffer, key)
    assert leased(buffer) == [["a", "b", "c"]]
    for key in "def":
        roll(buffer, key)
    groups = [leased(buffer)[0] for _ in range(3)]
    assert sorted(groups) == [["a", "b", "c"], ["d", "e", "f"], ["d", "e", "f"]]


def test_a_group_waits_for_the_verdict_on_each_of_its_rollouts(opened):
    buffer = opened()
    for key in "abc":
        with buffer.episode("p", episode_id=key) as episode:
            episode.append(**{"obs" if buffer.fields else "state": 0.0}, extra={"of": key})
    for key, call in (
        ("a", lambda: buffer.annotate_episode("a", reward=0.0)),
        ("b", lambda: buffer.annotate(QueryBuilder().eq("episode_id", "b").build(), reward=1.0)),
        ("c", lambda: buffer.annotate_episode("c", reward=1.0)),
    ):
        with pytest.raises(InsufficientDataError, match=r"1 with a rollout that has no reward"):
            leased(buffer, require_reward=True)
        assert leased(buffer, fails=True) == [["a", "b", "c"]], key
        call()
    assert leased(buffer, require_reward=True, fails=True) == [["a", "b", "c"]]
    for number, every in ((1, "well"), (2, "badly")):
        judged = QueryBuilder().eq("extra.judged", every).build()
        with pytest.raises(InsufficientDataError, match="a rollout that does not match `every`"):
            leased(buffer, every=judged)
        buffer.annotate(QueryBuilder().eq("task_id", "p").build(), extra={"judged": every})
        assert leased(buffer, every=judged, fails=True) == [["a", "b", "c"]], number
    for name, value in (("every", judged), ("require_reward", True), ("incomplete", "include")):
        with pytest.raises(ArgumentError, match=f"{name}.* goes with group_by"):
            buffer.lease(1, **{name: value})


def add_alone(buffer):
    """Store three rows without an episode."""
    fields = {"obs": 0.0} if buffer.fields else {}
    rows = [DataRow(ExpMeta("p", step=i), Experience(), fields=fields) for i in range(3)]
    assert buffer.store_batch(rows).inserted == 3


def test_each_row_without_an_episode_is_a_rollout_with_its_own_verdict(opened):
    buffer = opened()
    add_alone(buffer)
    every = QueryBuilder().gt("reward", 0).build()
    for n in (1, 2):
        for asked in ({"require_reward": True}, {"every": every}):
            with pytest.raises(InsufficientDataError):
                leased(buffer, **asked)
        seqs = [row.seq for row in buffer][:n]
        buffer.annotate(seqs, reward=1.0)
    buffer.annotate([row.seq for row in buffer], reward=1.0)
    for asked in ({"require_reward": True}, {"every": every}):
        assert leased(buffer, fails=True, **asked) == [[None]]


def test_a_late_group_is_not_handed_out_without_its_verdicts(opened):
    buffer = opened()
    roll(buffer, "a")
    with buffer.episode("p", episode_id="b") as episode:
        episode.append(**{"obs" if buffer.fields else "state": 0.0})
    late = {"min_group_size": 4, "group_timeout_s": 0.01, "require_reward": True}
    time.sleep(0.1)
    with pytest.raises(InsufficientDataError):
        leased(buffer, **late)
    buffer.annotate_episode("b", reward=1.0)
    assert leased(buffer, **late) == [["a", "b"]]


def test_a_row_that_was_used_alone_stays_in_its_group(opened):
    buffer = opened(max_use=5)
    add_alone(buffer)
    with buffer.lease(1, order="fifo", timeout_s=0):
        pass
    for _ in range(2):
        with buffer.lease(1, **GROUP) as batch:
            assert len(batch) == 3
