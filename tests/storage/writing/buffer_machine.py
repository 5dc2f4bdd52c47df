"""Random public calls of two writers, plain SQL between them, and a model beside it all.

Steps are told apart by small numbers, so that a falsifying program can be read and typed.
"""

import itertools
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from sqlalchemy.orm import Session

from sqlbuffer import (
    DataRow,
    Experience,
    ExpMeta,
    PrioritizedSampler,
    ReplayBuffer,
    orm,
)
from sqlbuffer.errors import EpisodeExistsError
from tests.storage.writing.buffer_model import ALPHA, Episode, Model, Step
from tests.storage.writing.ways_of_looking import OF_FIELDS, OF_JSON, Looks
from tests.support.proxy import Proxy, proxied
from tests.support.sql import connected, is_sqlite, plain_engine, run

NEVER_S = 1_000.0  # no timer has a part in it
FIELDS = {
    "obs": ("float32", (2,)),
    "big": "uint64",
    "tokens": ("int16", (-1,)),
    "level": {"dtype": "int64", "column": True},
}
LIMITS = [
    {},
    {"max_use": 2},
    {"max_staleness": 1},
    {"current_session_only": True, "max_staleness": 0},
]

# How rows are inserted without the library's calls.
WAYS = ["new_experiences", "v_experiences", "orm"]

writers = st.sampled_from([0, 1])
tasks = st.sampled_from("abc")
numbers = st.integers(0, 30)
sizes = st.integers(1, 5)
which = st.integers(0, 200)
versions = st.none() | st.integers(0, 4)
sessions = st.sampled_from([None, "s1", "s2"])
capacities = st.sampled_from([None, 1, 3, 6, 10, 15])
episodes = st.sampled_from(["e0", "e1", "e2", "e3"])
conditions = st.integers(0, 3)
# How the connection of the second writer is lost at its commit.
losses = st.sampled_from([None, None, None, "before", "after"])


# So that calls which find nothing do not take the turns of those that store.
holds_steps = precondition(lambda self: self.model.rows)


def task_of(episode: str) -> str:
    return "abc"[int(episode[1:]) % 3]


def numbers_of(steps, result):
    """Return the number of each id that is stored."""
    pairs = zip(steps, result.seqs.tolist(), strict=True)
    return {step.id: seq for step, seq in pairs if seq >= 0}


class BufferMachine(RuleBasedStateMachine):
    """A buffer, opened twice, and its model.

    Attributes:
        url: The database, which all examples share.
        proxy: What the second writer's connections go through; None on SQLite, which has none.
        is_typed: The buffer has typed fields.
    """

    url: str
    proxy: Proxy | None
    is_typed: bool
    names = itertools.count()

    def __init__(self):
        super().__init__()
        self.closing = ExitStack()
        self.thread = self.closing.enter_context(ThreadPoolExecutor(1))
        self.plain = self.closing.enter_context(plain_engine(self.url).connect())
        self.session = self.closing.enter_context(Session(orm.engine(self.url)))
        # As users make them of an episode and a number: no step of an episode is mistaken for one.
        self.ids = (f"e{n % 4}/{n // 4}" for n in itertools.count())
        self.turns = itertools.count()
        self.sent: list[Step] = []
        self.open: dict[str, tuple[int, object]] = {}
        # A number may be lost: with a write that failed, or one that was refused in part.
        self.may_skip = False
        self.buffers: list[ReplayBuffer] = []

    @initialize(
        unit=st.sampled_from(["row", "row", "task", "episode"]),
        capacity=capacities,
        max_episodes=st.integers(1, 3),
        limits=st.sampled_from(LIMITS),
        has_priorities=st.booleans(),
        n=st.integers(1, 9),
        n_of_episode=st.integers(0, 4),
    )
    def make(self, unit, capacity, max_episodes, limits, has_priorities, n, n_of_episode):
        name = f"m{next(self.names)}"
        unit_of = {"max_episodes": max_episodes} if unit == "episode" else {"evict_by": unit}
        made = {
            "max_capacity": capacity,
            "priorities": has_priorities or None,
            "fields": FIELDS if self.is_typed else None,
            **unit_of,
            **limits,
        }
        other = self.url if self.proxy is None else self.proxy.url
        self.buffers = [
            ReplayBuffer(url, name=name, flush_s=NEVER_S, **made) for url in (self.url, other)
        ]
        n_episodes = unit_of.get("max_episodes")
        self.model = Model(unit, capacity, n_episodes, is_typed=self.is_typed, **limits)
        self.send(0, self.steps("a", n, n))
        if n_of_episode:
            self.store_whole(0, "e0", n, n_of_episode)

    def teardown(self):
        for buffer in self.buffers:
            buffer.close()
        if self.buffers:
            ReplayBuffer.drop(self.url, self.buffers[0].name)
        self.closing.close()

    # What the rules share.

    def call(self, who, work, loss=None):
        """Return what a writer's call returns, the second one's from another thread."""
        if who == 0:
            return work(self.buffers[0])
        if self.proxy is not None and loss is not None:
            self.proxy.cuts[:] = [loss]
            self.may_skip |= loss == "before"
        try:
            return self.thread.submit(work, self.buffers[1]).result()
        finally:
            if self.proxy is not None:
                self.proxy.cuts.clear()

    def took(self, new, seqs, priority=None):
        """Have the model take new steps under the numbers that they were given."""
        assert len(set(seqs)) == len(seqs)
        if seqs and not self.may_skip:
            assert sorted(seqs) == list(range(self.model.next_seq, max(seqs) + 1))
        assert not seqs or min(seqs) >= self.model.next_seq
        self.may_skip &= not seqs
        self.model.add(new, seqs, priority)
        self.learn_ids()

    def learn_ids(self):
        """Read the ids that the library made for steps of episodes: nothing else has them."""
        unknown = [
            row for row in self.model.rows.values() if row.id is None and row.episode is not None
        ]
        if unknown:
            read = {row.seq: row.id for row in self.buffers[0].get_all()}
            known = {row.id for row in self.model.rows.values()} | {step.id for step in self.sent}
            for row in unknown:
                row.id = read.get(row.seq)  # None: it was evicted as soon as it was stored
            made = [row.id for row in unknown if row.id is not None]
            assert len(set(made)) == len(made)
            assert not known.intersection(made)

    def send(self, who, steps, loss=None, priority=None):
        new, duplicates, conflicts = self.model.split(steps)
        result = self.call(who, lambda buffer: self.store_in(buffer, steps, priority), loss)
        counts = (result.inserted, result.duplicates, result.conflicts)
        assert counts == (len(new), len(duplicates), len(conflicts))
        assert set(result.conflicting_ids) == {step.id for step in conflicts}
        held = {row.id: row.seq for row in self.model.rows.values()}
        fresh = {step.id for step in new}
        seqs = numbers_of(steps, result)
        assert all(held[id_] == seq for id_, seq in seqs.items() if id_ not in fresh)
        self.took(new, [seqs[step.id] for step in new], priority)
        self.sent = (self.sent + new)[-60:]
        if self.proxy is None and loss is not None:  # sent again, as by whoever heard no answer
            self.send(who, steps)

    def store_in(self, buffer, steps, priority=None):
        if self.is_typed:
            return buffer.extend(columns_of(steps), **keys_of(steps), priority=priority)
        rows = [row_of(step) for step in steps]
        if len(rows) == 1 and steps[0].number % 2:
            return buffer.add(**fields_of(rows[0]), priority=priority)
        if len(rows) == 1:
            return buffer.store(rows[0], priority=priority)
        return buffer.store_batch(rows, priority=priority)

    def steps(self, task, number, n, **keys):
        return [Step(next(self.ids), task, step, number + step, **keys) for step in range(n)]

    def picked(self, which, n):
        """Return up to n steps that the buffer holds."""
        held = sorted(self.model.rows)
        start = which % (len(held) + 1)
        return held[start : start + n]

    def matching(self, condition):
        builder, matches = (OF_FIELDS if self.is_typed else OF_JSON)[condition]
        rows = self.model.rows.items()
        return builder.build(), [seq for seq, row in rows if matches(self.model, row)]

    # Writing.

    @rule(
        who=writers, task=tasks, number=numbers, n=sizes, version=versions, session=sessions,
        priority=st.none() | st.sampled_from([0.5, 2.0]), loss=losses,
    )  # fmt: skip
    def store(self, who, task, number, n, version, session, priority, loss):
        adv = None if self.is_typed else number / 8
        steps = self.steps(task, number, n, version=version, session=session, adv=adv)
        self.send(who, steps, loss, priority if self.buffers[0].alpha is not None else None)

    @precondition(lambda self: self.sent)
    @rule(who=writers, which=which, n=sizes, loss=losses)
    def send_again(self, who, which, n, loss):
        start = which % len(self.sent)
        steps = self.sent[start : start + n]
        if self.is_typed:  # a column has a version for all or for none
            steps = [one for one in steps if keys_in(one) == keys_in(steps[0])]
        self.send(who, steps * 2, loss)

    @precondition(lambda self: self.sent)
    @rule(who=writers, which=which)
    def send_other_content(self, who, which):
        step = self.sent[which % len(self.sent)]
        self.send(who, [Step(step.id, step.task, step.step, step.number + 1)])

    @holds_steps
    @rule(who=writers, which=which, n=sizes, loss=losses)
    def send_what_was_read(self, who, which, n, loss):
        seqs = [seq for seq in self.picked(which, n) if self.model.rows[seq].id is not None]
        seqs = [seq for seq in seqs if seq not in self.model.labels]  # others are read since
        rows = [row for row in self.buffers[who].get_all() if row.seq in seqs]
        result = self.call(who, lambda buffer: buffer.store_batch(rows), loss)
        assert (result.inserted, result.duplicates) == (0, len(rows))
        assert result.seqs.tolist() == [row.seq for row in rows]

    @precondition(lambda self: self.model.unit == "row")  # else it matters who was first
    @rule(task=tasks, number=numbers, n=sizes)
    def store_at_once(self, task, number, n):
        """Both writers store at the same time."""
        first, second = (self.steps(task, number + i, n) for i in (0, 100))
        other = self.thread.submit(self.store_in, self.buffers[1], second)
        results = [self.store_in(self.buffers[0], first), other.result()]
        assert [result.inserted for result in results] == [n, n]
        taken = [(results[0].seqs.tolist(), first), (results[1].seqs.tolist(), second)]
        for seqs, steps in sorted(taken, key=lambda pair: min(pair[0])):
            self.took(steps, seqs)

    @rule(
        who=writers, key=episodes, number=numbers, n=sizes, version=versions,
        final=st.booleans(), reward=st.sampled_from([None, 1.5]), loss=losses,
    )  # fmt: skip
    def store_episode(self, who, key, number, n, version, final, reward, loss):
        self.store_whole(who, key, number, n, version, final, reward, loss)

    def store_whole(self, who, key, number, n, version=None, final=True, reward=None, loss=None):
        steps = steps_of_episode(key, 0, number, n, version)
        arrays = columns_of(steps) if self.is_typed else payloads_of(steps)
        observed = number if final and self.is_typed else None
        arguments = {
            "episode_id": key,
            "task_id": task_of(key),
            "model_version": version,
            "episode_reward": reward,
            "final": None if observed is None else {"obs": [observed, 1]},
        }

        def work(buffer):
            return buffer.store_episode(arrays, **arguments)

        is_free = self.model.free(key)
        if not is_free and self.model.episodes[key].status != "complete":
            with pytest.raises(EpisodeExistsError):
                self.call(who, work)
            return
        result = self.call(who, work, loss)
        if not is_free:
            self.check_resent(result, steps, self.model.episodes[key].length)
            return
        assert result.inserted == n
        self.model.episodes[key] = Episode(task_of(key), version=version)
        self.took(steps, result.seqs.tolist())
        self.ended(key, "complete", steps, result.seqs.tolist(), reward, observed)

    def check_resent(self, result, steps, length):
        held = {row.step: row for row in self.model.steps_of(steps[0].episode)}
        same = [
            step
            for step in steps
            if (step == held[step.step] if step.step in held else length == len(steps))
        ]
        counts = (result.inserted, result.duplicates, result.conflicts)
        assert counts == (0, len(same), len(steps) - len(same))

    def ended(self, key, status, steps, seqs, reward=None, final=None):
        episode = self.model.episodes[key]
        episode.status, episode.length = status, len(steps)
        episode.reward, episode.final = reward, final
        if steps:
            episode.returned = sum(step.reward for step in steps) + (episode.returned or 0.0)
            episode.first_seq, episode.last_seq = seqs[0], seqs[-1]
        self.model.evict()

    @rule(who=writers, key=episodes, version=versions)
    def begin(self, who, key, version):
        def work(buffer):
            return buffer.episode(task_of(key), episode_id=key, model_version=version)

        if not self.model.free(key):
            with pytest.raises(EpisodeExistsError):
                self.call(who, work)
            return
        self.open[key] = (who, self.call(who, work), version, [], [])
        self.model.episodes[key] = Episode(task_of(key), version=version)

    @precondition(lambda self: self.open and not self.may_skip)
    @rule(which=which, number=numbers, n=sizes, others=st.booleans())
    def append(self, which, number, n, others):
        key = sorted(self.open)[which % len(self.open)]
        who, writer, version, steps, seqs = self.open[key]
        new = steps_of_episode(key, len(steps), number, n, version, ends=False)

        def work(_):
            for step in new:
                given = step.arrays if self.is_typed else {"actions": step.actions}
                writer.append(
                    **given, state=step.state(self.is_typed), reward=step.reward,
                    extra=step.extra, terminated=False,
                )  # fmt: skip

        self.call(who, work)
        if others:  # they store while these steps wait
            self.send(1 - who, self.steps("a", number, 1))
        self.call(who, lambda buffer: buffer.flush())
        new_seqs = [self.model.next_seq + i for i in range(n)]
        steps += new
        seqs += new_seqs
        self.took(new, new_seqs)

    @precondition(lambda self: self.open)
    @rule(which=which, how=st.sampled_from(["end", "final", "abort"]), loss=losses)
    def end(self, which, how, loss):
        key = sorted(self.open)[which % len(self.open)]
        who, writer, _, steps, seqs = self.open.pop(key)
        observed = 7 if how == "final" and self.is_typed else None
        final = {} if observed is None else {"obs": [observed, 1]}
        status = "aborted" if how == "abort" else "complete"
        self.call(who, lambda _: writer.abort() if how == "abort" else writer.end(**final), loss)
        self.ended(key, status, steps, seqs, final=observed)

    @precondition(lambda self: not self.is_typed and not self.may_skip)
    @rule(
        task=tasks, number=numbers, way=st.sampled_from(["new_experiences", "v_experiences", "orm"])
    )
    def insert_by_hand(self, task, number, way):
        id_ = next(self.ids) if number % 2 else None
        adv = number / 4
        if way == "orm":
            id_ = id_ or next(self.ids)
        step = Step(id_, task, number % 5, 7 * (number % 4), adv=adv, by_hand=True)
        state = f'{{"x": {step.number}}}'
        own = f'{{"own": {step.number}}}' if step.extra else None
        name = self.buffers[0].name
        if way == "orm":
            with Session(orm.engine(self.url, writes=True)) as session:
                session.add(
                    orm.Experience(
                        buffer=name, id=id_, task_id=task, agent_id="a", step=step.step,
                        state=step.state(False), reward=step.reward, advantage=adv,
                        extra=step.extra,
                    )
                )  # fmt: skip
                session.commit()
        else:
            of_view = way == "v_experiences"
            key, given = ("buffer", ":buffer") if of_view else ("buffer_id", "b.buffer_id")
            reward, advantage = ("reward", "advantage") if of_view else ("reward_t", "adv_t")
            json = "" if is_sqlite(self.url) else "::jsonb"
            with connected(self.url) as connection:
                connection.execute(
                    text(
                        f"INSERT INTO {way} ({key}, id, task_id, agent_id, step, {reward}, "
                        f"{advantage}, state, extra) SELECT {given}, :id, :task, 'a', :step, "
                        f":reward, :adv, CAST(:state AS {json[2:] or 'text'}), "
                        f"CAST(:extra AS {json[2:] or 'text'}) "
                        "FROM v_buffers b WHERE b.buffer = :buffer"
                    ),
                    {"buffer": name, "id": id_, "task": task, "step": step.step,
                     "reward": step.reward, "adv": adv, "state": state, "extra": own},
                )  # fmt: skip
        self.took([step], [self.model.next_seq])

    # Taking away.

    @holds_steps
    @rule(task=tasks, step=st.integers(0, 4))
    def delete_by_hand(self, task, step):
        run(
            self.url,
            "DELETE FROM v_experiences "
            "WHERE buffer = :buffer AND task_id = :task AND step >= :step",
            task=task,
            step=step,
            buffer=self.buffers[0].name,
        )
        rows = self.model.rows.items()
        self.model.remove([seq for seq, r in rows if r.task == task and r.step >= step])

    @holds_steps
    @rule(who=writers, condition=conditions, loss=losses)
    def delete(self, who, condition, loss):
        tree, seqs = self.matching(condition)
        assert self.call(who, lambda buffer: buffer.delete(tree), loss) == len(seqs)
        self.model.remove(seqs)

    @precondition(lambda self: self.model.rows and not self.open)
    @rule(who=writers)
    def clear(self, who):
        assert self.call(who, lambda buffer: buffer.clear()) == len(self.model.rows)
        self.model.remove(list(self.model.rows))
        self.model.episodes.clear()

    @holds_steps
    @rule(who=writers, capacity=capacities)
    def resize(self, who, capacity):
        self.call(who, lambda buffer: buffer.resize(capacity))
        self.model.capacity = capacity
        self.model.evict()

    @precondition(lambda self: self.model.unit == "episode")
    @rule(who=writers, n=st.none() | st.integers(1, 4))
    def resize_episodes(self, who, n):
        self.call(who, lambda buffer: buffer.resize(max_episodes=n))
        self.model.max_episodes = n
        self.model.evict()

    # Changing what is said of steps.

    @holds_steps
    @rule(
        who=writers, which=which, n=sizes, version=st.none() | st.integers(0, 3),
        reward=st.none() | st.integers(0, 8), extra=st.sampled_from([None, "own", "late"]),
        loss=losses,
    )  # fmt: skip
    def annotate(self, who, which, n, version, reward, extra, loss):
        seqs = self.picked(which, n)
        given = {"value": which / 4}
        if reward is not None:
            given["reward"] = reward / 2
        if extra is not None:
            given["extra"] = {extra: which}
        arguments = {"v_t": given["value"], "reward_t": given.get("reward"),
                     "extra": given.get("extra"), "version": version}  # fmt: skip

        def work(buffer):
            return buffer.annotate({*seqs, 10**6}, **arguments)

        assert self.call(who, work, loss) == len(seqs)
        if seqs:
            self.model.label(seqs, version, given)

    @holds_steps
    @rule(who=writers, condition=conditions, adv=st.integers(0, 8))
    def annotate_what_matches(self, who, condition, adv):
        tree, seqs = self.matching(condition)
        found = self.call(who, lambda buffer: buffer.annotate(tree, adv_t=adv / 4))
        assert found == len(seqs)
        if seqs:
            self.model.label(seqs, None, {"adv": adv / 4})

    @precondition(lambda self: self.model.rows and self.buffers[0].alpha is not None)
    @rule(who=writers, which=which, n=sizes, priority=st.sampled_from([0.0, 0.25, 3.0]))
    def update_priorities(self, who, which, n, priority):
        seqs = self.picked(which, n)
        named = [*seqs, 10**6]
        updated = self.call(who, lambda buffer: buffer.update_priorities(named, priority, eps=0.0))
        assert (updated.updated, updated.missing) == (len(seqs), 1)
        if seqs:
            self.model.set_priorities(seqs, priority)

    @holds_steps
    @rule(who=writers, which=which, n=sizes)
    def quarantine(self, who, which, n):
        seqs = self.picked(which, n)
        new = set(seqs) - self.model.quarantined
        assert self.call(who, lambda buffer: buffer.quarantine([*seqs, 10**6])) == len(new)
        self.model.quarantined |= new

    @precondition(lambda self: self.model.quarantined)
    @rule(who=writers, condition=conditions)
    def release(self, who, condition):
        tree, seqs = self.matching(condition)
        left = self.model.quarantined & {*seqs}
        assert self.call(who, lambda buffer: buffer.release(tree)) == len(left)
        self.model.quarantined -= left

    @rule(who=writers, key=st.sampled_from(["s1", "s2"]))
    def start_session(self, who, key):
        self.call(who, lambda buffer: buffer.start_session(key))
        self.model.session = key
        self.model.clock = self.model.sessions.setdefault(key, None)

    @rule(who=writers, clock=st.integers(0, 5))
    def set_clock(self, who, clock):
        self.call(who, lambda buffer: buffer.set_clock(clock))
        self.model.clock = clock
        if self.model.session is not None:
            self.model.sessions[self.model.session] = clock

    @holds_steps
    @rule(who=writers)
    def expire(self, who):
        seqs = self.model.expired()
        assert self.call(who, lambda buffer: buffer.expire()).total == len(seqs)
        self.model.remove(seqs)

    # Drawing, and opening again.

    @holds_steps
    @rule(who=writers, n=st.integers(1, 8), loss=losses)
    def draw(self, who, n, loss):
        batch = self.call(who, lambda buffer: buffer.sample(n), loss)
        seqs = [row.seq for row in batch]
        eligible = {row.seq for row in self.model.eligible()}
        assert len(seqs) == len(set(seqs)) == min(n, len(eligible))
        assert eligible.issuperset(seqs)
        for seq in seqs:
            self.model.uses[seq] = self.model.uses.get(seq, 0) + 1

    @precondition(lambda self: self.buffers[0].alpha is not None and self.model.max_use is None)
    @rule(who=writers)
    def draw_by_priority(self, who):
        priorities = {row.seq: self.model.priorities[row.seq] for row in self.model.eligible()}
        weights = {seq: p**ALPHA for seq, p in priorities.items() if p}
        if weights:
            sampler = PrioritizedSampler(exact=True)
            batch = self.call(who, lambda buffer: buffer.sample_arrays(8, sampler=sampler))
            expected = [weights[seq] / sum(weights.values()) for seq in batch.info["seq"].tolist()]
            np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)

    @precondition(lambda self: not self.open)
    @rule(who=writers)
    def open_again(self, who):
        copy = pickle.loads(pickle.dumps(self.buffers[who]))
        self.buffers[who].close()
        self.buffers[who] = copy

    @invariant()
    def look(self):
        if not self.buffers:
            return
        # Each writer looks in turn, and the other one at its rows only.
        looks = [Looks(one, self.model, self.plain, self.session) for one in self.buffers]
        n = next(self.turns)
        looks[n % 2].compare(condition=n // 2 % len(OF_JSON))
        looks[(n + 1) % 2].rows_in_order()
        self.plain.rollback()


def row_of(step):
    meta = ExpMeta(
        step.task, None, "a", step.step, 1.0,
        model_version=step.version, session_id=step.session,
    )  # fmt: skip
    data = Experience(
        step.state(False), step.actions, step.reward, step.adv, extra=step.extra,
        terminated=step.terminated,
    )  # fmt: skip
    return DataRow(meta, data, step.id)


def fields_of(row):
    """Return a row as `add` takes it."""
    given = {**vars(row.exp_meta), **vars(row.exp_data), "id": row.id}
    given["reward"] = given.pop("reward_t")
    return given


def columns_of(steps):
    """Return the columns of steps with typed fields."""
    arrays = {name: [step.arrays[name] for step in steps] for name in FIELDS}
    arrays |= {name: np.array(arrays[name]) for name in ("obs", "big", "level")}
    if any(step.terminated is not None for step in steps):
        arrays["terminated"] = [step.terminated for step in steps]
    return {
        **arrays,
        "state": [step.state(True) for step in steps],
        "reward": [step.reward for step in steps],
        "extra": [step.extra for step in steps],
    }


def payloads_of(steps):
    return {
        "state": [step.state(False) for step in steps],
        "actions": [step.actions for step in steps],
        "reward": [step.reward for step in steps],
        "extra": [step.extra for step in steps],
        "terminated": [step.terminated for step in steps],
    }


def keys_of(steps):
    return {
        "id": [step.id for step in steps],
        "task_id": [step.task for step in steps],
        "step": [step.step for step in steps],
        "model_version": steps[0].version,
        "session_id": steps[0].session,
    }


def keys_in(step):
    return step.version, step.session


def steps_of_episode(key, start, number, n, version, *, ends=True):
    return [
        Step(
            None, task_of(key), t, number + t, key, version,
            terminated=ends and t == start + n - 1,
        )
        for t in range(start, start + n)
    ]  # fmt: skip


@contextmanager
def second_connection(url: str) -> Iterator[Proxy | None]:
    """Yield a proxy for the second writer, where connections can be cut."""
    with nullcontext() if is_sqlite(url) else proxied(url) as proxy:
        yield proxy


def check_buffer(url: str, *, is_typed: bool, examples: int, steps: int, explore: bool) -> None:
    """Run the machine on a database.

    Args:
        url: The database, with its schema.
        is_typed: Of buffers with typed fields; else of JSON.
        examples: How many programs.
        steps: How many calls each.
        explore: Other programs at each run, the falsifying one made small; else always the same.
    """
    with second_connection(url) as proxy:
        attributes = {"url": url, "proxy": proxy, "is_typed": is_typed}
        run_state_machine_as_test(
            type("Machine", (BufferMachine,), attributes),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                derandomize=not explore,
                # To make a program small takes minutes.
                phases=[Phase.generate, Phase.shrink] if explore else [Phase.generate],
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
