"""Groups whose rollouts fail, are refilled, and come late."""

import time
from contextlib import suppress

import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    ArgumentError,
    EpisodeEndedError,
    FieldError,
    InsufficientDataError,
    LeaseLostError,
)
from tests.support.sql import run

pytestmark = pytest.mark.combinations

GROUP = {"group_by": "task_id", "min_group_size": 3, "timeout_s": 0}


def roll(buffer, key, how="end", n=2, group_id=None, task_id="p"):
    episode = buffer.episode(task_id, episode_id=key, group_id=group_id)
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


BY_GROUP = {**GROUP, "group_by": "group_id", "min_group_size": 2}
EXACTLY = {"group_by": "group_id", "min_group_size": None, "group_size": 2, "order": "fifo"}


def test_rollouts_of_one_group_id_belong_together(opened):
    buffer = opened()
    for key, group in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "2"), ("e", None), ("f", None)):
        roll(buffer, key, group_id=group)
    groups = [leased(buffer, order="fifo", **BY_GROUP)[0] for _ in range(3)]
    assert groups == [["a", "c"], ["b", "d"], ["e", "f"]]
    with pytest.raises(InsufficientDataError):
        leased(buffer, **BY_GROUP)


def test_a_group_id_goes_with_an_episode_and_does_not_change(opened):
    buffer = opened()
    step = {"obs" if buffer.fields else "state": 0.0}
    with pytest.raises(FieldError, match=r"group_id.*give its episode_id too"):
        buffer.add(task_id="p", group_id="g", **step)
    buffer.add(task_id="p", episode_id="a", group_id="g", **step)
    buffer.add(task_id="p", episode_id="a", **step)
    with pytest.raises(FieldError, match="belongs to group 'g', and not to 'h'"):
        buffer.add(task_id="p", episode_id="a", group_id="h", **step)
    with pytest.raises(FieldError, match="belongs to group 'g', and not to 'h'"):
        buffer.episode("p", episode_id="a", group_id="h", resume=True)
    assert [row.exp_meta.group_id for row in buffer] == ["g", "g"]
    assert buffer.store_batch(buffer.get_all()).duplicates == 2
    assert run(buffer.url, "SELECT group_id, n_rollouts FROM group_stats") == [("g", 1)]


def test_plain_sql_names_groups_too(buffer_url):
    with ReplayBuffer(buffer_url):
        insert = (
            "INSERT INTO v_experiences (buffer, task_id, agent_id, step, episode_id, group_id) "
            "VALUES ('default', 'p', 'a', 0, {}, {})"
        )
        run(buffer_url, insert.format("'e'", "'g'"))
        run(buffer_url, insert.format("'e'", "NULL"))
        for episode, group in (("NULL", "'g'"), ("'e'", "'h'")):
            with pytest.raises(Exception, match="group"):
                run(buffer_url, insert.format(episode, group))
    assert run(buffer_url, "SELECT episode_id, group_id FROM v_experiences") == [("e", "g")] * 2


def test_exactly_as_many_rollouts_are_claimed_as_were_asked_for(opened):
    buffer = opened()
    roll(buffer, "open", "open", group_id="g")
    roll(buffer, "aborted", "abort", group_id="g")
    for key in "abcde":
        roll(buffer, key, group_id="g")
    assert leased(buffer, **EXACTLY) == [["a", "b"]]
    assert leased(buffer, **EXACTLY, fails=True) == [["c", "d"]]
    assert leased(buffer, **{**EXACTLY, "order": "random"}) == [["c", "d"]]
    with pytest.raises(InsufficientDataError, match=r"\('g': 1, of which 1 may, 1 open\)"):
        leased(buffer, **EXACTLY)
    for name, value in (("min_group_size", 2), ("group_by", "episode_id")):
        with pytest.raises(ArgumentError, match="group_size"):
            buffer.lease(1, **{"group_by": "task_id", "group_size": 2, name: value})


def test_unjudged_and_stale_rollouts_are_not_among_those_of_an_exact_group(opened):
    buffer = opened(max_staleness=1)
    step = {"obs" if buffer.fields else "state": 0.0}
    for key, version, reward in (("old", 1, 1.0), ("a", 4, 1.0), ("b", 4, None), ("c", 5, 0.0)):
        with buffer.episode("p", episode_id=key, group_id="g", model_version=version) as episode:
            episode.append(**step, reward=reward)
    buffer.set_model_version(5)
    judged = {**EXACTLY, "require_reward": True}
    assert leased(buffer, **judged, fails=True) == [["a", "c"]]
    buffer.annotate_episode("b", reward=1.0)
    assert leased(buffer, **judged, fails=True) == [["a", "b"]]
    with pytest.raises(InsufficientDataError, match=r"stale|behind the clock.*3 versions too old"):
        leased(buffer, **{**BY_GROUP, "min_group_size": 4})


def test_rows_without_an_episode_are_rollouts_of_an_exact_group(opened):
    buffer = opened()
    add_alone(buffer)
    options = {**GROUP, "min_group_size": None, "group_size": 2, "order": "fifo"}
    with buffer.lease(1, **options) as batch:
        assert len(batch) == 2
    assert len(buffer) == 1


@pytest.mark.parametrize("by", ["group_id", "task_id"])
def test_what_comes_after_an_acknowledged_group_is_kept_or_dropped(opened, by):
    buffer = opened(max_use=2)
    options = {**BY_GROUP, "group_by": by, "order": "fifo"}
    for key in "ab":
        roll(buffer, key, group_id="g" if by == "group_id" else None)
    assert leased(buffer, **options, on_late="drop") == [["a", "b"]]
    late = "SELECT late FROM v_groups"
    assert run(buffer.url, late) == [(0,)]
    for key in "cd":
        roll(buffer, key, group_id="g" if by == "group_id" else None)
    roll(buffer, "x", "abort", group_id="g" if by == "group_id" else None)
    assert run(buffer.url, late) == [(2,)]
    assert leased(buffer, **{**options, "order": "stalest"}, fails=True) in (
        [["a", "b"]],
        [["c", "d"]],
    )
    assert leased(buffer, **options, on_late="drop") == [["a", "b"]]
    with pytest.raises(InsufficientDataError):
        leased(buffer, **options, on_late="drop")
    assert {row.exp_meta.episode_id for row in buffer} <= {"x"}


def test_aborted_siblings_of_an_acknowledged_group_leave_and_are_not_continued(opened):
    buffer = opened()
    for key, how in (("a", "end"), ("b", "end"), ("c", "abort")):
        roll(buffer, key, how, group_id="g")
    roll(buffer, "other", "abort", group_id="h")
    assert leased(buffer, **BY_GROUP) == [["a", "b"]]
    assert {row.exp_meta.episode_id for row in buffer} == {"other"}
    with pytest.raises(EpisodeEndedError, match="a lease has used it"):
        buffer.episode("p", episode_id="c", resume=True)
    with buffer.episode("p", episode_id="other", resume=True) as episode:
        assert episode.t == 2


def test_the_queue_says_what_holds_a_group_up(opened):
    buffer = opened(max_staleness=1)
    reasons = "SELECT group_id, rollouts, reason FROM v_queue ORDER BY group_id"
    roll(buffer, "a", group_id="g")
    assert run(buffer.url, reasons) == [("g", 1, None)]
    roll(buffer, "b", "open", group_id="g")
    roll(buffer, "c", "abort", group_id="g")
    with buffer.episode("p", episode_id="d", group_id="h", model_version=1) as episode:
        episode.append(**{"obs" if buffer.fields else "state": 0.0})
    buffer.set_model_version(5)
    assert run(buffer.url, reasons) == [
        ("g", 1, "1 open, 1 aborted or abandoned"),
        ("h", 1, "stale by 3 versions, 1 without a reward"),
    ]
    buffer.quarantine([1])
    (row, *_) = run(buffer.url, reasons)
    assert row == ("g", 1, "1 open, 1 aborted or abandoned, 1 row in quarantine")
    with buffer.lease(1, order="fifo", timeout_s=0):
        (row, *_) = run(buffer.url, reasons)
        assert ", 1 row leased until 20" in row[2]


def test_an_error_names_at_most_five_groups_and_what_each_lacks(opened):
    buffer = opened()
    for i in range(7):
        roll(buffer, f"a{i}", "open", group_id=f"g{i}")
        roll(buffer, f"b{i}", "abort", group_id=f"g{i}")
    with pytest.raises(InsufficientDataError) as caught:
        leased(buffer, **BY_GROUP)
    message = str(caught.value)
    assert "7 with an open episode ('g0': 0 and 1 open, 'g1': 0 and 1 open" in message
    assert "'g4': 0 and 1 open, ...), 7 rollouts were aborted or abandoned ('g0': 1" in message
    assert "'g5'" not in message


PARTIAL = {"on_partial": "drop", "group_timeout_s": 0.01}


def test_an_exact_group_is_not_dropped_for_a_sibling_that_is_not_needed(opened):
    buffer = opened()
    for group in "gh":
        for key in "ab":
            roll(buffer, f"{key}{group}", group_id=group)
        roll(buffer, f"o{group}", "open", group_id=group)
    roll(buffer, "alone", group_id="i")
    time.sleep(0.1)
    assert leased(buffer, **EXACTLY, **PARTIAL) == [["ag", "bg"]]
    assert leased(buffer, **EXACTLY, **PARTIAL) == [["ah", "bh"]]
    with pytest.raises(InsufficientDataError):
        leased(buffer, **EXACTLY, **PARTIAL)
    assert len(buffer) == 0  # also those that were too few


def test_an_exact_group_has_a_rollout_that_matches(opened):
    buffer = opened()
    for key in "abc":
        roll(buffer, key, group_id="g")
    buffer.annotate_episode("c", reward=9.0)
    best = QueryBuilder().gte("episode_reward", 9.0).build()
    assert leased(buffer, **EXACTLY, condition=best, fails=True) == [["a", "c"]]


def test_surplus_rollouts_are_not_late(opened):
    buffer = opened()
    for key in "abcde":
        roll(buffer, key, group_id="g")
    late = {**EXACTLY, "on_late": "drop"}
    assert leased(buffer, **late) == [["a", "b"]]
    assert run(buffer.url, "SELECT late FROM v_groups") == [(0,)]
    assert leased(buffer, **late) == [["c", "d"]]
    with pytest.raises(InsufficientDataError):
        leased(buffer, **late)
    assert {row.exp_meta.episode_id for row in buffer} == {"e"}
    with pytest.raises(ArgumentError, match="an episode has no siblings"):
        buffer.lease(1, group_by="episode_id", on_late="drop")


def test_only_siblings_of_what_was_leased_leave(opened):
    buffer = opened()
    roll(buffer, "a", group_id="g")
    roll(buffer, "b", "abort", group_id="h")
    alone = {"group_by": "episode_id", "min_group_size": None}
    roll(buffer, "c", group_id="h")
    assert leased(buffer, **alone, order="fifo") == [["a"]]
    assert {row.exp_meta.episode_id for row in buffer} == {"b", "c"}
    assert leased(buffer, min_group_size=1) == [["c"]]  # by task, whatever their groups are
    assert len(buffer) == 0


def test_the_queue_takes_any_version(opened):
    buffer = opened(max_staleness=2)
    with buffer.episode("p", episode_id="a", model_version=-(2**63)) as episode:
        episode.append(**{"obs" if buffer.fields else "state": 0.0}, reward=1.0)
    buffer.set_model_version(10)
    ((reason,),) = run(buffer.url, "SELECT reason FROM v_queue")
    assert reason.startswith("stale by 9")


def test_late_rollouts_are_not_handed_out_after_a_time_out_either(opened):
    buffer = opened()
    for key in "abc":
        roll(buffer, key, group_id="g")
    late = {**BY_GROUP, "on_late": "drop", "group_timeout_s": 0.01}
    assert leased(buffer, **late) == [["a", "b", "c"]]
    roll(buffer, "d", group_id="g")
    time.sleep(0.1)
    with pytest.raises(InsufficientDataError):
        leased(buffer, **late)
    assert len(buffer) == 0


def test_incomplete_rollouts_are_among_those_of_an_exact_group_on_request(opened):
    buffer = opened(open_timeout_s=0.05)
    roll(buffer, "a", "open", group_id="g")
    roll(buffer, "b", "abort", group_id="g")
    time.sleep(0.1)
    assert leased(buffer, **EXACTLY, incomplete="include") == [["a", "b"]]
