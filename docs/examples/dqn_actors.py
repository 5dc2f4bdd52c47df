"""Deep Q-learning on CartPole: some processes play, one process learns, and they share a database.

    python docs/examples/dqn_actors.py --url sqlite:///dqn.db --actors 2

Each actor records its environment and takes the newest weights before an episode. The learner draws
n-step transitions from a mirror of the buffer and solves the task: a mean return of 400 over the
last 20 episodes. You may kill it at any moment. When it is started again, it continues with the
experience in the database and with its last checkpoint. It needs gymnasium and torch. The exit code
is 0 when the task is solved or a quick run has ended, 1 when it is not, and 2 when an actor has
died.

The algorithm is double DQN (van Hasselt et al. 2016) on n-step returns.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium
import numpy as np
from sqlalchemy import create_engine, make_url, text

from sqlbuffer import ReplayBuffer, fields_from_env

BUFFER = "cartpole"
ENVIRONMENT = "CartPole-v1"
LAST = 20  # episodes that the verdict is about
GAMMA, N_STEP = 0.99, 3
REPORT_S = 5.0
SOLVED, WORKS, NOT_SOLVED, BROKEN = 0, 0, 1, 2


@dataclass(frozen=True)
class Plan:
    """The sizes and rates of a run."""

    capacity: int = 50_000
    hidden: int = 128
    batch_size: int = 64
    warmup: int = 1_000  # steps stored before the first update
    steps_per_update: float = 2.0  # the actors wait for the learner
    exploring: int = 3_000  # updates until epsilon has its least value
    least_epsilon: float = 0.01
    learning_rate: float = 1e-3
    target_rate: float = 0.01  # how far the target network moves at an update
    publish_every: int = 100  # updates
    episodes: int | None = None  # stop after this number, also if nothing was learnt


QUICK = replace(
    Plan(),
    batch_size=32,
    warmup=100,
    steps_per_update=20.0,
    publish_every=4,
    episodes=40,
)


def open_buffer(url: str, plan: Plan) -> ReplayBuffer:
    """Open the buffer; the first process creates it."""
    with gymnasium.make(ENVIRONMENT) as env:
        fields = fields_from_env(env)
    return ReplayBuffer(url, name=BUFFER, max_capacity=plan.capacity, create=True, **fields)


# The actors. They need no torch: numpy computes the small network in 10 us.


def play(url: str, weights: Path, plan: Plan, number: int, actors: int, stop) -> None:
    """Play episodes until told to stop, or until the learner's process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner
    rng = np.random.default_rng([number, os.getpid()])
    learner = multiprocessing.parent_process()
    network, budget, played = read_weights(weights), plan.warmup / actors, 0
    first = int(network["updates"])
    buffer = open_buffer(url, plan)
    with buffer, buffer.record(gymnasium.make(ENVIRONMENT), agent_id=f"actor-{number}") as env:
        while not stop.is_set() and learner.is_alive():
            network = read_weights(weights)
            learnt = int(network["updates"]) - first
            if played > budget + learnt * plan.steps_per_update / actors:
                time.sleep(0.02)
                continue
            env.model_version = int(network["updates"])
            played += play_episode(env, network, rng)


def play_episode(env, network, rng) -> int:
    """Play one episode and return its steps."""
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    steps, has_ended = 0, False
    while not has_ended:
        explores = rng.random() < network["epsilon"]
        action = int(rng.integers(2)) if explores else int(np.argmax(values(network, obs)))
        obs, _, terminated, truncated, _ = env.step(action)
        steps, has_ended = steps + 1, terminated or truncated
    return steps


def values(network, obs):
    """Return the values of the actions."""
    hidden = np.maximum(network["0.weight"] @ obs + network["0.bias"], 0)
    hidden = np.maximum(network["2.weight"] @ hidden + network["2.bias"], 0)
    return network["4.weight"] @ hidden + network["4.bias"]


def read_weights(path: Path) -> dict:
    with np.load(path) as file:
        return dict(file)


# The learner.


class Learner:
    """The two networks, their optimizer and their files."""

    def __init__(self, checkpoint: Path, plan: Plan) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch, self._plan, self._checkpoint = torch, plan, checkpoint
        self.weights = checkpoint.with_suffix(".npz")
        self._online, self._target = make_network(plan.hidden), make_network(plan.hidden)
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=plan.learning_rate)
        self.updates = 0
        if checkpoint.exists():
            self._load(torch.load(checkpoint, weights_only=True))
        self.publish()

    def update(self, tensors) -> None:
        """Learn from n-step transitions."""
        torch = self._torch
        with torch.no_grad():
            best = self._online(tensors["next_obs"]).argmax(1, keepdim=True)
            following = self._target(tensors["next_obs"]).gather(1, best)[:, 0]
            targets = tensors["reward"] + tensors["discount"] * following
        values = self._online(tensors["obs"]).gather(1, tensors["action"][:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(values, targets)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._online.parameters(), 10.0)
        self._optimizer.step()
        with torch.no_grad():
            pairs = zip(self._target.parameters(), self._online.parameters(), strict=True)
            for slow, quick in pairs:
                slow.lerp_(quick, self._plan.target_rate)
        self.updates += 1
        if self.updates % self._plan.publish_every == 0:
            self.publish()

    @property
    def epsilon(self) -> float:
        """The share of random actions."""
        return max(self._plan.least_epsilon, 1.0 - self.updates / self._plan.exploring)

    def publish(self) -> None:
        """Write the weights for the actors."""
        arrays = {name: value.numpy() for name, value in self._online.state_dict().items()}
        numbers = {"updates": self.updates, "epsilon": self.epsilon}
        write(self.weights, lambda file: np.savez(file, **arrays, **numbers))

    def save(self) -> None:
        """Write everything that a learner needs to continue."""
        state = {
            "online": self._online.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self.updates,
        }
        write(self._checkpoint, lambda file: self._torch.save(state, file))

    def _load(self, state) -> None:
        self._online.load_state_dict(state["online"])
        self._target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


def make_network(hidden: int):
    from torch import nn

    return nn.Sequential(
        nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
    )


def write(path: Path, put) -> None:
    """Write a file so that no process sees half of it."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        put(file)
    new.replace(path)


# The episodes, by the SQL that an analyst would use.


class Episodes:
    """The complete episodes of the buffer, by plain SQL."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        self._engine = create_engine(parsed)

    def count_and_mean(self) -> tuple[int, float]:
        """Return how many there are and the mean return of the last ones."""
        complete = "FROM v_episodes WHERE buffer = :buffer AND status = 'complete'"
        count = text(f"SELECT count(*) {complete}")
        last = text(f"SELECT episode_return {complete} ORDER BY last_seq DESC LIMIT {LAST}")
        with self._engine.connect() as connection:
            returns = connection.execute(last, {"buffer": BUFFER}).scalars().all()
            n = connection.execute(count, {"buffer": BUFFER}).scalar_one()
        return n, float(np.mean(returns)) if returns else 0.0


# The run.


def run(args: argparse.Namespace) -> int:
    plan = QUICK if args.quick else Plan()
    with open_buffer(args.url, plan) as buffer, buffer.mirror() as mirror:
        learner, episodes = Learner(Path(args.checkpoint), plan), Episodes(args.url)
        before, _ = episodes.count_and_mean()
        print(f"{before} episodes and {len(buffer)} steps are stored, ", end="")
        print(f"and {learner.updates} updates made", flush=True)
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        settings = [
            (args.url, learner.weights, plan, i, args.actors, stop) for i in range(args.actors)
        ]
        actors = [context.Process(target=play, args=one, daemon=True) for one in settings]
        for actor in actors:
            actor.start()
        try:
            return learn(args, plan, mirror, learner, episodes, actors)
        except KeyboardInterrupt:
            print("stopped; start it again to continue")
            return NOT_SOLVED
        finally:
            learner.save()
            stop.set()
            for actor in actors:
                actor.join(10)


def learn(args, plan: Plan, mirror, learner: Learner, episodes: Episodes, actors) -> int:
    """Update the network until the task is solved or the time is over; return the exit code."""
    started = reported = time.monotonic()
    n_before, updates = episodes.count_and_mean()[0], learner.updates
    while True:
        if len(mirror) < plan.warmup:
            time.sleep(0.05)
        else:
            batch = mirror.sample_transitions(plan.batch_size, n_step=N_STEP, gamma=GAMMA)
            learner.update(batch.to_torch())
        now = time.monotonic()
        interval = 0.5 if args.quick else REPORT_S
        if now - reported < interval:
            continue
        n, mean = episodes.count_and_mean()
        learner.save()
        rate = (learner.updates - updates) / (now - reported)
        print(
            f"{now - started:4.0f} s  {n} episodes, mean return of the last {LAST} {mean:.1f}, "
            f"{learner.updates} updates ({rate:.0f}/s), epsilon {learner.epsilon:.2f}",
            flush=True,
        )
        reported, updates = now, learner.updates
        if any(actor.exitcode is not None for actor in actors):
            print("BROKEN: an actor has died; its error is above")
            return BROKEN
        code = verdict(args, plan, n, n - n_before, mean, now - started)
        if code is not None:
            return code


def verdict(args, plan: Plan, n: int, n_new: int, mean: float, seconds: float) -> int | None:
    """Print how the run ended and return its exit code; None: it goes on."""
    facts = f"the mean return of the last {LAST} episodes is {mean:.1f} after {seconds:.0f} s"
    if n >= LAST and mean >= args.solve_at:
        print(f"SOLVED: {facts}")
        return SOLVED
    if plan.episodes is not None and n_new >= plan.episodes:
        print(f"NOT SOLVED, as expected of a quick run: {facts}")
        return WORKS
    if seconds >= args.seconds:
        print(f"NOT SOLVED: {facts}, below --solve-at {args.solve_at:g}")
        return NOT_SOLVED
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///dqn.db", help="of the database")
    parser.add_argument("--checkpoint", default="dqn_actors.pt", help="file of the learner")
    parser.add_argument("--seconds", type=float, default=600, help="give up after this time")
    parser.add_argument("--actors", type=int, default=2, help="processes that play")
    parser.add_argument("--solve-at", type=float, default=400, help="mean return to reach")
    parser.add_argument("--quick", action="store_true", help="play a few dozen episodes only")
    args = parser.parse_args()
    if args.actors < 1:
        parser.error("--actors is 1 or more")
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
