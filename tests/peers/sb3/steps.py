"""Steps as the algorithms of Stable-Baselines3 give them to a replay buffer."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

FRAME = 4  # bytes that the number of a step takes in a frame
SPACES: dict[str, spaces.Space] = {
    "vector": spaces.Box(-np.inf, np.inf, (3,)),
    "double": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "frames": spaces.Box(0, 255, (2, 6, 6), np.uint8),
    "number": spaces.Discrete(10_000_000),
    "dict": spaces.Dict(
        {
            "achieved-goal": spaces.Box(-1, 1, (2,)),
            "camera": spaces.Box(0, 255, (1, 4, 4), np.uint8),
            "number": spaces.Discrete(10_000_000),
        }
    ),
}
ACTIONS: dict[str, spaces.Space] = {
    "box": spaces.Box(-1, 1, (2,)),
    "double": spaces.Box(-1, 1, (1, 2), np.float64),
    "discrete": spaces.Discrete(5),
    "multi_binary": spaces.MultiBinary(3),
    "multi_discrete": spaces.MultiDiscrete([2, 4]),
}


class Step(NamedTuple):
    """The arguments of `add`."""

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    done: Any
    infos: list[dict[str, Any]]


def observation(space: spaces.Space, numbers: np.ndarray) -> Any:
    """Return observations that hold their numbers, one of each environment."""
    if isinstance(space, spaces.Dict):
        return {key: observation(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return numbers.astype(np.int64)
    values = np.zeros((len(numbers), *space.shape), space.dtype)
    flat = values.reshape(len(numbers), -1)
    if space.dtype == np.uint8:
        flat[:, :FRAME] = numbers.astype("<u4")[:, None].view(np.uint8)
    else:
        flat[:, :1] = numbers[:, None]
        flat[:, 1:] = np.sin(numbers)[:, None] * np.arange(1, flat.shape[1])
    return values


def numbers_of(space: spaces.Space, observations: Any) -> np.ndarray:
    """Return the numbers of sampled observations."""
    if isinstance(space, spaces.Dict):
        return numbers_of(space["number"], observations["number"])
    flat = np.asarray(observations).reshape(len(observations), -1)
    if flat.dtype == np.uint8:
        return np.ascontiguousarray(flat[:, :FRAME]).view("<u4")[:, 0].astype(np.int64)
    return flat[:, 0].astype(np.int64)


def steps(
    space: spaces.Space, action: spaces.Space, n_envs: int, n: int, seed: int = 0, first: int = 1
) -> Iterator[Step]:
    """Yield n steps of each environment. No two observations are equal, but for those after a step
    and before the next one.
    """
    rng, number = np.random.default_rng(seed), first
    action.seed(seed)
    now = np.arange(number, number + n_envs)
    number += n_envs
    for _ in range(n):
        after = np.arange(number, number + n_envs)
        number += n_envs
        done = rng.random(n_envs) < 0.15
        cut = done & (rng.random(n_envs) < 0.5)
        yield Step(
            observation(space, now),
            observation(space, after),
            np.array([action.sample() for _ in range(n_envs)]),
            rng.normal(size=n_envs).astype(np.float32),
            done,
            [{"TimeLimit.truncated": bool(each)} for each in cut],
        )
        fresh = np.arange(number, number + n_envs)
        number += n_envs
        now = np.where(done, fresh, after)
