"""CartPole-v1 episodes as rows."""

import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from sqlbuffer.errors import MissingExtraError
from sqlbuffer.extras import install
from sqlbuffer.steps import DataRow, Experience, ExpMeta

# How often each version of the model acts at random: 20 to 180 steps an episode on average.
EXPLORATION = (1.0, 0.75, 0.6, 0.5, 0.4)


def require_gymnasium() -> None:
    """Raise where gymnasium is not installed.

    Raises:
        MissingExtraError: Names the command that installs it.
    """
    if find_spec("gymnasium") is None:
        raise MissingExtraError(f"the demo plays CartPole with gymnasium; run {install('demo')}")


def make_environment() -> Any:
    """Return a CartPole-v1 environment."""
    require_gymnasium()
    import gymnasium

    return gymnasium.make("CartPole-v1")


def play(
    environment: Any, *, task_id: str, agent_id: str, model_version: int, seed: int
) -> list[DataRow]:
    """Play one episode and return its steps.

    Args:
        environment: From `make_environment`.
        task_id: Task of the episode.
        agent_id: Agent that plays.
        model_version: Version of the policy; later versions explore less.
        seed: Seed of the environment and of the exploration.
    """
    rng = np.random.default_rng(seed)
    observation, _ = environment.reset(seed=seed)
    rows: list[DataRow] = []
    ended = False
    while not ended:
        action = _act(observation, EXPLORATION[model_version], rng)
        following, reward, terminated, truncated, _ = environment.step(action)
        ended = terminated or truncated
        meta = ExpMeta(
            task_id,
            "CartPole-v1",
            agent_id,
            len(rows),
            time.time(),
            model_version=model_version,
        )
        data = Experience(observation, [action], reward, terminated=terminated, truncated=truncated)
        rows.append(DataRow(meta, data))
        observation = following
    return rows


def _act(observation: Any, exploration: float, rng: np.random.Generator) -> int:
    """Push towards the side to which the pole falls, or at random."""
    if rng.random() < exploration:
        return int(rng.integers(2))
    _, _, angle, angular_velocity = observation
    return int(angle + angular_velocity > 0)
