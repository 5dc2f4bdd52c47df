"""DQN on CartPole, in one file and one process.

    python docs/examples/dqn.py --url sqlite:///dqn.db

The recorded environment stores each step. The learner draws three-step transitions from a mirror of
the buffer, in memory. Double DQN (van Hasselt et al. 2016). It needs gymnasium and torch.
"""

import argparse
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sqlbuffer import ReplayBuffer, fields_from_env

parser = argparse.ArgumentParser(description="DQN on CartPole")
parser.add_argument("--url", default="sqlite:///dqn.db", help="database")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=10_000)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--buffer-size", type=int, default=50_000)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--n-step", type=int, default=3)
parser.add_argument("--tau", type=float, default=0.01, help="how far the target network moves")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--end-e", type=float, default=0.02, help="share of random actions at the end")
parser.add_argument("--exploration-fraction", type=float, default=0.3, help="of the timesteps")
parser.add_argument("--learning-starts", type=int, default=500)
parser.add_argument("--train-frequency", type=int, default=2)
args = parser.parse_args()

run_name = f"dqn-seed{args.seed}-{int(time.time())}"  # each run has its own buffer
torch.manual_seed(args.seed)
torch.set_num_threads(1)  # the networks are small
rng = np.random.default_rng(args.seed)


def make_network(env: gymnasium.Env) -> nn.Sequential:
    n_obs, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    return nn.Sequential(
        nn.Linear(n_obs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, n_actions)
    )


env = gymnasium.make("CartPole-v1")
q_network, target_network = make_network(env), make_network(env)
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)

buffer = ReplayBuffer(
    args.url, run_name, create=True, max_capacity=args.buffer_size, **fields_from_env(env)
)
mirror = buffer.mirror(refresh_s=0.1)
env = buffer.record(env)

returns, episode_return = [], 0.0
obs, _ = env.reset(seed=args.seed)
for global_step in range(args.total_timesteps):
    # Act: epsilon-greedy.
    share = global_step / (args.exploration_fraction * args.total_timesteps)
    epsilon = max(args.end_e, 1 + share * (args.end_e - 1))
    if rng.random() < epsilon:
        action = int(rng.integers(env.action_space.n))
    else:
        with torch.no_grad():
            action = int(q_network(torch.from_numpy(obs)).argmax())

    obs, reward, terminated, truncated, _ = env.step(action)  # stored
    episode_return += float(reward)
    if terminated or truncated:
        returns.append(episode_return)
        episode_return = 0.0
        obs, _ = env.reset()
        if len(returns) % 20 == 0:
            print(f"step {global_step}: mean return {np.mean(returns[-20:]):.0f}", flush=True)

    # Learn.
    if global_step < args.learning_starts or global_step % args.train_frequency:
        continue
    data = mirror.sample_transitions(args.batch_size, n_step=args.n_step, gamma=args.gamma)
    data = data.to_torch()
    with torch.no_grad():
        next_action = q_network(data.next_obs).argmax(1, keepdim=True)
        next_value = target_network(data.next_obs).gather(1, next_action)[:, 0]
        target = data.reward + data.discount * next_value  # the discount is 0 at the end
    value = q_network(data.obs).gather(1, data.action[:, None])[:, 0]
    loss = functional.smooth_l1_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        parameters = zip(target_network.parameters(), q_network.parameters(), strict=True)
        for slow, fast in parameters:
            slow.lerp_(fast, args.tau)

env.close()
mirror.close()
buffer.close()
print(f"{len(returns)} episodes, mean return of the last 20: {np.mean(returns[-20:]):.1f}")
