"""Measure training loops of Stable-Baselines3, and the calls of its buffers, on its own buffers and
on buffers in a database: `python -m tests.benchmarks.sb3_loops --help`, where Stable-Baselines3 is
installed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import ReplayBuffer

from sqlbuffer.integrations.sb3 import SQLReplayBuffer
from tests.benchmarks import machine
from tests.benchmarks.bench import Bench, Scale
from tests.benchmarks.measure import Timed, Timings, in_turns, ratio_of
from tests.benchmarks.report import Figure, shown_time, table, write_between_markers
from tests.support.markdown import ROOT
from tests.support.postgres import PostgresServer, running_server

DOCUMENT = ROOT / "docs" / "contributing" / "benchmarks.md"
BEGIN, END = "<!-- begin training loops -->", "<!-- end training loops -->"
KINDS = ("sqlite", "postgresql")
STEPS = 20_000  # stored before the first round
ROUND = 200  # steps of a loop
# How many times as long as with the buffers of Stable-Baselines3 a loop may take.
MOST = {"sqlite": 1.5, "postgresql": 2.5}
OWN = "Stable-Baselines3"
CALLED = 200  # calls of a buffer in a round
EPISODE = 1_000
BATCH = 256
OBSERVATION, ACTION = Box(-1, 1, (17,)), Box(-1, 1, (6,))
# Seconds that a call of one environment's buffer may take.
CALLS = {"`add` of a step": 15e-6, f"`sample({BATCH})`": 100e-6}


def _sac(**options: Any) -> SAC:
    return SAC("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", **options)


def _sac_n_step(**options: Any) -> SAC:
    if "replay_buffer_class" in options:
        given = {**options["replay_buffer_kwargs"], "n_steps": 3, "gamma": 0.99}
        options["replay_buffer_kwargs"] = given
        return _sac(**options)
    return _sac(n_steps=3)


def _dqn(**options: Any) -> DQN:
    """Return a DQN of small networks and batches: little time but for the buffer's."""
    return DQN(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", train_freq=4, batch_size=32,
        policy_kwargs={"net_arch": [64, 64]}, **options,
    )  # fmt: skip


# What a line of the table says, what makes the algorithm, and whether there is a target.
LOOPS: tuple[tuple[str, Callable[..., Any], bool], ...] = (
    ("a step of SAC on Pendulum, default settings", _sac, True),
    ("a step of SAC on Pendulum, 3-step", _sac_n_step, False),
    ("a step of DQN on CartPole, networks of 64 x 64, batches of 32 each 4 steps", _dqn, False),
)


def main(arguments: Sequence[str] | None = None, server: PostgresServer | None = None) -> None:
    """Run what the arguments name; on a server of the caller if given."""
    options, started = _options(arguments), time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {what}", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        if server is None and "postgresql" in options.database:
            server = stack.enter_context(running_server())
        benches = [
            Bench(kind, Scale(), server if kind == "postgresql" else None, None, say)
            for kind in options.database
        ]
        figures = []
        for what, make, has_target in LOOPS:
            say(what)
            timings = _measured(benches, make, options.steps, options.rounds)
            figures += _figures(benches, what, timings, has_target)
        say("calls of the buffers")
        figures += _figures_of_calls(benches, options.steps, options.rounds)
        libraries = ("stable-baselines3", "torch", "numpy")
        facts = machine.machine_and_versions(benches, [f"{n} {version(n)}" for n in libraries])
        facts.append(f"Sizes: {options.steps:,} steps stored, {ROUND} steps of each loop in turns.")
        text = f"{machine.listed(facts)}\n\n{table(figures, judged=options.steps == STEPS)}"
    print(text)
    if options.write:
        write_between_markers(options.write, text, BEGIN, END)


def _measured(
    benches: Sequence[Bench], make: Callable[..., Any], n_steps: int, rounds: int
) -> Timings:
    with ExitStack() as stack:
        models = {OWN: make()}
        for bench in benches:
            replay = {"url": stack.enter_context(bench.database()), "create": True}
            model = make(replay_buffer_class=SQLReplayBuffer, replay_buffer_kwargs=replay)
            stack.callback(model.replay_buffer.close)
            models[bench.kind] = model
        for model in models.values():
            _fill(model, n_steps)
        learn = {
            name: Timed(partial(model.learn, ROUND, log_interval=None, reset_num_timesteps=False))
            for name, model in models.items()
        }
        for model in models.values():  # of the first steps some are not learned from
            model.learn(model.learning_starts + 1)
        return in_turns(learn, rounds, warmup=1)


def _fill(model: Any, n_steps: int) -> None:
    """Store steps of random actions."""
    env, replay = gymnasium.make(model.env.envs[0].spec.id), model.replay_buffer
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(n_steps):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        given = (obs[None], after[None], np.asarray(action)[None], np.array([reward]))
        limit = {"TimeLimit.truncated": truncated and not terminated}
        replay.add(*given, np.array([terminated or truncated]), [limit])
        obs = env.reset()[0] if terminated or truncated else after


def _figures(
    benches: Sequence[Bench], what: str, timings: Timings, has_target: bool
) -> Iterator[Figure]:
    for bench in benches:
        spent = {name: shown_time(timings.median(name) / ROUND) for name in (bench.kind, OWN)}
        yield Figure(
            f"{what}: times as long as with the buffer of {OWN}",
            bench.label,
            f"{spent[bench.kind]}, {OWN} {spent[OWN]}",
            timings.ratio(bench.kind, OWN),
            MOST[bench.kind] if has_target else None,
            at_most=True,
        )


def _figures_of_calls(benches: Sequence[Bench], n_steps: int, rounds: int) -> Iterator[Figure]:
    """Yield how long calls of a buffer take, of one environment."""
    with ExitStack() as stack:
        buffers: dict[str, ReplayBuffer] = {
            OWN: ReplayBuffer(n_steps, OBSERVATION, ACTION, "cpu"),
        }
        for bench in benches:
            url = stack.enter_context(bench.database())
            ours = SQLReplayBuffer(n_steps, OBSERVATION, ACTION, "cpu", url=url, create=True)
            stack.callback(ours.close)
            buffers[bench.kind] = ours
        for buffer in buffers.values():
            for step in islice(_steps(), n_steps):
                buffer.add(*step)
            buffer.sample(BATCH)
        adds = {
            name: Timed(buffer.add, partial(next, _steps()), CALLED)
            for name, buffer in buffers.items()
        }
        samples = {
            name: Timed(partial(buffer.sample, BATCH), repeat=CALLED)
            for name, buffer in buffers.items()
        }
        for what, calls in zip(CALLS, (adds, samples), strict=True):
            timings = in_turns(calls, rounds, warmup=1)
            for bench in benches:
                spent = {name: shown_time(timings.median(name)) for name in (bench.kind, OWN)}
                most_s = CALLS[what]
                yield Figure(
                    f"{what}: times as long as {shown_time(most_s)}",
                    bench.label,
                    f"{spent[bench.kind]}, {OWN} {spent[OWN]}",
                    ratio_of([s / most_s for s in timings.medians(bench.kind)]),
                    1,
                    at_most=True,
                )


def _steps() -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of `add`, without end: episodes of one environment."""
    rng = np.random.default_rng(0)
    seen, actions = rng.random((EPISODE + 1, 1, 17), np.float32), rng.random((1, 6), np.float32)
    while True:
        for i in range(EPISODE):
            is_last = np.array([i == EPISODE - 1])
            yield seen[i], seen[i + 1], actions, np.ones(1), is_last, [{}]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.sb3_loops", description=__doc__
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="stored before (%(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="of each loop (%(default)s)")
    parser.add_argument("--database", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=DOCUMENT,
        metavar="FILE",
        help="put the table between its markers of a document, and into the JSON next to it "
        "(docs/contributing/benchmarks.md)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
