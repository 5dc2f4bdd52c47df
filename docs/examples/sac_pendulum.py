"""Soft actor-critic on Pendulum: collectors play and record, a learner draws from a mirror.

    python docs/examples/sac_pendulum.py --url postgresql://me@db.internal/replay --collectors 4

Each collector records its environment and reads the newest policy before an episode. The learner
keeps a mirror of the buffer, so that its draws need no SQL. The task is solved when the mean return
of the last 20 episodes is -250 (a random policy gets -1200). It needs gymnasium and torch. The exit
code is 0 when the task is solved or a quick run has ended, 1 when it is not, and 2 when a collector
has died.

The algorithm is SAC with two critics and a learned temperature (Haarnoja et al. 2018, version 2).
"""

import argparse
import copy
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium
import numpy as np

from sqlbuffer import LatestSampler, ReplayBuffer, fields_from_env

BUFFER = "pendulum"
ENVIRONMENT = "Pendulum-v1"
EPISODE = 200  # steps
LAST = 20  # episodes that the verdict is about
GAMMA, LARGEST_ACTION = 0.99, 2.0


@dataclass(frozen=True)
class Plan:
    """The sizes and rates of a run."""

    capacity: int = 100_000
    hidden: int = 128
    batch_size: int = 256
    warmup: int = 2_000  # steps stored before the first update
    steps_per_update: float = 1.0  # the collectors wait for the learner
    learning_rate: float = 1e-3
    target_rate: float = 0.005  # how far the target critics move at an update
    publish_every: int = 50  # updates
    updates: int = 60_000  # at most


QUICK = replace(Plan(), hidden=32, batch_size=32, warmup=600, steps_per_update=20.0, updates=150)


def open_buffer(url: str, plan: Plan) -> ReplayBuffer:
    """Open the buffer; the first process creates it."""
    with gymnasium.make(ENVIRONMENT) as env:
        fields = fields_from_env(env)
    return ReplayBuffer(url, name=BUFFER, max_capacity=plan.capacity, create=True, **fields)


# The collectors. They need no torch: numpy computes the policy.


def collect(url: str, policy: Path, plan: Plan, number: int, n: int, stop) -> None:
    """Play episodes until told to stop, or until the learner's process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner
    rng = np.random.default_rng([number, os.getpid()])
    learner, played = multiprocessing.parent_process(), 0
    buffer = open_buffer(url, plan)
    with buffer, buffer.record(gymnasium.make(ENVIRONMENT), agent_id=f"collector-{number}") as env:
        while not stop.is_set() and learner.is_alive():
            with np.load(policy) as file:
                weights = dict(file)
            budget = plan.warmup + int(weights["updates"]) * plan.steps_per_update
            if played > budget / n:
                time.sleep(0.02)
                continue
            env.model_version = int(weights["updates"])
            obs, _ = env.reset(seed=int(rng.integers(2**31)))
            for _ in range(EPISODE):
                obs, *_ = env.step(act(weights, obs, rng))
            played += EPISODE


def act(weights, obs, rng):
    """Draw an action from the policy."""
    hidden = obs
    for layer in ("0", "2"):
        hidden = np.maximum(weights[f"{layer}.weight"] @ hidden + weights[f"{layer}.bias"], 0)
    mean, log_std = weights["4.weight"] @ hidden + weights["4.bias"]
    drawn = np.tanh(mean + np.exp(np.clip(log_std, -5, 2)) * rng.standard_normal())
    return np.array([LARGEST_ACTION * drawn], np.float32)


# The learner.


class Learner:
    """The policy, its critics and its temperature."""

    def __init__(self, policy_file: Path, plan: Plan) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch, self._plan, self._file = torch, plan, policy_file
        self._policy = network(3, plan.hidden, 2)
        self._critics = torch.nn.ModuleList(network(4, plan.hidden, 1) for _ in range(2))
        self._targets = copy.deepcopy(self._critics)
        self._log_alpha = torch.zeros(1, requires_grad=True)
        self._optimizers = [
            torch.optim.Adam(parameters, lr=plan.learning_rate)
            for parameters in (
                self._policy.parameters(),
                self._critics.parameters(),
                [self._log_alpha],
            )
        ]
        self.updates = 0
        self.publish()

    def update(self, batch) -> None:
        """Learn from a batch of transitions, as tensors."""
        torch, alpha = self._torch, self._log_alpha.exp().detach()
        reward, discount = batch["reward"] / 10, batch["discount"]
        with torch.no_grad():
            actions, log_p = self._draw(batch["next_obs"])
            following = self._least(self._targets, batch["next_obs"], actions) - alpha * log_p
            wanted = reward + discount * following
        pairs = torch.cat([batch["obs"], batch["action"]], 1)
        critics = [critic(pairs)[:, 0] for critic in self._critics]
        self._step(1, sum(torch.nn.functional.mse_loss(found, wanted) for found in critics))
        actions, log_p = self._draw(batch["obs"])
        value = self._least(self._critics, batch["obs"], actions)
        self._step(0, (alpha * log_p - value).mean())
        # The entropy to reach is minus the number of actions, which is one.
        self._step(2, -(self._log_alpha * (log_p.detach() - 1.0)).mean())
        with torch.no_grad():
            pairs = zip(self._targets.parameters(), self._critics.parameters(), strict=True)
            for slow, quick in pairs:
                slow.lerp_(quick, self._plan.target_rate)
        self.updates += 1
        if self.updates % self._plan.publish_every == 0:
            self.publish()

    def _draw(self, obs):
        """Return actions of the policy and the logarithms of their densities."""
        torch = self._torch
        mean, log_std = self._policy(obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        squashed = torch.tanh(raw)
        log_p = normal.log_prob(raw) - torch.log(LARGEST_ACTION * (1 - squashed**2) + 1e-6)
        return LARGEST_ACTION * squashed, log_p[:, 0]

    def _least(self, critics, obs, actions):
        pairs = self._torch.cat([obs, actions], 1)
        return self._torch.minimum(*(critic(pairs)[:, 0] for critic in critics))

    def _step(self, which: int, loss) -> None:
        self._optimizers[which].zero_grad()
        loss.backward()
        self._optimizers[which].step()

    def publish(self) -> None:
        """Write the policy for the collectors, so that none sees half of it."""
        arrays = {name: value.numpy() for name, value in self._policy.state_dict().items()}
        new = self._file.with_name(f"{self._file.name}.new")
        with new.open("wb") as file:
            np.savez(file, **arrays, updates=self.updates)
        new.replace(self._file)


def network(n_in: int, hidden: int, n_out: int):
    from torch import nn

    return nn.Sequential(
        nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, n_out),
    )  # fmt: skip


# The run.


def run(args: argparse.Namespace) -> int:
    plan = QUICK if args.quick else Plan()
    with open_buffer(args.url, plan) as buffer, buffer.mirror() as mirror:
        learner = Learner(Path(args.policy), plan)
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        collectors = [
            context.Process(
                target=collect,
                args=(args.url, Path(args.policy), plan, number, args.collectors, stop),
                daemon=True,
            )
            for number in range(args.collectors)
        ]
        for collector in collectors:
            collector.start()
        try:
            return learn(args, plan, buffer, mirror, learner, collectors)
        finally:
            stop.set()
            for collector in collectors:
                collector.join(10)


def learn(args, plan: Plan, buffer, mirror, learner: Learner, collectors) -> int:
    """Update the policy until the task is solved or the time is over; return the exit code."""
    started = reported = time.monotonic()
    while learner.updates < plan.updates and time.monotonic() - started < args.seconds:
        if any(collector.exitcode is not None for collector in collectors):
            print("BROKEN: a collector has died; its error is above")
            return 2
        if len(mirror) < plan.warmup:
            time.sleep(0.02)
            continue
        learner.update(mirror.sample_transitions(plan.batch_size, gamma=GAMMA).to_torch())
        now = time.monotonic()
        if now - reported > args.report_s:
            reported, mean = now, mean_return(buffer)
            rate = learner.updates / (now - started)
            print(
                f"{now - started:4.0f} s  {len(mirror)} steps, {learner.updates} updates "
                f"({rate:.0f}/s), mean return of the last {LAST} episodes {mean:.0f}",
                flush=True,
            )
            if mean >= args.solve_at:
                print(f"SOLVED: the mean return is {mean:.0f} after {now - started:.0f} s")
                return 0
    print(f"{'NOT SOLVED, as expected of a quick run' if args.quick else 'NOT SOLVED'}: "
          f"{learner.updates} updates on {len(mirror)} steps")  # fmt: skip
    return 0 if args.quick else 1


def mean_return(buffer: ReplayBuffer) -> float:
    """Return the mean return of the newest episodes."""
    rows = buffer.sample_arrays(
        min(LAST * EPISODE, len(buffer)), fields=["reward"], sampler=LatestSampler()
    )
    return float(rows.reward.sum() / (rows.n_rows / EPISODE))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///sac.db", help="of the database")
    parser.add_argument("--policy", default="sac_pendulum.npz", help="file of the policy")
    parser.add_argument("--seconds", type=float, default=900, help="give up after this time")
    parser.add_argument("--collectors", type=int, default=4, help="processes that play")
    parser.add_argument("--solve-at", type=float, default=-250, help="mean return to reach")
    parser.add_argument("--report-s", type=float, default=5, help="seconds between reports")
    parser.add_argument("--quick", action="store_true", help="make 150 updates only")
    args = parser.parse_args()
    if args.collectors < 1:
        parser.error("--collectors is 1 or more")
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
