"""Stable-Baselines3 with four collectors in other processes, one learner, and one URL.

    python docs/examples/sb3_collectors.py --url postgresql://me@db.internal/replay

All of them are SAC with the same replay buffer. A collector takes no gradient steps: it plays,
stores its steps, and reads the newest policy after each episode. The learner only calls `train`.
Collectors may run on other machines, if they see the file of the policy. A rate limiter keeps one
gradient step for each step played; it is stored with the buffer.

The task, Pendulum, is solved when the mean return of the last 20 episodes is -250 (a random policy
gets -1200). Kill any process and start again: the experience is still there. It needs `pip install
'.[sb3]'` in the checkout. The exit code is 0 when the task is solved or a quick run has ended, 1
when it is not, and 2 when a collector has died.
"""

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from sqlbuffer import LatestSampler, RateLimiter
from sqlbuffer.integrations.sb3 import SQLReplayBuffer

EPISODE = 200  # steps
LAST = 20  # episodes that the verdict is about


@dataclass(frozen=True)
class Plan:
    """The sizes and rates of a run."""

    hidden: int = 64
    batch_size: int = 256
    learning_rate: float = 1e-3
    warmup: int = 2_000  # steps stored before the first update
    publish_every: int = 50  # updates
    updates: int = 30_000  # at most


QUICK = replace(Plan(), hidden=16, batch_size=32, warmup=800, publish_every=10, updates=100)


def sac(url: str, plan: Plan, agent_id: str, **options) -> SAC:
    """Return SAC with its buffer in the database, by `replay_buffer_class`."""
    return SAC(
        "MlpPolicy",
        "Pendulum-v1",
        device="cpu",
        buffer_size=100_000,
        learning_rate=plan.learning_rate,
        policy_kwargs={"net_arch": [plan.hidden, plan.hidden]},
        replay_buffer_class=SQLReplayBuffer,
        replay_buffer_kwargs={
            "url": url,
            "name": "pendulum",
            "create": True,
            "agent_id": agent_id,
            "rate_limiter": RateLimiter(samples_per_insert=plan.batch_size, min_size=plan.warmup),
        },
        **options,
    )


class FollowLearner(BaseCallback):
    """After each episode, wait until its steps may be stored, and read the newest policy."""

    def __init__(self, policy: Path) -> None:
        super().__init__()
        self._policy = policy

    def _on_step(self) -> bool:
        if self.locals["dones"].any():
            self.model.replay_buffer.buffer.flush()
            found = torch.load(self._policy, weights_only=True)
            self.model.actor.load_state_dict(found["actor"])
            self.model.replay_buffer.model_version = found["updates"]
        return multiprocessing.parent_process().is_alive()


def collect(url: str, plan: Plan, policy: Path, number: int) -> None:
    """Play until the process is terminated."""
    torch.set_num_threads(1)
    model = sac(
        url, plan, f"collector-{number}", gradient_steps=0, learning_starts=2 * EPISODE, seed=number
    )
    model.learn(10**9, callback=FollowLearner(policy), log_interval=None)


def publish(model: SAC, policy: Path, updates: int) -> None:
    """Write the policy for the collectors, so that none sees half of it."""
    new = policy.with_suffix(".new")
    torch.save({"actor": model.actor.state_dict(), "updates": updates}, new)
    os.replace(new, policy)


def mean_return(replay: SQLReplayBuffer) -> float:
    """Return the mean return of the newest episodes."""
    newest = replay.buffer.sample_arrays(
        min(LAST * EPISODE, replay.size()), fields=["reward"], sampler=LatestSampler()
    )
    return float(newest.reward.sum() / (newest.n_rows / EPISODE))


def run(args) -> int:
    """Learn while others play; return the exit code."""
    plan, policy = QUICK if args.quick else Plan(), Path(args.policy).absolute()
    model = sac(args.url, plan, "learner")
    model.set_logger(configure(None, []))
    print(f"{model.replay_buffer.size()} steps are stored", flush=True)
    publish(model, policy, 0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stable_baselines3", "sqlbuffer.integrations.sb3"])
    collectors = [
        context.Process(target=collect, args=(args.url, plan, policy, number))
        for number in range(args.collectors)
    ]
    for collector in collectors:
        collector.start()
    try:
        return learn(args, plan, policy, model, collectors)
    finally:
        for collector in collectors:
            collector.terminate()
        for collector in collectors:
            collector.join()
        model.replay_buffer.close()


def learn(args, plan: Plan, policy: Path, model: SAC, collectors) -> int:
    """Update the policy until the task is solved or the time is over; return the exit code."""
    started = reported = time.monotonic()
    updates, replay = 0, model.replay_buffer
    while updates < plan.updates and time.monotonic() - started < args.seconds:
        if any(collector.exitcode is not None for collector in collectors):
            print("BROKEN: a collector has died; its error is above")
            return 2
        model.train(gradient_steps=plan.publish_every, batch_size=plan.batch_size)
        updates += plan.publish_every
        publish(model, policy, updates)
        now = time.monotonic()
        if now - reported > args.report_s:
            reported, mean = now, mean_return(replay)
            print(
                f"{now - started:4.0f} s  {replay.size()} steps, {updates} updates, mean return of "
                f"the last {LAST} episodes {mean:.0f}",
                flush=True,
            )
            if mean >= args.solve_at:
                print(f"SOLVED: the mean return is {mean:.0f} after {now - started:.0f} s")
                return 0
    print(f"{'NOT SOLVED, as expected of a quick run' if args.quick else 'NOT SOLVED'}: "
          f"{updates} updates on {replay.size()} steps")  # fmt: skip
    return 0 if args.quick else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///sb3.db", help="of the database")
    parser.add_argument("--policy", default="sb3_policy.pt", help="file of the policy")
    parser.add_argument("--seconds", type=float, default=900, help="give up after this time")
    parser.add_argument("--collectors", type=int, default=4, help="processes that play")
    parser.add_argument("--solve-at", type=float, default=-250, help="mean return to reach")
    parser.add_argument("--report-s", type=float, default=5, help="seconds between reports")
    parser.add_argument("--quick", action="store_true", help="make 100 updates only")
    args = parser.parse_args()
    if args.collectors < 1:
        parser.error("--collectors is 1 or more")
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
