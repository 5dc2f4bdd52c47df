"""Episodes end by their last step, where no writer owns them, or by a call from anywhere."""

import random
from dataclasses import dataclass, field

import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    ArgumentError,
    EpisodeEndedError,
    EpisodeNotFoundError,
    FieldError,
    InsufficientDataError,
)
from tests.support.sql import run

pytestmark = pytest.mark.combinations

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
STATES = (
    "SELECT episode_id, status, length, episode_return, reward FROM v_episodes "
    "WHERE buffer = 'default' ORDER BY episode_id"
)


@pytest.fixture(params=LAYOUTS)
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, leases=True, max_use=1, **LAYOUTS[request.param]) as buffer:
        yield buffer


def step(buffer, value=0.0, **more):
    return {"obs": value, **more} if buffer.fields else {"state": value, **more}


def add(buffer, key="e", **values):
    return buffer.add(task_id="t", episode_id=key, **step(buffer, **{"reward": 1.0, **values}))


def states(buffer):
    return {key: tuple(rest) for key, *rest in run(buffer.url, STATES)}


@dataclass
class Model:
    """One episode: what is stored of it, and what became of it."""

    steps: list = field(default_factory=list)  # (step, place, ends, reward)
    status: str = "open"
    is_implied: bool = False
    is_used: bool = False
    is_of_rows: bool = False
    n_written: int = 0
    total: float = 0.0
    ts: dict = field(default_factory=dict)  # of rows: their places in the episode
    shown: tuple = ("open", None, None)

    @property
    def takes_steps(self):
        return self.status == "open" or (self.is_implied and not self.is_used)

    def take(self, new):
        for one in sorted(new):
            # A late row takes its place; a deleted one leaves a gap, unless it was the last.
            t = min((t for step, t in self.ts.items() if step > one), default=None)
            if t is None:
                t = max(self.ts.values(), default=-1) + 1
            else:
                self.ts = {step: at + (at >= t) for step, at in self.ts.items()}
            self.ts[one] = t
        self.steps += new
        self.n_written += len(new)
        self.total += sum(reward for *_, reward in new)
        last_new, last = max(new), max(self.steps)
        if self.status == "open" and not last_new[2]:
            return
        if last_new == last and not last[2]:
            self.status, self.is_implied, self.shown = "open", False, ("open", None, None)
        elif last_new == last or self.status != "open":
            self.settle("complete", is_implied=True)

    def settle(self, status, *, is_implied):
        self.status, self.is_implied = status, is_implied
        self.shown = (status, self.length, self.total)

    @property
    def length(self):
        return max(self.ts.values(), default=-1) + 1 if self.is_of_rows else self.n_written


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_every_reader_knows_how_each_episode_stands(buffer, seed):
    rng = random.Random(seed)
    models = {key: Model(is_of_rows=not buffer.fields) for key in "abcd"}
    places, next_step = 0, dict.fromkeys(models, 0)
    for _ in range(120):
        key = rng.choice(list(models))
        model = models[key]
        what = rng.choice(["add", "add", "extend", "batch", "end", "use", "delete", "again"])
        if what in ("add", "extend", "batch"):
            n = 1 if what == "add" else rng.randint(1, 4)
            steps = list(range(next_step[key], next_step[key] + n))
            if not buffer.fields and rng.random() < 0.3:  # rows come in any order
                steps = [rng.randint(0, next_step[key] + 3) for _ in range(n)]
            ends = [rng.random() < 0.35 for _ in range(n)]
            rewards = [float(rng.randint(-3, 3)) for _ in range(n)]
            if model.takes_steps:
                store(buffer, what, key, steps, ends, rewards)
                new = [
                    (s, places + i, e, r)
                    for i, (s, e, r) in enumerate(zip(steps, ends, rewards, strict=True))
                ]
                places += n
                next_step[key] = max(next_step[key], max(steps) + 1)
                model.take(new)
            else:
                with pytest.raises(
                    EpisodeEndedError, match=f"episode '{key}' of task 't' has ended"
                ):
                    store(buffer, what, key, steps, ends, rewards)
        elif what == "end" and model.n_written and rng.random() < 0.3:
            end(buffer, key, model, rng.choice(["complete", "aborted"]))
        elif what == "use" and rng.random() < 0.3:
            use(buffer, key, model)
        elif what == "delete" and len(model.steps) > 2 and rng.random() < 0.3:
            delete_one(buffer, key, model, rng.choice(model.steps)[0])
        expected = {k: m.shown for k, m in models.items() if m.n_written or m.status != "open"}
        found = {key: shown[:3] for key, shown in states(buffer).items() if key in expected}
        assert found == expected


def end(buffer, key, model, status):
    if model.status == "open" or model.is_implied:
        assert buffer.end_episode(key, "t", status=status)
        model.settle(status, is_implied=False)
    elif model.status == status:
        assert not buffer.end_episode(key, "t", status=status)
    else:
        with pytest.raises(EpisodeEndedError, match=f"status '{model.status}', and not"):
            buffer.end_episode(key, status=status)


def delete_one(buffer, key, model, number):
    of_step = QueryBuilder().eq("episode_id", key).and_().eq("step", number).build()
    n_gone = sum(step == number for step, *_ in model.steps)
    assert buffer.delete(of_step) == n_gone
    model.total -= sum(reward for step, *_, reward in model.steps if step == number)
    model.steps = [one for one in model.steps if one[0] != number]
    model.ts = {one: t for one, t in model.ts.items() if one[0] != number}


def store(buffer, what, key, steps, ends, rewards):
    columns = {
        **step(buffer, [float(s) for s in steps]), "step": steps, "terminated": ends,
        "reward": rewards,
    }  # fmt: skip
    if what == "add":
        return buffer.add(
            task_id="t", episode_id=key, **step(buffer, float(steps[0])), step=steps[0],
            terminated=ends[0], reward=rewards[0],
        )  # fmt: skip
    if what == "extend" or buffer.fields:
        return buffer.extend(columns, task_id="t", episode_id=key)
    from sqlbuffer import DataRow, Experience, ExpMeta

    return buffer.store_batch(
        DataRow(
            ExpMeta("t", step=s, episode_id=key),
            Experience(state=float(s), reward_t=r, terminated=e),
        )
        for s, e, r in zip(steps, ends, rewards, strict=True)
    )


def use(buffer, key, model):
    """Lease an episode and acknowledge it; one that is open, or was used, is not handed out."""
    condition = QueryBuilder().eq("episode_id", key).build()
    ask = {"group_by": "episode_id", "timeout_s": 0}
    is_whole = model.steps and model.status == "complete" and not model.is_used
    try:
        with buffer.lease(1, condition=condition, **ask) as batch:
            assert is_whole
            assert len(batch) == len(model.steps)
            with pytest.raises(EpisodeEndedError):
                add(buffer, key, step=10_000)
        model.is_used = True
        model.steps = []
    except InsufficientDataError:
        # One that lost steps by a delete is not whole.
        assert not is_whole or len(model.steps) < model.shown[1]


def test_flags_of_a_writer_end_nothing_before_its_end(buffer):
    with buffer.episode("t", episode_id="e") as episode:
        episode.append(**step(buffer), reward=1.0, terminated=True)
        buffer.flush()
        assert states(buffer) == {"e": ("open", None, None, None)}
        with (
            pytest.raises(InsufficientDataError),
            buffer.lease(1, group_by="episode_id", timeout_s=0),
        ):
            pass
        episode.append(**step(buffer), reward=1.0, truncated=True)
    assert states(buffer) == {"e": ("complete", 2, 2.0, None)}
    with pytest.raises(
        EpisodeEndedError, match=r"has ended.*another episode_id, or delete it first"
    ):
        add(buffer)
    assert len(buffer) == 2


def test_a_duplicate_changes_nothing(buffer):
    rows = [list(buffer)] if add(buffer, step=0, terminated=True) is None else None
    assert rows is None
    copied = list(buffer)
    assert buffer.store_batch(copied).duplicates == 1
    assert states(buffer) == {"e": ("complete", 1, 1.0, None)}
    add(buffer, step=1)
    assert buffer.store_batch(copied).duplicates == 1
    assert states(buffer) == {"e": ("open", None, None, None)}


def test_an_episode_that_lost_steps_takes_no_more(buffer_url):
    for name, layout in LAYOUTS.items():
        with ReplayBuffer(buffer_url, name, max_capacity=4, **layout) as buffer:
            for i in range(3):
                add(buffer, step=i, terminated=i == 2)
            store(buffer, "extend", "f", [0, 1, 2], [False] * 3, [0.0] * 3)
            with pytest.raises(EpisodeEndedError, match="it is complete"):
                add(buffer, step=3)
            assert len(buffer) == 4


def test_an_end_says_what_differs_from_the_stored_one(buffer):
    add(buffer)
    more = {"reward": 2.0, "meta": {"level": 3}}
    assert buffer.end_episode("e", **more)
    assert not buffer.end_episode("e", "t", **more)
    assert not buffer.end_episode("e")
    assert states(buffer) == {"e": ("complete", 1, 1.0, 2.0)}
    for other, named in (
        ({"status": "aborted"}, "status 'complete', and not 'aborted'"),
        ({"reward": 0.0}, "reward 2.0, and not 0.0"),
        ({"meta": {"level": 4}}, 'level": ?3.*level": ?4'),
    ):
        with pytest.raises(EpisodeEndedError, match=named):
            buffer.end_episode("e", **other)
    buffer.annotate_episode("e", reward=0.0, meta={"level": 4})
    assert not buffer.end_episode("e", reward=0.0, meta={"level": 4})
    for call in (buffer.end_episode, lambda key: buffer.annotate_episode(key, reward=1.0)):
        with pytest.raises(EpisodeNotFoundError, match="no episode 'x'"):
            call("x")
    buffer.add(task_id="other", episode_id="e", **step(buffer))
    with pytest.raises(FieldError, match=r"2 tasks have an episode with this id \('other', 't'\)"):
        buffer.annotate_episode("e", reward=1.0)
    with pytest.raises(ArgumentError, match="status is one of complete, aborted"):
        buffer.end_episode("e", "t", status="open")
    with pytest.raises(FieldError, match=r"^reward: expected finite numbers, got 'high'"):
        buffer.end_episode("e", "t", reward="high")


def test_many_episodes_end_together_or_not_at_all(buffer):
    for key in "abc":
        add(buffer, key)
    buffer.end_episode("c", status="aborted")
    with pytest.raises(EpisodeEndedError, match="episode 'c'"):
        buffer.end_episodes(["a", "b", "c"], rewards=[1.0, 2.0, 3.0])
    assert [state[0] for state in states(buffer).values()] == ["open", "open", "aborted"]
    assert buffer.end_episodes(["a", "none", "b"], rewards=[1.0, 5.0, None]) == 2
    assert buffer.annotate_episodes(["b", "none"], [0.5, 1.0]) == 1
    assert [state[3] for state in states(buffer).values()] == [1.0, 0.5, None]


def test_a_writer_is_told_that_its_episode_was_ended(buffer):
    episode = buffer.episode("t", episode_id="e")
    episode.append(**step(buffer), reward=1.0)
    assert buffer.end_episode("e", status="aborted")
    episode.append(**step(buffer), reward=1.0)
    with pytest.raises(EpisodeEndedError, match="it is aborted"):
        episode.end()
    assert states(buffer) == {"e": ("aborted", 1, 1.0, None)}
    other = buffer.episode("t")
    other.append(**step(buffer))
    other.end()
    buffer.flush()
    assert len(buffer) == 2


def test_a_writer_is_told_that_its_episode_has_another_reward(buffer):
    episode = buffer.episode("t", episode_id="e")
    episode.append(**step(buffer), reward=1.0)
    assert buffer.end_episode("e", reward=2.0)
    with pytest.raises(EpisodeEndedError, match=r"reward 2\.0, and not 3\.0; annotate_episode"):
        episode.end(reward=3.0)
    assert states(buffer)["e"][3] == 2.0


def test_plain_sql_ends_an_episode_too(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        add(buffer)
        insert = (
            "INSERT INTO v_experiences "
            "(buffer, task_id, agent_id, step, episode_id, reward, terminated) "
            "VALUES ('default', 't', 'a', {}, '{}', 2.0, {})"
        )
        run(buffer_url, insert.format(1, "e", "true"))
        assert states(buffer) == {"e": ("complete", 2, 3.0, None)}
        run(buffer_url, insert.format(2, "e", "false"))
        run(buffer_url, insert.format(0, "new", "true"))
        assert states(buffer) == {
            "e": ("open", None, None, None),
            "new": ("complete", 1, 2.0, None),
        }
        buffer.end_episode("e")
        with pytest.raises(Exception, match="the episode has ended"):
            run(buffer_url, insert.format(3, "e", "false"))
        assert len(buffer) == 4


def test_a_mirror_sees_ends_as_draws_by_sql_do(buffer_url):
    with ReplayBuffer(buffer_url, **LAYOUTS["typed"]) as buffer, buffer.mirror() as mirror:
        for key, first in (("a", 0), ("b", 10)):
            for i in range(4):
                add(buffer, key, step=i, obs=float(first + i), terminated=i == 3)
        add(buffer, "b", step=4, obs=14.0)
        for source in (buffer, mirror):
            assert set(source.sample_transitions(300).obs.tolist()) == {0, 1, 2, 3, 10, 11, 12, 13}
        buffer.end_episode("a", status="aborted")
        for source in (buffer, mirror):
            assert set(source.sample_transitions(300).obs.tolist()) == {10, 11, 12, 13}
            assert set(source.sample_arrays(300).obs.tolist()) == {0, 1, 2, 3, 10, 11, 12, 13, 14}
        buffer.end_episode("b", final={"obs": 19.0})
        for source in (buffer, mirror):
            batch = source.sample_transitions(200)
            assert set(batch.next_obs[batch.obs == 14.0].tolist()) == {19.0}


VERDICTS = "SELECT episode_id, version, reward FROM v_verdicts ORDER BY episode_id, version"


def test_the_verdict_of_the_highest_version_counts_and_all_are_kept(buffer):
    for key in "ab":
        with buffer.episode("t", episode_id=key) as episode:
            episode.append(**step(buffer))
            episode.end(reward=0.5 if key == "a" else None)
    buffer.annotate_episodes(["a", "b"], [1.0, 2.0], version=7)
    buffer.annotate_episodes(["a", "b"], [1.0, 2.0], version=7)  # after a time-out
    assert buffer.annotate_episodes(["a", "b"], [8.0, None], version=3, metas=[{"x": 1}] * 2) == 2
    rewards = {key: state[3] for key, state in states(buffer).items()}
    assert rewards == {"a": 1.0, "b": 2.0}
    assert [m for (m,) in run(buffer.url, "SELECT meta FROM v_episodes")] == [None, None]
    assert run(buffer.url, VERDICTS) == [
        ("a", 0, 0.5), ("a", 3, 8.0), ("a", 7, 1.0), ("b", 3, None), ("b", 7, 2.0),
    ]  # fmt: skip
    buffer.annotate_episode("b", reward=-1.0)
    buffer.annotate_episode("a", reward=4.0, version=7)
    assert {key: state[3] for key, state in states(buffer).items()} == {"a": 4.0, "b": -1.0}
    assert run(buffer.url, VERDICTS)[2:] == [
        ("a", 7, 4.0), ("b", 3, None), ("b", 7, 2.0), ("b", 8, -1.0),
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="version"):
        buffer.annotate_episode("a", reward=1.0, version="new")


def test_an_episode_is_named_once_in_a_call(buffer):
    add(buffer, "e")
    with pytest.raises(FieldError, match="episode 'e' of task 't' is named twice"):
        buffer.annotate_episodes(["e", "e"], [1.0, 2.0])
    with pytest.raises(FieldError, match="is named twice"):
        buffer.end_episodes(["e", "e"], task_ids=["t", None])
    assert states(buffer)["e"] == ("open", None, None, None)


def test_a_verdict_counts_over_the_reward_of_a_later_end(buffer):
    writer = buffer.episode("t", episode_id="a")
    writer.append(**step(buffer))
    buffer.flush()
    buffer.annotate_episode("a", reward=0.25, version=4)
    writer.end(reward=0.5)
    assert states(buffer)["a"][3] == 0.25
    add(buffer, "b")
    buffer.annotate_episode("b", reward=0.25)
    assert buffer.end_episode("b", reward=0.5)
    assert not buffer.end_episode("b", reward=0.5)
    assert states(buffer)["b"][3] == 0.25


def test_a_continued_episode_has_no_verdict_any_more(buffer):
    writer = buffer.episode("t", episode_id="a")
    writer.append(**step(buffer))
    writer.abort()
    buffer.annotate_episode("a", reward=0.25, version=4)
    with buffer.episode("t", episode_id="a", resume=True) as writer:
        writer.append(**step(buffer))
    assert run(buffer.url, VERDICTS) == []
    buffer.annotate_episode("a", reward=0.75, version=3)
    assert states(buffer)["a"][3] == 0.75


def test_values_have_versions_too(buffer):
    add(buffer, "a", terminated=True)
    buffer.annotate_episode("a", meta={"level": 9}, version=9)
    buffer.annotate_episode("a", meta={"level": 3}, reward=1.0, version=3)
    ((meta, reward),) = run(buffer.url, "SELECT meta, reward FROM v_episodes")
    assert (str(meta).replace(" ", "").replace("'", '"'), reward) == ('{"level":9}', None)
    assert run(buffer.url, VERDICTS) == [("a", 3, 1.0), ("a", 9, None)]
    buffer.annotate_episode("a", reward=2.0, version=9)
    assert states(buffer)["a"][3] == 2.0
    for version in (0, -1):
        with pytest.raises(ArgumentError, match="version"):
            buffer.annotate_episode("a", reward=1.0, version=version)
    buffer.annotate_episode("a", reward=3.0, version=2**63 - 1)
    with pytest.raises(FieldError, match="has the highest version"):
        buffer.annotate_episode("a", reward=4.0)
