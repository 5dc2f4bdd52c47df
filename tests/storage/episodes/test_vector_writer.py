"""Episodes of several environments that are written together, against a loop over single steps."""

import multiprocessing
import os
import pickle
import signal
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from sqlbuffer import RateLimiter, ReplayBuffer
from sqlbuffer.errors import (
    BufferConfigError,
    EpisodeTakenError,
    FieldError,
    FlowControlError,
    StorageError,
)
from tests.support.processes import FRESH, run_at_once, wait_until
from tests.support.sql import run
from tests.support.waiting_steps import NEVER_S, refusing_inserts

FIELDS = {
    "obs": ("float32", (2,)),
    "action": {"dtype": "int64", "column": True},
    "name": "U3",
    "words": ("int16", (-1,)),
}
MISSING = {"reward": None, "terminated": False, "truncated": False}
SIMPLE = {"obs": ("float32", (2,)), "action": "int64"}


@dataclass
class Model:
    """What the writer is to store: a list of steps and an end for each episode."""

    n_envs: int
    open: dict = field(default_factory=dict)
    ended: list = field(default_factory=list)

    def step(self, env, values, version, ends, final):
        episode = self.open.setdefault(env, {"steps": [], "version": version, "final": None})
        episode["steps"].append(values)
        if ends:
            self.end(env, "complete", final)

    def end(self, env, status, final=None, *, truncates=False):
        episode = self.open.pop(env, None)
        if episode is None:
            return
        if truncates:
            episode["steps"][-1]["truncated"] = True
        self.ended.append({**episode, "status": status, "final": final})

    def episodes(self):
        return sorted((comparable(episode) for episode in self.ended), key=repr)


def comparable(episode):
    steps = [
        (
            [float(x) for x in step["obs"]],
            int(step["action"]),
            str(step["name"]),
            [int(word) for word in step["words"]],
            None if step["reward"] is None else str(float(step["reward"])),
            bool(step["terminated"]),
            bool(step["truncated"]),
            step["extra"],
        )
        for step in episode["steps"]
    ]
    final = None if episode["final"] is None else [float(x) for x in episode["final"]]
    return episode["status"], episode["version"], final, steps


def stored(url, buffer):
    """Return the episodes of a buffer, as the model has them."""
    episodes = {}
    for row in buffer:
        data = row.exp_data
        episodes.setdefault(row.exp_meta.episode_id, []).append(
            {
                **row.fields, "reward": data.reward_t, "terminated": data.terminated,
                "truncated": data.truncated, "extra": data.extra or None, "t": row.exp_meta.step,
                "version": row.exp_meta.model_version,
            }
        )  # fmt: skip
    statuses = dict(run(url, "SELECT episode_id, status FROM v_episodes"))
    finals = finals_of(buffer)
    found = []
    for id_, steps in episodes.items():
        assert [step["t"] for step in steps] == list(range(len(steps)))
        (version,) = {step["version"] for step in steps}
        found.append(
            comparable(
                {
                    "steps": steps,
                    "version": version,
                    "status": statuses[id_],
                    "final": finals.get(id_),
                }
            )
        )
    return sorted(found, key=repr)


def finals_of(buffer):
    if not len(buffer):
        return {}
    finals = {}
    for batch in buffer.loader("trajectory", 1_000, epochs=1, include_partial=True):
        has_final, ids = batch["has_final"], batch.info["task_id"]
        for id_, is_known, final in zip(ids, has_final, batch["final_obs"], strict=True):
            finals[id_] = final if is_known else None
    return finals


class Play:
    """Random calls of a writer, and the same ones of the model."""

    def __init__(self, buffer, seed, **options):
        self.rng = np.random.default_rng(seed)
        self.n = int(self.rng.integers(1, 5))
        self.model, self.buffer = Model(self.n), buffer
        self.writer = buffer.vector_writer(self.n, **options)

    def flags(self, shape, share):
        return self.rng.random(shape) < share

    def write(self):
        rng, n = self.rng, self.n
        n_rows = int(rng.choice([1, 1, 2, 7]))
        shape = (n_rows, n)
        steps = {
            "obs": rng.normal(size=(*shape, 2)).astype(np.float32),
            "action": rng.integers(0, 9, shape),
            "name": rng.choice(["", "a", "äö€"], shape),
            "words": [[np.arange(rng.integers(0, 4)) for _ in range(n)] for _ in range(n_rows)],
            "reward": rng.choice([0.0, 0.5, -1.25, np.nan], shape, p=[0.4, 0.3, 0.2, 0.1]),
            "terminated": self.flags(shape, 0.1),
            "truncated": self.flags(shape, 0.1),
            "extra": [
                [{"k": int(rng.integers(9))} if rng.random() < 0.2 else None for _ in range(n)]
                for _ in range(n_rows)
            ],
        }
        # Each call may give other columns than the one before.
        for name in ("reward", "terminated", "truncated", "extra"):
            if rng.random() < 0.3:
                steps[name] = None
        reset, mask = self.flags(shape, 0.1), self.flags(shape, 0.8)
        final = rng.normal(size=(*shape, 2)).astype(np.float32)
        gives_final = rng.random() < 0.7
        for t in range(n_rows):
            for i in range(n):
                if reset[t, i]:
                    self.model.end(i, "complete", truncates=True)
                if mask[t, i]:
                    values = {
                        name: MISSING.get(name) if column is None else column[t][i]
                        for name, column in steps.items()
                    }
                    ends = values["terminated"] or values["truncated"]
                    one = final[t, i] if gives_final else None
                    self.model.step(i, values, self.writer.model_version, ends, one)
        if n_rows == 1 and rng.random() < 0.7:
            steps = {name: None if c is None else c[0] for name, c in steps.items()}
            reset, mask, final = reset[0], mask[0], final[0]
        if rng.random() < 0.3:
            reset, mask = reset.astype(int), mask.tolist()
        self.writer.write(
            steps, reset=reset, mask=mask, final={"obs": final} if gives_final else None
        )

    def cut(self):
        chosen = self.flags(self.n, 0.5)
        final = self.rng.normal(size=(self.n, 2)).astype(np.float32)
        for i in np.flatnonzero(chosen).tolist():
            self.model.end(i, "complete", final[i], truncates=True)
        self.writer.cut(chosen, {"obs": final})

    def abort(self):
        for i in range(self.n):
            self.model.end(i, "aborted")
        self.writer.abort()

    def version(self):
        self.writer.model_version = int(self.rng.integers(0, 3))

    def flush(self):
        self.buffer.flush()

    def run(self, n_calls):
        calls = [self.write, self.cut, self.abort, self.version, self.flush]
        for _ in range(n_calls):
            self.rng.choice(calls, p=[0.8, 0.08, 0.02, 0.05, 0.05])()
        for i in range(self.n):
            self.model.end(i, "complete", truncates=True)
        self.writer.close()


@pytest.mark.parametrize("seed", range(6))
def test_steps_and_episodes_are_those_of_a_loop_over_single_steps(schema_url, seed):
    options = [{}, {"max_pending": 3}, {"compression": "zstd"}][seed % 3]
    with ReplayBuffer(schema_url, fields=FIELDS, flush_s=0.05, **options) as buffer:
        play = Play(buffer, seed)
        play.run(60)
        assert stored(schema_url, buffer) == play.model.episodes()


def test_a_rate_limiter_may_divide_a_block(sqlite_url):
    limiter = RateLimiter(samples_per_insert=1.0, min_size=5, error_buffer=13.0)
    with ReplayBuffer(
        sqlite_url, fields=SIMPLE, rate_limiter=limiter, wait_s=0, flush_s=NEVER_S
    ) as buffer:
        writer = buffer.vector_writer(8)
        for _ in range(4):
            writer.write({"obs": np.zeros((8, 2)), "action": np.arange(8)})
        with pytest.raises(FlowControlError):
            buffer.flush()
        n_stored = len(buffer.sample(1)) and buffer.stats().rows
        assert 0 < n_stored < 24
        assert n_stored % 8  # within a step of all environments
        buffer.set_rate_limiter(None)
        writer.close()
        steps = sorted((row.exp_meta.episode_id, row.exp_meta.step) for row in buffer)
        assert [step for _, step in steps] == [0, 1, 2, 3] * 8


def test_transitions_are_those_of_the_same_episodes_stored_whole(buffer_url):
    """By SQL and from a mirror; the two buffers differ in the order of their episodes alone."""
    rng = np.random.default_rng(5)
    obs = rng.normal(size=(40, 3, 2)).astype(np.float32)
    action, reward = rng.integers(0, 5, (40, 3)), rng.normal(size=(40, 3))
    ends = rng.random((40, 3)) < 0.15
    after = rng.normal(size=(40, 3, 2)).astype(np.float32)
    with (
        ReplayBuffer(buffer_url, "vector", fields=SIMPLE, create=True) as vector,
        ReplayBuffer(buffer_url, "whole", fields=SIMPLE, create=True) as whole,
    ):
        with vector.vector_writer(3) as writer:
            for t in range(0, 40, 8):
                part = slice(t, t + 8)
                steps = {"obs": obs[part], "action": action[part], "reward": reward[part]}
                writer.write(steps | {"truncated": ends[part]}, final={"obs": after[part]})
        for i in range(3):
            cuts = [0, *(np.flatnonzero(ends[:, i]) + 1).tolist(), 40]
            for first, last in pairwise(cuts):
                if first == last:
                    continue
                has_ended = bool(ends[last - 1, i])
                truncated = np.zeros(last - first, bool)
                truncated[-1] = True
                whole.store_episode(
                    {
                        "obs": obs[first:last, i], "action": action[first:last, i],
                        "reward": reward[first:last, i], "truncated": truncated,
                    },
                    final={"obs": after[last - 1, i]} if has_ended else None,
                )  # fmt: skip
        every = [
            sorted(
                zip(
                    batch["obs"].tolist(), batch["action"].tolist(), batch["reward"].tolist(),
                    batch["discount"].tolist(), batch["next_obs"].tolist(), strict=True,
                )
            )
            for source in (vector, whole, vector.mirror())
            for batch in [source.sample_transitions(3_000, n_step=3, gamma=0.5)]
        ]  # fmt: skip
        distinct = [[row for i, row in enumerate(rows) if row not in rows[:i]] for rows in every]
        assert distinct[0] == distinct[1] == distinct[2]
        assert len(distinct[0]) > 100


@pytest.fixture
def buffer(sqlite_url):
    with ReplayBuffer(sqlite_url, fields=SIMPLE, flush_s=NEVER_S) as buffer:
        yield buffer


def step(n=2, **more):
    return {"obs": np.zeros((n, 2), np.float32), "action": np.zeros(n, np.int64), **more}


@pytest.mark.parametrize(
    ("steps", "options", "message"),
    [
        (step(3), {}, r"obs: expected shape \(2, 2\), or T steps of that shape, of n_envs=2"),
        (step(action=np.zeros(3, int)), {}, r"action: expected shape \(2,\)"),
        ({"obs": np.zeros((5, 2, 2)), "action": [0, 0]}, {}, r"\(5, 2\), as the other .* 5 steps"),
        ({"obs": {"arm": np.zeros((2, 2))}}, {}, "obs: a dict has no shape; .* such as obs_arm"),
        (step(terminated=[0.5, 0]), {}, "terminated"),
        (step(what=[1, 2]), {}, "unknown field 'what'"),
        (step(id=["a", "b"]), {}, "unknown field 'id'"),
        (step(model_version=[1, 2]), {}, "unknown field 'model_version'"),
        (step(state={"a": 1, "b": 2}), {}, "state: a dict has no shape|expected a list"),
        (step(state="ab"), {}, "state: expected a list"),
        ({"obs": np.zeros((2, 2))}, {}, "'action' is missing"),
        ({"action": None}, {}, "how many steps"),
        ([1], {}, "steps is a dict of arrays"),
        (step(reward=["a", "b"]), {}, "'reward': expected float64"),
        (step(terminated=[2, 0]), {}, "terminated"),
        (step(), {"mask": [True]}, r"mask: expected flags of shape \(2,\)"),
        (step(), {"reset": [0.5, 1]}, r"reset: expected flags of shape \(2,\)"),
        (step(), {"final": {"action": [1, 2]}}, "final is a dict with the observation fields obs"),
        (step(), {"final": {"obs": np.zeros((3, 2))}}, r"obs: expected shape \(2, 2\)"),
        (step(truncated=[1, 0]), {"final": {"obs": [["a", "b"]] * 2}}, "'obs'"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_adds_nothing(buffer, steps, options, message):
    writer = buffer.vector_writer(2)
    writer.write(step())
    with pytest.raises(FieldError, match=message):
        writer.write(steps, **options)
    writer.write(step())
    writer.close()
    assert sorted(row.exp_meta.step for row in buffer) == [0, 0, 1, 1]


def test_numbers_may_have_an_axis_more_and_flags_may_be_floats(buffer):
    with buffer.vector_writer(2) as writer:
        for lead in ((2,), (3, 2)):
            writer.write(
                {
                    "obs": np.zeros((*lead, 2)), "action": np.zeros(lead, int),
                    "reward": np.ones((*lead, 1), np.float32), "terminated": np.ones((*lead, 1)),
                }
            )  # fmt: skip
    assert buffer.stats().episodes == len(buffer) == 8
    assert {row.exp_data.reward_t for row in buffer} == {1.0}


def test_a_buffer_without_typed_fields_has_no_vector_writer(sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer, pytest.raises(FieldError, match="without typed"):
        buffer.vector_writer(2)


def test_each_environment_may_have_its_own_task_and_agent(buffer):
    with buffer.vector_writer(2, task_id=["a", "b"], agent_id="x", level=3) as writer:
        writer.write(step())
        assert None not in writer.episode_ids
        assert "2 episodes open" in repr(writer)
        with pytest.raises(TypeError, match="one process"):
            pickle.dumps(writer)
    assert [(row.exp_meta.task_id, row.exp_meta.agent_id) for row in buffer] == [
        ("a", "x"),
        ("b", "x"),
    ]
    with pytest.raises(FieldError, match="one for each of 2 environments"):
        buffer.vector_writer(2, task_id=["a"])


def test_a_closed_writer_takes_no_steps_and_closes_again(buffer):
    writer = buffer.vector_writer(2)
    writer.write(step())
    writer.close()
    writer.close()
    with pytest.raises(BufferConfigError, match="was closed"):
        writer.write(step())
    assert len(buffer) == 2


def test_a_block_that_raises_aborts_and_stores(buffer):
    writer = buffer.vector_writer(2)
    writer.write(step())
    with pytest.raises(FieldError, match="expected shape"), writer:
        writer.write(step(3))
    episodes = run(buffer.url, "SELECT status, length FROM v_episodes")
    assert episodes == [("aborted", 1), ("aborted", 1)]


def test_no_steps_and_no_environment_that_acts_are_no_error(buffer):
    with buffer.vector_writer(2) as writer:
        writer.write({"obs": np.zeros((0, 2, 2)), "action": np.zeros((0, 2))})
        writer.write(step(), mask=[False, False])
        assert writer.episode_ids == [None, None]
    assert len(buffer) == 0


def test_a_database_that_refuses_is_told_before_the_next_step_and_loses_nothing(sqlite_url, caplog):
    with ReplayBuffer(sqlite_url, fields=SIMPLE, flush_s=0.3) as buffer:
        writer = buffer.vector_writer(2)
        n_written = 0
        with refusing_inserts(sqlite_url):
            writer.write(step(terminated=[True, True]))
            n_written += 1
            wait_until(lambda: "could not be stored yet" in caplog.text, "the timer fails")
            with pytest.raises(StorageError, match="no rows today"):
                writer.write(step())
        buffer.flush()
        writer.write(step())
        n_written += 1
        writer.close()
        assert len(buffer) == 2 * n_written


def test_an_episode_that_another_writer_continues_is_given_up_and_the_others_go_on(database_url):
    with (
        ReplayBuffer(database_url, fields=SIMPLE, create=True, flush_s=NEVER_S) as buffer,
        ReplayBuffer(database_url) as other,
    ):
        writer = buffer.vector_writer(2, task_id=["a", "b"])
        writer.write(step())
        writer.write(step())
        buffer.flush()
        taken, kept = writer.episode_ids
        episode = other.episode("a", episode_id=taken, resume=True)
        episode.append(obs=[1, 1], action=7)
        other.flush()
        writer.write(step())
        with pytest.raises(EpisodeTakenError, match="continued"):
            buffer.flush()
        with pytest.raises(EpisodeTakenError):
            writer.write(step())
        assert writer.episode_ids == [None, kept]
        writer.write(step())
        writer.close()
        episode.end()
        lengths = dict(run(database_url, "SELECT episode_id, length FROM v_episodes"))
        assert lengths[taken] == 2
        assert lengths[kept] == 4
        assert len(lengths) == 3


def play_until_killed(url, path):
    with ReplayBuffer(url, fields=SIMPLE, flush_s=0.01) as buffer, open(path, "a") as log:
        writer = buffer.vector_writer(3)
        t = 0
        while True:
            values = np.full(3, t)
            ends = values % 7 == 6
            writer.write(step(3) | {"action": values, "terminated": ends})
            buffer.flush()
            print(t, file=log, flush=True)
            t += 1


@pytest.mark.each_value
def test_a_killed_writer_leaves_whole_steps_and_open_episodes(schema_url, tmp_path):
    path = tmp_path / "log"
    with ReplayBuffer(schema_url, fields=SIMPLE, create=True) as buffer:
        process = multiprocessing.get_context(FRESH).Process(
            target=play_until_killed, args=(schema_url, path)
        )
        process.start()
        wait_until(lambda: path.exists() and path.read_text().count("\n") > 20, "it plays")
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
        n_flushed = int(path.read_text().rpartition("\n")[0].split()[-1])
        actions = {}
        for row in buffer:
            actions.setdefault(row.exp_meta.episode_id, []).append(int(row.fields["action"]))
        for steps in actions.values():
            assert steps == list(range(steps[0], steps[0] + len(steps)))
            assert steps[0] % 7 == 0
        counts = np.bincount(np.concatenate([*actions.values()]))
        assert (counts == 3).all()
        assert len(counts) >= n_flushed  # the newest step of each open episode is held back


def leave_open(url):
    buffer = ReplayBuffer(url, fields=SIMPLE)
    writer = buffer.vector_writer(2)
    writer.write(step())
    writer.write(step())


@pytest.mark.each_value
def test_the_end_of_a_process_stores_the_steps_that_are_held_back(sqlite_url):
    with ReplayBuffer(sqlite_url, fields=SIMPLE) as buffer:
        run_at_once([(leave_open, sqlite_url)])
        assert len(buffer) == 4
        assert run(sqlite_url, "SELECT status FROM v_episodes") == [("complete",)] * 2
