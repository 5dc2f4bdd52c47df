"""What writing the steps of many environments together costs beside whole episodes."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from sqlbuffer import ReplayBuffer, fields_from_env
from tests.benchmarks.bench import Bench
from tests.benchmarks.measure import Timed, in_turns
from tests.benchmarks.report import Figure, shown_rate

N_ENVS = (64, 512)
LENGTH, STEPS = 1_000, 250  # of an episode, and of each environment in a round


class Free(VectorEnv):
    """Environments that cost nothing, with episodes that end at different times."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    single_action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(n)
        self.num_envs = n
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space = batch_space(self.single_action_space, n)
        self.obs = rng.normal(size=(n, 17)).astype(np.float32)
        self.actions = rng.uniform(-1, 1, (n, 6)).astype(np.float32)
        self._t, self._done = rng.integers(0, LENGTH, n), np.zeros(n, bool)
        self._none = np.zeros(n, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.obs, {}

    def step(self, actions: Any) -> Any:
        self._t += 1
        self._t[self._done] = 0
        self._done = self._t >= LENGTH
        return self.obs, self._t.astype(np.float64), self._none, self._done, {}


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    for n in N_ENVS:
        with bench.database() as url:
            yield from _of_envs(bench, url, n)


def _of_envs(bench: Bench, url: str, n: int) -> Iterator[Figure]:
    env, episode, n_steps = Free(n), _episode(), STEPS * n
    made = fields_from_env(env)
    whole, written, recorded = (
        ReplayBuffer(url, name=name, create=True, **made)
        for name in ("whole", "written", "recorded")
    )
    wrapped, writer = recorded.record(env), written.vector_writer(n)
    wrapped.reset()
    bench.say(f"writing {n_steps:,} steps of {n} environments")

    def store() -> None:
        for _ in range(n_steps // LENGTH):
            whole.store_episode(episode)

    def write() -> None:
        for _ in range(STEPS):
            obs, rewards, terminated, truncated, _ = env.step(env.actions)
            steps = {"obs": env.obs, "action": env.actions, "reward": rewards}
            flags = {"terminated": terminated, "truncated": truncated}
            writer.write({**steps, **flags}, final={"obs": obs})
        written.flush()

    def record() -> None:
        for _ in range(STEPS):
            wrapped.step(env.actions)
        recorded.flush()

    calls = {"whole": Timed(store), "written": Timed(write), "recorded": Timed(record)}
    timings = in_turns(calls, bench.scale.times(10), warmup=1)
    rates = {name: shown_rate(n_steps / timings.median(name)) for name in calls}
    for name, what in (("written", "`vector_writer`"), ("recorded", "`record`")):
        yield Figure(
            f"{what} of {n} environments vs `store_episode`",
            bench.label,
            f"{rates[name]}, whole episodes {rates['whole']}",
            timings.ratio("whole", name),
            0.8,
        )
    wrapped.close()
    writer.close()
    for buffer in (whole, written, recorded):
        buffer.close()


def _episode() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(LENGTH, 17)).astype(np.float32),
        "action": rng.uniform(-1, 1, (LENGTH, 6)).astype(np.float32),
        "reward": np.arange(LENGTH, dtype=np.float64),
        "terminated": np.zeros(LENGTH, bool),
        "truncated": np.arange(LENGTH) == LENGTH - 1,
    }
