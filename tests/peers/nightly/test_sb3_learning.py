"""An algorithm of Stable-Baselines3 learns from steps in a database."""

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy

from sqlbuffer.integrations.sb3 import SQLReplayBuffer


def mean_return_after(model, n_steps, wanted, most):
    """Learn for some rounds at most, until the mean return is as wanted; return it."""
    found = float("-inf")
    for i in range(most):
        model.learn(n_steps, reset_num_timesteps=not i)
        found, _ = evaluate_policy(model, model.get_env(), 10)
        if found >= wanted:
            break
    model.replay_buffer.close()
    return found


@pytest.mark.slow
def test_dqn_learns_cartpole(sqlite_url):
    model = DQN(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", learning_rate=2.3e-3, batch_size=64,
        learning_starts=1_000, target_update_interval=10, train_freq=256, gradient_steps=128,
        exploration_fraction=0.16, exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        replay_buffer_class=SQLReplayBuffer, replay_buffer_kwargs={"url": sqlite_url},
    )  # fmt: skip
    assert mean_return_after(model, 4_000, wanted=150, most=8) >= 150  # 20 at random
