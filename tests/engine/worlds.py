"""Random buffers, each next to its model in plain Python, and what both make of their steps."""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces

from sqlbuffer import Batch, QueryBuilder, ReplayBuffer
from tests.engine.naive import Episode, Item, NaiveBuffer, Step
from tests.support.passed_time import let_pass

# How late steps may leave that are too old, and how long a test takes in between.
LATE_S = 60.0
UID = {"uid": {"dtype": "int64", "column": True}}
KINDS: dict[str, dict[str, Any]] = {
    "small": {"obs": ("float32", (2,)), "action": "int64"},
    "bytes": {"obs": ("uint8", (40, 30)), "action": ("float64", (3,))},
    "frames": {"obs": ("uint8", (72, 64)), "action": "int64"},
    "text": {"obs": "U5", "action": "int64"},
    "next": {"obs": ("float32", (2,)), "action": "int64", "next_obs": ("float32", (2,))},
    "done": {"obs": ("float32", (2,)), "action": "int64", "done": "bool"},
    "nodes": {"obs": ("float32", (-1, 2)), "action": ("int16", (-1,))},
    "jpeg": {"obs": ("uint8", (-1,)), "action": "int64", "next_obs": ("uint8", (-1,))},
    "varying": {"obs": ("float32", (2,)), "nodes": ("int16", (-1, 2)), "tags": ("uint8", (2, -1))},
    "nested": {
        "obs_image": ("uint8", (4, 3)),
        "obs_arm_0": "U5",
        "obs_arm_1": ("int64", (-1,)),
        "action": "int64",
        "obs_new_key": "float64",
    },
}
PARTS = spaces.Tuple([spaces.Text(5), spaces.Sequence(spaces.Discrete(100))])
IMAGE = spaces.Box(0, 255, (4, 3), np.uint8)
KEY = spaces.Box(-np.inf, np.inf, (), np.float64)
SPACES = {
    "nested": {
        "observation": spaces.Dict({"image": IMAGE, "arm": PARTS, "new key": KEY}),
        "action": spaces.Discrete(100),
    }
}
# Where the arrays of a batch are nested, as attributes of the batch lead there.
NESTED = {
    f"{prefix}{name}": (f"{prefix}obs", path)
    for prefix in ("", "next_", "final_", "seq_")
    for name, path in {
        "obs_image": ("image",), "obs_arm_0": ("arm", 0), "obs_arm_1": ("arm", 1),
        "obs_new_key": ("new key",),
    }.items()
}  # fmt: skip


class World:
    """A buffer and its model, changed by the same calls.

    Args:
        url: The database.
        name: The buffer.
        kind: Name in `KINDS`.
        rng: Decides everything.
        settings: Settings of the buffer.
    """

    def __init__(
        self, url: str, name: str, kind: str, rng: np.random.Generator, **settings: Any
    ) -> None:
        declared = {**UID, **KINDS[kind]}
        self.kind, self.rng, self.url = kind, rng, url
        # Seconds that have passed, and had passed when each step was stored.
        self._now, self._stored_at = 0.0, dict[int, float]()
        if kind in SPACES:
            observed = [name for name in KINDS[kind] if name.startswith("obs")]
            settings |= {"spaces": SPACES[kind], "observation_fields": observed}
        self.buffer = ReplayBuffer(url, name, create=True, fields=declared, **settings)
        specs = {key: (spec.dtype, spec.shape) for key, spec in self.buffer.fields.items()}
        self.model = NaiveBuffer(
            specs, self.buffer.observation_fields, max_staleness=settings.get("max_staleness")
        )
        self._n, self._n_episodes = 0, 0
        self._open: list[tuple[Any, Episode]] = []

    # Values.

    def value(self, name: str) -> Any:
        dtype, shape = self.model.fields[name]
        sizes = [int(self.rng.integers(0, 5)) if n == -1 else n for n in shape]
        if dtype.kind == "U":
            return np.array(self.rng.choice(["a", "né", "", "five5"]), dtype)[()]
        if dtype.kind == "b":
            return np.bool_(self.rng.random() < 0.2)
        values = self.rng.integers(0, 100, sizes).astype(dtype)
        return values if shape else values[()]

    def step(self, task: str, agent: str, number: int, **more: Any) -> Step:
        self._n += 1
        fields = {name: self.value(name) for name in self.model.fields}
        fields["uid"] = np.int64(self._n)
        return Step(self._n, task, agent, number, fields, **more)

    def columns(self, steps: list[Step]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name, (_, shape) in self.model.fields.items():
            values = [step.fields[name] for step in steps]
            columns[name] = values if -1 in shape else np.stack(values)
        for name in ("terminated", "truncated"):
            if any(getattr(step, name) is not None for step in steps):
                columns[name] = [getattr(step, name) for step in steps]
        for name in ("reward", "adv_t", "v_t"):
            if getattr(steps[0], name) is not None:
                columns[name] = [getattr(step, name) for step in steps]
        return columns

    def _judge(self, steps: list[Step]) -> None:
        """Give steps advantages, or values, before they are stored."""
        for name in ("adv_t", "v_t"):
            if self.rng.random() < 0.3:
                for step in steps:
                    setattr(step, name, float(self.rng.integers(-9, 9)))

    def _keep(self, steps: list[Step]) -> None:
        self.model.steps |= {step.uid: step for step in steps}
        self._stored_at |= {step.uid: self._now for step in steps}

    def _rewards(self, n: int) -> list[float | None]:
        if self.rng.random() < 0.1:
            return [None] * n
        return [float(reward) for reward in self.rng.integers(-8, 8, n) / 4]

    # Calls.

    def extend(self) -> None:
        """Store steps without an episode."""
        n = int(self.rng.integers(1, 6))
        task, agent = f"t{self.rng.integers(3)}", f"a{self.rng.integers(2)}"
        ends = self.rng.random() < 0.5
        version = int(self.rng.integers(0, 6)) if self.rng.random() < 0.7 else None
        steps = [
            self.step(task, agent, i, reward=reward, version=version,
                      terminated=bool(self.rng.random() < 0.3) if ends else None)
            for i, reward in enumerate(self._rewards(n))
        ]  # fmt: skip
        keys = {"task_id": task, "agent_id": agent, "step": np.arange(n), "model_version": version}
        self._judge(steps)
        self.buffer.extend(self.columns(steps), **keys)
        self._keep(steps)

    def _episode(self, n: int, flagged: bool = True) -> tuple[Episode, list[Step]]:
        self._n_episodes += 1
        episode = Episode(f"t{self.rng.integers(3)}", f"e{self._n_episodes}")
        version = int(self.rng.integers(0, 6)) if self.rng.random() < 0.7 else None
        steps = []
        for t, reward in enumerate(self._rewards(n)):
            step = self.step(episode.task, "default", t, reward=reward, episode=episode, t=t)
            step.version = version
            if flagged:
                step.terminated = step.truncated = False
            steps.append(step)
        return episode, steps

    def _end(self, steps: list[Step]) -> None:
        """Have an episode end, with its flags, if its steps have any."""
        how = self.rng.integers(3)
        if steps[-1].terminated is not None and how < 2:
            steps[-1].terminated, steps[-1].truncated = how == 0, how == 1
        if steps[0].truncated is not None and self.rng.random() < 0.1:  # in the middle
            steps[len(steps) // 2].truncated = True

    def _final(self) -> dict[str, Any] | None:
        if self.rng.random() < 0.4:
            return None
        return {name: self.value(name) for name in self.model.observations}

    def store_episode(self) -> None:
        episode, steps = self._episode(int(self.rng.integers(1, 14)), self.rng.random() < 0.8)
        self._end(steps)
        self._judge(steps)
        episode.final = self._final()
        episode.status, episode.length = "complete", len(steps)
        episode.rewards = [step.reward for step in steps]
        episode.reward = float(self.rng.integers(5)) if self.rng.random() < 0.3 else None
        self.buffer.store_episode(
            self.columns(steps), episode_id=episode.key, task_id=episode.task, final=episode.final,
            episode_reward=episode.reward, model_version=steps[0].version,
        )  # fmt: skip
        self._keep(steps)

    def begin(self) -> None:
        """Begin an episode that is written step by step."""
        episode, _ = self._episode(0)
        writer = self.buffer.episode(episode.task, episode_id=episode.key)
        self._open.append((writer, episode))

    def append(self) -> None:
        if not self._open:
            self.begin()
        writer, episode = self._open[self.rng.integers(len(self._open))]
        steps = []
        for reward in self._rewards(int(self.rng.integers(1, 6))):
            t = episode.length
            step = self.step(episode.task, "default", t, reward=reward, episode=episode, t=t)
            self._judge([step])
            values = {"reward": reward, "adv_t": step.adv_t, "v_t": step.v_t}
            given = {name: value for name, value in values.items() if value is not None}
            writer.append(**step.fields, **given)
            episode.length, episode.rewards = t + 1, [*episode.rewards, reward]
            steps.append(step)
        self.buffer.flush()
        self._keep(steps)

    def end(self) -> None:
        """End an episode that is written step by step, or abort it."""
        if not self._open:
            return
        writer, episode = self._open.pop(self.rng.integers(len(self._open)))
        if not episode.length:
            writer.abort()
            return
        if self.rng.random() < 0.3:
            writer.abort()
            episode.status = "aborted"
            return
        episode.final, episode.status = self._final(), "complete"
        writer.end(**(episode.final or {}))

    def _some(self) -> list[int]:
        self.forget_evicted()
        uids = list(self.model.steps)
        n = int(self.rng.integers(1, 4))
        return [int(uid) for uid in self.rng.choice(uids, min(n, len(uids)), replace=False)]

    def annotate(self) -> None:
        """Give rewards, advantages, values or declared scalars late."""
        uids = self._some()
        if not uids:
            return
        scalars = [name for name, (dtype, shape) in self.model.fields.items()
                   if shape == () and dtype.kind in "biuf" and name != "uid"]  # fmt: skip
        fields = {name: [self.value(name) for _ in uids] for name in scalars
                  if self.rng.random() < 0.5}  # fmt: skip
        values = {name: float(self.rng.integers(20)) for name in ("reward", "adv_t", "v_t")
                  if self.rng.random() < 0.6} or {"reward": 7.0}  # fmt: skip
        seqs = self.seqs()
        given = {name: np.array(column) for name, column in fields.items()}
        assert self.buffer.annotate([seqs[uid] for uid in uids], **values, **given) == len(uids)
        for i, uid in enumerate(uids):
            step = self.model.steps[uid]
            step.fields = {**step.fields, **{name: fields[name][i] for name in fields}}
            for name, value in values.items():
                setattr(step, name, value)
            if "reward" in values and step.episode is not None:
                step.episode.rewards[step.t] = values["reward"]

    def quarantine(self) -> None:
        if uids := self._some():
            seqs = self.seqs()
            self.buffer.quarantine([seqs[uid] for uid in uids])
            for uid in uids:
                self.model.steps[uid].is_quarantined = True

    def release(self) -> None:
        self.forget_evicted()
        uids = [uid for uid, step in self.model.steps.items() if step.is_quarantined][:2]
        if uids:
            seqs = self.seqs()
            self.buffer.release([seqs[uid] for uid in uids])
            for uid in uids:
                self.model.steps[uid].is_quarantined = False

    def delete(self) -> None:
        if uids := self._some()[:2]:
            self.buffer.delete(QueryBuilder().in_("uid", uids))
            for uid in uids:
                step = self.model.steps.pop(uid)
                if step.episode is not None and step.episode.status == "open":
                    step.episode.rewards[step.t] = None

    def tick(self) -> None:
        self.model.clock = (self.model.clock or 0) + 1
        self.buffer.set_clock(self.model.clock)

    def pass_time(self) -> None:
        """Let some time pass: steps leave that are too old, and none that is younger."""
        self.forget_evicted()
        seconds = float(self.rng.integers(60, 2_000))
        let_pass(self.url, seconds)
        self._now += seconds
        self.buffer.expire()
        age, held = self.buffer.max_age or 0.0, self.seqs()
        for uid in self.model.steps:
            passed = self._now - self._stored_at[uid]
            assert uid in held or passed > age - LATE_S
            assert uid not in held or passed < age + LATE_S

    def run(self, n: int) -> None:
        """Make n random calls."""
        calls: list[tuple[Callable[[], None], float]] = [
            (self.store_episode, 5), (self.append, 4), (self.end, 2), (self.extend, 2),
            (self.annotate, 1.5), (self.quarantine, 0.7), (self.release, 0.3), (self.delete, 1),
        ]  # fmt: skip
        if self.model.max_staleness is not None:
            calls.append((self.tick, 1))
        if self.buffer.max_age is not None:
            calls.append((self.pass_time, 2))
        weights = np.array([weight for _, weight in calls])
        for i in self.rng.choice(len(calls), n, p=weights / weights.sum()):
            calls[i][0]()
        self.forget_evicted()

    def forget_evicted(self) -> None:
        """Drop the steps that the buffer has evicted, which must be its oldest ones."""
        held = self.seqs()
        assert held.keys() <= self.model.steps.keys()
        order = list(self.model.steps)
        evicted = [uid for uid in order if uid not in held]
        is_limited = self.buffer.max_capacity is not None or self.buffer.max_age is not None
        assert not evicted or (is_limited and order[: len(evicted)] == evicted)
        for uid in evicted:
            del self.model.steps[uid]

    def seqs(self) -> dict[int, int]:
        """Return the number of each step."""
        return {int(row.fields["uid"]): int(row.seq or 0) for row in self.buffer.get_all()}


def items_of(batches: Iterable[Batch], world: World) -> Iterator[tuple[int, Item]]:
    """Yield (seq, item) of batches; padding is removed, and must be zeros."""
    varying = {name: shape.index(-1) for name, (_, shape) in world.model.fields.items()
               if -1 in shape}  # fmt: skip
    for batch in batches:
        if world.kind in SPACES:
            check_nested(batch)
        for i, seq in enumerate(batch.info["seq"].tolist()):
            item: Item = {f"info.{k}": plain(v[i]) for k, v in batch.info.items() if k != "seq"}
            for name, values in batch.items():
                base = name.removeprefix("next_").removeprefix("final_").removeprefix("seq_")
                own = base.removesuffix("_lens")
                if own in varying and own != base:
                    continue
                n = int(batch["lens"][i]) if "lens" in batch else None
                is_whole = n is None or name in ("lens", "has_final") or name.startswith("final_")
                value = values[i] if is_whole else values[i][:n]
                if not is_whole and values[i].ndim:
                    assert not np.any(values[i][n:]) or values.dtype.kind == "U"
                if base in varying:
                    lens = batch[f"{name}_lens"][i]
                    lens = lens if name.startswith("final_") or n is None else lens[:n]
                    value = unpadded(value, lens, varying[base])
                item[name] = value
            yield seq, item


def check_nested(batch: Batch) -> None:
    """Each array is nested where the space has it, and no other is there."""
    trees = {attribute: getattr(batch, attribute, None) for attribute, _ in NESTED.values()}
    for name, (attribute, path) in NESTED.items():
        if name in batch:
            assert reduce(getitem, path, trees[attribute]) is batch[name], name
    n_arrays = sum(name in batch for name in NESTED)
    assert n_arrays == sum(len(list(leaves(tree))) for tree in trees.values())


def leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (dict, tuple)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    elif tree is not None:
        yield tree


def unpadded(value: Any, lens: Any, axis: int) -> Any:
    """Return values of a varying length without their padding, which must be zeros."""
    if np.ndim(lens):
        return [unpadded(v, n, axis) for v, n in zip(value, lens, strict=True)]
    head, tail = np.split(value, [int(lens)], axis)
    assert not tail.any()
    return head


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def difference(expected: Item, found: Item) -> str | None:
    """Return the first thing in which two items differ."""
    if expected.keys() != found.keys():
        return f"names: {sorted(expected.keys() ^ found.keys())}"
    for name, value in expected.items():
        if not same(value, found[name]):
            return f"{name}: expected {value!r}, got {found[name]!r}"
    return None


def same(expected: Any, found: Any) -> bool:
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(same, expected, found))
    if isinstance(expected, (np.ndarray, np.generic)):
        a, b = np.asarray(expected), np.asarray(found)
        is_text = a.dtype.kind == b.dtype.kind == "U"  # numpy forgets the width of a single text
        if a.shape != b.shape or not (is_text or a.dtype == b.dtype):
            return False
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(expected, float) and expected != expected:
        return bool(found != found)
    return bool(expected == found)
