"""PPO on CartPole, in one file and one process: rollouts of a vector environment.

    python docs/examples/ppo.py --url sqlite:///ppo.db

The recorded environments store each step. Each iteration leases the steps that have not trained
the policy yet, each of them once, computes their advantages (GAE, Schulman et al. 2016, equation
16), and stores these with the steps. The policy, as it is now, has played all of them but the first
of each environment. So its probabilities and values are computed here. It needs gymnasium and
torch.
"""

import argparse
import time

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

from sqlbuffer import Batch, ReplayBuffer, fields_from_env

parser = argparse.ArgumentParser(description="PPO on CartPole")
parser.add_argument("--url", default="sqlite:///ppo.db", help="database")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--iterations", type=int, default=30)
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--num-steps", type=int, default=128, help="steps of an environment")
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--gae-lambda", type=float, default=0.95)
parser.add_argument("--num-minibatches", type=int, default=4)
parser.add_argument("--update-epochs", type=int, default=6)
parser.add_argument("--clip-coef", type=float, default=0.2)
parser.add_argument("--ent-coef", type=float, default=0.01)
args = parser.parse_args()

run_name = f"ppo-seed{args.seed}-{int(time.time())}"  # each run has its own buffer
torch.manual_seed(args.seed)
torch.set_num_threads(1)  # the networks are small
envs = gymnasium.make_vec(
    "CartPole-v1",
    num_envs=args.num_envs,
    vectorization_mode="sync",
    vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
)
N_OBS, N_ACTIONS = envs.single_observation_space.shape[0], int(envs.single_action_space.n)


def make_network(n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(N_OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_out)
    )


def advantages_of(steps: Batch, values: np.ndarray, next_values: np.ndarray) -> np.ndarray:
    """Return the advantage of each step, over the steps of its episode that are in the batch."""
    delta = steps.reward + args.gamma * next_values * ~steps.terminated - values
    advantages, following, episode = np.zeros_like(delta), 0.0, None
    for i in np.lexsort((steps.info["step"], steps.info["task_id"]))[::-1]:  # last steps first
        if steps.info["task_id"][i] != episode:
            following, episode = 0.0, steps.info["task_id"][i]
        following = delta[i] + args.gamma * args.gae_lambda * following
        advantages[i] = following
    return advantages


actor, critic = make_network(N_ACTIONS), make_network(1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=args.learning_rate)

fields = fields_from_env(envs, next_observation=True)
limits = {"leases": True, "max_use": 1, "keep_expired": True, "max_capacity": 1_000_000}
buffer = ReplayBuffer(args.url, run_name, create=True, **limits, **fields)
envs = buffer.record(envs)

returns, episode_returns = [], np.zeros(args.num_envs)
obs, _ = envs.reset(seed=args.seed)
for iteration in range(args.iterations):
    # The newest step of each environment waits for the next one, so the first rollout has one more.
    for _ in range(args.num_steps + (iteration == 0)):
        with torch.no_grad():
            action = Categorical(logits=actor(torch.from_numpy(obs))).sample().numpy()
        obs, reward, terminated, truncated, _ = envs.step(action)  # stored
        episode_returns += reward
        returns += episode_returns[terminated | truncated].tolist()
        episode_returns[terminated | truncated] = 0

    with buffer.lease(args.num_envs * args.num_steps, order="fifo") as batch:
        steps = batch.arrays()
        with torch.no_grad():
            tensors = steps.to_torch()
            values, next_values = critic(tensors.obs)[:, 0], critic(tensors.next_obs)[:, 0]
            old_log_prob = Categorical(logits=actor(tensors.obs)).log_prob(tensors.action)
        advantages = advantages_of(steps, values.numpy(), next_values.numpy())
        buffer.annotate(steps.info["seq"], adv_t=advantages, v_t=values.numpy())
        advantages = torch.from_numpy(advantages)
        value_targets = advantages + values
        for _ in range(args.update_epochs):
            for mb in torch.randperm(len(advantages)).chunk(args.num_minibatches):
                policy = Categorical(logits=actor(tensors.obs[mb]))
                ratio = (policy.log_prob(tensors.action[mb]) - old_log_prob[mb]).exp()
                adv = (advantages[mb] - advantages[mb].mean()) / (advantages[mb].std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                policy_loss = -torch.min(adv * ratio, adv * clipped).mean()
                value_loss = (critic(tensors.obs[mb])[:, 0] - value_targets[mb]).square().mean()
                loss = policy_loss + 0.5 * value_loss - args.ent_coef * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
                optimizer.step()
    print(f"iteration {iteration}: mean return {np.mean(returns[-20:]):.0f}", flush=True)

envs.close()
buffer.close()
print(f"{len(returns)} episodes, mean return of the last 20: {np.mean(returns[-20:]):.1f}")
