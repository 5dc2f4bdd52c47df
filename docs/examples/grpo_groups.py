"""GRPO groups without a coordinator: producers, late judges, and two trainers, one of which dies.

    python docs/examples/grpo_groups.py --url sqlite:///grpo.db

There is no model in it. Producers write groups of rollouts in any order, eight for each prompt.
Judges wait until all rollouts of a prompt are there, and annotate them later. Trainers lease whole
groups that have been judged. One trainer is killed in the middle of a step. Its group comes back
when its lease runs out, so each group is trained on once (GRPO: Shao et al. 2024, DeepSeekMath,
section 4.1.2).
"""

import argparse
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.synchronize import Event

import numpy as np

from sqlbuffer import QueryBuilder, ReplayBuffer

BUFFER = "grpo"
SIBLINGS = 8
TURNS = 3
LEASE_S = 2.0
LATE_S = 0.05  # how long a verdict takes
PATIENCE_S = 60.0  # longer than a lease, so that lost groups come back in time

# A verdict on a group is one transaction: all of its rows have it, or none.
JUDGED = QueryBuilder().is_not_null("exp_data.extra.judge").build()


def opened(url: str) -> ReplayBuffer:
    return ReplayBuffer(url, name=BUFFER, create=True, leases=True, max_use=1)


def produce(url: str, jobs: list[tuple[int, int]]) -> None:
    """Write rollouts without rewards, one episode each."""
    with opened(url) as buffer:
        for prompt, sibling in jobs:
            rng = random.Random(f"{prompt}/{sibling}")
            with buffer.episode(f"prompt-{prompt}", f"agent-{sibling}") as episode:
                for turn in range(TURNS):
                    episode.append(
                        state={"prompt": prompt, "turn": turn},
                        actions=[rng.random()],
                        terminated=turn == TURNS - 1,
                    )


def judge(url: str, name: str, prompts: list[int]) -> None:
    """Give each rollout of a prompt a reward, when all are there."""
    left = {f"prompt-{prompt}" for prompt in prompts}
    with opened(url) as buffer:
        while left:
            time.sleep(LATE_S)
            for task, rows in buffer.get_batch_by_task_ids(sorted(left)).items():
                if sum(bool(row.exp_data.terminated) for row in rows) < SIBLINGS:
                    continue
                rewards = [row.exp_data.actions[0] * bool(row.exp_data.terminated) for row in rows]
                buffer.annotate([row.seq for row in rows], reward=rewards, extra={"judge": name})
                left.remove(task)


def advantages(rewards: list[float]) -> np.ndarray:
    """Return how much better each rollout was than its siblings, in standard deviations."""
    values = np.array(rewards)
    return (values - values.mean()) / (values.std() + 1e-6)


def train(url: str, name: str, has_begun: Event, dies: bool) -> None:
    """Train on judged groups until all rows are used; or die with the first group."""
    if not dies:
        has_begun.wait(PATIENCE_S)
    with opened(url) as buffer:
        while dies or len(buffer):
            with buffer.lease(
                1,
                group_by="task_id",
                min_group_size=SIBLINGS,
                condition=JUDGED,
                timeout_s=PATIENCE_S,
                lease_s=LEASE_S,
            ) as batch:
                if dies:
                    print(f"{name} is killed while it holds {len(batch)} rows", flush=True)
                    has_begun.set()
                    os.kill(os.getpid(), signal.SIGKILL)
                step(name, batch)


def step(name: str, batch) -> None:
    """Take a step on whole groups."""
    for rows in batch.groups:
        ends = [row for row in rows if row.exp_data.terminated]
        found = advantages([row.exp_data.reward_t for row in ends])
        print(
            f"{name}: {rows[0].exp_meta.task_id}, {len(ends)} rollouts, "
            f"advantages {found.min():+.2f} to {found.max():+.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///grpo.db", help="of the database")
    parser.add_argument("--prompts", type=int, default=8, help="groups to train on")
    args = parser.parse_args()

    jobs = [(prompt, sibling) for prompt in range(args.prompts) for sibling in range(SIBLINGS)]
    random.Random(0).shuffle(jobs)  # siblings come from several machines, in any order
    with opened(args.url) as buffer:
        buffer.clear()
    prompts, has_begun = list(range(args.prompts)), multiprocessing.Event()
    work = [
        *((produce, (args.url, jobs[i::2])) for i in range(2)),
        *((judge, (args.url, f"judge-{i}", prompts[i::2])) for i in range(2)),
        (train, (args.url, "trainer-0", has_begun, True)),
        (train, (args.url, "trainer-1", has_begun, False)),
    ]
    processes = [multiprocessing.Process(target=call, args=arguments) for call, arguments in work]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with opened(args.url) as buffer:
        print(f"{len(buffer)} of {len(jobs) * TURNS} rows were never trained on")


if __name__ == "__main__":
    main()
