"""SAC on Pendulum, in one file and one process.

    python docs/examples/sac.py --url sqlite:///sac.db

The recorded environment stores each step. The learner draws transitions from a mirror of the
buffer, in memory. SAC with a learned temperature (Haarnoja et al. 2018, version 2). It needs
gymnasium and torch.
"""

import argparse
import copy
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sqlbuffer import ReplayBuffer, fields_from_env

parser = argparse.ArgumentParser(description="SAC on Pendulum")
parser.add_argument("--url", default="sqlite:///sac.db", help="database")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-timesteps", type=int, default=5_000)
parser.add_argument("--learning-rate", type=float, default=2e-3)
parser.add_argument("--buffer-size", type=int, default=100_000)
parser.add_argument("--gamma", type=float, default=0.98)
parser.add_argument("--tau", type=float, default=0.01, help="how far the target critics move")
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--learning-starts", type=int, default=600)
args = parser.parse_args()

run_name = f"sac-seed{args.seed}-{int(time.time())}"  # each run has its own buffer
torch.manual_seed(args.seed)
torch.set_num_threads(1)  # the networks are small
env = gymnasium.make("Pendulum-v1")
env.action_space.seed(args.seed)
N_OBS, N_ACTIONS = env.observation_space.shape[0], env.action_space.shape[0]
SCALE = float(env.action_space.high[0])


def make_network(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_out)
    )


def get_action(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions that the policy draws, and the logarithms of their densities."""
    mean, log_std = actor(obs).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    drawn = normal.rsample()
    squashed = torch.tanh(drawn)
    log_prob = normal.log_prob(drawn) - torch.log(SCALE * (1 - squashed**2) + 1e-6)
    return SCALE * squashed, log_prob.sum(-1)


def least(critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return torch.min(*(critic(torch.cat([obs, action], 1))[:, 0] for critic in critics))


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


actor = make_network(N_OBS, 2 * N_ACTIONS)
critics = nn.ModuleList(make_network(N_OBS + N_ACTIONS, 1) for _ in range(2))
targets = copy.deepcopy(critics)
log_alpha = torch.zeros(1, requires_grad=True)
parameters = (actor.parameters(), critics.parameters(), [log_alpha])
actor_optimizer, critic_optimizer, alpha_optimizer = (
    torch.optim.Adam(group, lr=args.learning_rate) for group in parameters
)

buffer = ReplayBuffer(
    args.url, run_name, create=True, max_capacity=args.buffer_size, **fields_from_env(env)
)
mirror = buffer.mirror(refresh_s=0.1)
env = buffer.record(env)

returns, episode_return = [], 0.0
obs, _ = env.reset(seed=args.seed)
for global_step in range(args.total_timesteps):
    if global_step < args.learning_starts:
        action = env.action_space.sample()
    else:
        with torch.no_grad():
            action = get_action(torch.from_numpy(obs))[0].numpy()
    obs, reward, terminated, truncated, _ = env.step(action)  # stored
    episode_return += float(reward)
    if terminated or truncated:
        returns.append(episode_return)
        episode_return = 0.0
        obs, _ = env.reset()
        print(f"step {global_step}: return {returns[-1]:.0f}", flush=True)
    if global_step < args.learning_starts:
        continue

    data = mirror.sample_transitions(args.batch_size, gamma=args.gamma).to_torch()
    alpha = log_alpha.exp().detach()
    with torch.no_grad():
        next_action, log_prob = get_action(data.next_obs)
        next_value = least(targets, data.next_obs, next_action) - alpha * log_prob
        target = data.reward + data.discount * next_value  # the discount is 0 at the end
    pairs = torch.cat([data.obs, data.action], 1)
    step(critic_optimizer, sum(functional.mse_loss(c(pairs)[:, 0], target) for c in critics))
    action, log_prob = get_action(data.obs)
    step(actor_optimizer, (alpha * log_prob - least(critics, data.obs, action)).mean())
    step(alpha_optimizer, -(log_alpha * (log_prob.detach() - N_ACTIONS)).mean())
    with torch.no_grad():
        for slow, fast in zip(targets.parameters(), critics.parameters(), strict=True):
            slow.lerp_(fast, args.tau)

env.close()
mirror.close()
buffer.close()
print(f"{len(returns)} episodes, mean return of the last 5: {np.mean(returns[-5:]):.1f}")
