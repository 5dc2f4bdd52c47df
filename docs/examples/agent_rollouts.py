"""Rollouts of LLM agents: eight for each prompt, from several processes, read by group.

    python docs/examples/agent_rollouts.py --url sqlite:///rollouts.db

There is no model in it: the agents are scripts that add numbers and sometimes make mistakes. They
store what a real agent would store: a task for each prompt, an episode for each rollout, a step for
each answer. The advantage of a rollout compares its reward with the rewards of its siblings (GRPO:
Shao et al. 2024, DeepSeekMath, section 4.1.2).
"""

import argparse
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby

import numpy as np
from sqlalchemy import create_engine, make_url, text

from sqlbuffer import ReplayBuffer

BUFFER = "rollouts"
SIBLINGS = 8
MODEL_VERSION = 1
LUCK = (0.3, 0.5, 0.7, 0.9)  # the chance of a right sum, for each sibling


def numbers_of(prompt: int) -> list[int]:
    return random.Random(prompt).sample(range(10, 100), 3)


def turns(numbers: list[int], luck: float, rng: random.Random):
    """Yield each message of the agent with the answer of the tool; the last has none."""
    total = numbers[0]
    for number in numbers[1:]:
        call = f"add({total}, {number})"
        total += number if rng.random() < luck else number + rng.choice([-10, -1, 1, 10])
        yield {"role": "assistant", "content": call}, {"role": "tool", "content": str(total)}
    yield {"role": "assistant", "content": f"The sum is {total}."}, None


def reward_of(numbers: list[int], answer: str) -> float:
    """Return 1 for the right sum, and less for a greater error."""
    error = abs(int(answer.split()[-1].rstrip(".")) - sum(numbers))
    return 1.0 / (1.0 + error)


def roll_out(url: str, job: tuple[int, int]) -> int:
    """Write one rollout of a prompt; return the number of its steps."""
    prompt, sibling = job
    numbers, rng = numbers_of(prompt), random.Random(f"{prompt}/{sibling}")
    question = {"role": "user", "content": f"What is {' + '.join(map(str, numbers))}?"}
    with (
        ReplayBuffer(url, name=BUFFER) as buffer,
        buffer.episode(
            f"prompt-{prompt}",
            f"agent-{sibling}",
            episode_id=f"prompt-{prompt}/{sibling}",
            model_version=MODEL_VERSION,
            sibling=sibling,
        ) as episode,
    ):
        messages = [question]
        for said, answered in turns(numbers, LUCK[sibling % len(LUCK)], rng):
            is_last = answered is None
            episode.append(
                messages=messages,
                actions=[said["content"]],
                reward=reward_of(numbers, said["content"]) if is_last else 0.0,
                terminated=is_last,
            )
            messages = [said, answered]
    return episode.length


def advantages(returns: list[float]) -> np.ndarray:
    """Return how much better each rollout was than its siblings, in standard deviations."""
    values = np.array(returns)
    return (values - values.mean()) / (values.std() + 1e-6)


def train(buffer: ReplayBuffer, prompts: int) -> int:
    """Read whole groups, as a trainer would; return the number of their rollouts."""
    n_rollouts = 0
    for task in buffer.sample_tasks(prompts):
        # The rows of a task are ordered by episode and step.
        rollouts = [list(rows) for _, rows in groupby(task, lambda row: row.exp_meta.episode_id)]
        returns = [sum(row.exp_data.reward_t for row in rollout) for rollout in rollouts]
        print(f"{task[0].exp_meta.task_id}: {task[0].exp_data.messages[-1]['content']}")
        for rollout, total, advantage in zip(rollouts, returns, advantages(returns), strict=True):
            answer = rollout[-1].exp_data.actions[0]
            print(f"  {rollout[0].exp_meta.agent_id}  {total:.2f}  {advantage:+.2f}  {answer}")
        n_rollouts += len(rollouts)
    return n_rollouts


def groups(url: str) -> list:
    """Return the groups by plain SQL; a group without spread teaches nothing."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = create_engine(parsed)
    statement = text(
        "SELECT task_id, rollouts, return_mean, return_spread FROM v_groups "
        "WHERE buffer = :buffer ORDER BY task_id"
    )
    with engine.connect() as connection:
        found = connection.execute(statement, {"buffer": BUFFER}).all()
    engine.dispose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///rollouts.db", help="of the database")
    parser.add_argument("--prompts", type=int, default=4, help="prompts to answer")
    parser.add_argument("--processes", type=int, default=2, help="processes that answer them")
    args = parser.parse_args()

    with ReplayBuffer(args.url, name=BUFFER, create=True) as buffer:
        buffer.clear()  # the ids are the same in each run
        jobs = [(prompt, sibling) for prompt in range(args.prompts) for sibling in range(SIBLINGS)]
        with ProcessPoolExecutor(args.processes) as pool:
            steps = sum(pool.map(partial(roll_out, args.url), jobs))
        print(f"{len(jobs)} rollouts of {steps} steps, written by {args.processes} processes")
        n_rollouts = train(buffer, args.prompts)
        print(f"{n_rollouts} rollouts read back in groups of {SIBLINGS}")
    for task, rollouts, mean, spread in groups(args.url):
        print(f"v_groups: {task}, {rollouts} rollouts, mean {mean:.2f}, spread {spread:.2f}")


if __name__ == "__main__":
    main()
