"""Environments that do what a test wants."""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv


class Scripted(gymnasium.Env):
    """Ends as it is told: `ends` says of each episode how many steps it has and how it ends.

    The observation is (episode, step), where `reuses` in one array for all.
    """

    observation_space = spaces.Box(0, 1e6, (2,), np.float32)
    metadata = {"render_modes": ["ansi"], "purpose": "tests"}  # noqa: RUF012

    def __init__(
        self,
        ends=((3, "terminated"),),
        *,
        action_space=None,
        reward=1.0,
        fails_at=None,
        reuses=False,
    ):
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.render_mode = "ansi"
        self._ends, self._reward = ends, reward
        self._fails_at, self._reuses = fails_at, reuses
        self._seen = np.zeros(2, np.float32)
        self._episode, self._t, self.closings = -1, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode, self._t = self._episode + 1, 0
        self._seen[:] = self._episode, 0
        return self._observed(), {"options": options}

    def step(self, action):
        self._t += 1
        if self._fails_at == (self._episode, self._t):
            raise OSError("the simulator is gone")
        if isinstance(action, np.ndarray) and action.dtype.kind == "f":
            action *= 100  # as careless environments do
        self._seen[1] = self._t
        length, how = self._ends[self._episode % len(self._ends)]
        has_ended = self._t == length
        flags = [has_ended and how in (flag, "both") for flag in ("terminated", "truncated")]
        return self._observed(), self._reward, *flags, {"t": self._t}

    def _observed(self):
        return self._seen if self._reuses else self._seen.copy()

    def render(self):
        return f"episode {self._episode}, step {self._t}"

    def close(self):
        self.closings += 1


class Rooms(gymnasium.Env):
    """Has observations and actions of parts, and ends by chance."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"pose": spaces.Box(-1, 1, (2,), np.float64)}),
            "room": spaces.Discrete(1_000_000),
            "both": spaces.Tuple((spaces.MultiBinary(3), spaces.Box(0, 255, (2, 2), np.uint8))),
        }
    )
    action_space = spaces.Dict({"go": spaces.Discrete(2), "by": spaces.Box(-1, 1, (1,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action):
        reward = float(action["go"] + action["by"][0])
        ends = self.np_random.random(2) < 0.2
        return self._observed(), reward, bool(ends[0]), bool(ends[1]), {}

    def _observed(self):
        rng = self.np_random
        bits, picture = rng.integers(0, 2, 3, np.int8), rng.integers(0, 255, (2, 2), np.uint8)
        return {
            "arm": {"pose": rng.uniform(-1, 1, 2)},
            "room": rng.integers(1_000_000),
            "both": (bits, picture),
        }


class Shapes(gymnasium.Env):
    """Has texts, sequences and graphs, and ends by chance."""

    def __init__(self):
        names = spaces.Dict({"at": spaces.MultiBinary(2), "name": spaces.Text(3)})
        self.observation_space = spaces.Dict(
            {
                "note": spaces.Text(6, min_length=0),
                "a molecule": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(5)),
                "bare": spaces.Graph(spaces.Discrete(4), None),
                "both": spaces.Tuple(
                    (spaces.Sequence(spaces.Box(0, 1, (2,))), spaces.Sequence(names))
                ),
                "stack": spaces.Sequence(names, stack=True),
            }
        )
        self.action_space = spaces.Dict(
            {"say": spaces.Text(4), "path": spaces.Sequence(spaces.Discrete(9))}
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self._observed(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(len(action["path"]) + len(action["say"]))
        ends = self.np_random.random(2) < 0.2
        return self._observed(), reward, bool(ends[0]), bool(ends[1]), {}

    def _observed(self):
        observed = self.observation_space.sample()
        n_nodes = int(self.np_random.integers(1, 4))  # one node alone has no edges: None
        molecule = self.observation_space["a molecule"].sample(num_nodes=n_nodes)
        return {**observed, "a molecule": molecule}


class Batched(VectorEnv):
    """A vector environment without environments in it, of SAME_STEP, as those on accelerators are:
    final observations come as one array, of all.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = spaces.Box(0, 1e6, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs, length, tells=("final_obs", "_final_obs")):
        self.num_envs, self._length, self._tells = num_envs, length, tells
        self.observation_space = spaces.Box(0, 1e6, (num_envs, 1), np.float32)
        self.action_space = spaces.MultiDiscrete([2] * num_envs)
        self._t = np.zeros((num_envs, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        self._t[:] = 0
        return self._t, {}

    def step(self, actions):
        self._t += 1
        done = (self._t == self._length)[:, 0]
        told = {"final_obs": self._t.copy(), "_final_obs": done}
        self._t[done] = 0
        info = {name: told[name] for name in self._tells} if done.any() else {}
        return self._t, np.ones(self.num_envs), done, np.zeros(self.num_envs, bool), info
