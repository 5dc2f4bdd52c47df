"""An LLM team: eight processes write turns, trainers lease groups of rollouts, one is killed."""

import json
import os
import signal
from multiprocessing import Process, SimpleQueue

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import InsufficientDataError, LeaseLostError
from tests.journeys.conftest import Terminal

PROMPTS, SIBLINGS, TURNS, WRITERS = 12, 4, 3, 8
LEASE_S = 2.0
Groups = list[tuple[str, list[float]]]


def opened(url: str) -> ReplayBuffer:
    return ReplayBuffer(url, "chat", create=True, leases=True, max_use=1)


def roll_out(url: str, number: int) -> None:
    """Answer some of the prompts, in several turns each."""
    with opened(url) as buffer:
        for rollout in range(number, PROMPTS * SIBLINGS, WRITERS):
            prompt, sibling = divmod(rollout, SIBLINGS)
            conversation = [{"role": "user", "content": f"What is {prompt} + {sibling}?"}]
            with buffer.episode(f"prompt-{prompt}", f"policy-{number}", model_version=1) as episode:
                for turn in range(TURNS):
                    answer = {"role": "assistant", "content": f"{prompt + turn}"}
                    conversation = [*conversation, answer]
                    episode.append(
                        messages=conversation,
                        actions=[answer],
                        reward=float(turn == sibling),
                        terminated=turn == TURNS - 1,
                    )


def train(url: str, trained: "SimpleQueue[Groups]", is_killed: bool) -> None:
    """Train on groups of rollouts until all rows are used up; or be killed with the first ones."""
    with opened(url) as buffer:
        while is_killed or len(buffer):
            try:
                with buffer.lease(
                    2, group_by="task_id", min_group_size=SIBLINGS, lease_s=LEASE_S, timeout_s=1
                ) as batch:
                    found = [
                        (group[0].exp_meta.task_id, [row.exp_data.reward_t or 0 for row in group])
                        for group in batch.groups
                    ]
                    if is_killed:
                        trained.put(found)
                        os.kill(os.getpid(), signal.SIGKILL)
            except (InsufficientDataError, LeaseLostError):
                continue  # the other trainer has the last ones, or was quicker
            trained.put(found)  # after the block: they are acknowledged


@pytest.mark.thorough
@pytest.mark.slow
def test_each_group_is_trained_on_once_though_a_trainer_is_killed(
    terminal: Terminal, database_url: str
) -> None:
    url = database_url
    opened(url).close()

    # A trainer is there first, waits for whole groups, and dies in the middle of its step.
    lost: SimpleQueue[Groups] = SimpleQueue()
    victim = Process(target=train, args=(url, lost, True))
    victim.start()
    writers = [Process(target=roll_out, args=(url, number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    held = lost.get()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    assert [len(rewards) for _, rewards in held] == [SIBLINGS * TURNS] * 2
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0

    # Nothing of it is lost, and a person can read what was said.
    (overview,) = json.loads(terminal(f"sqlbuffer ls {url} --json").out)
    assert (overview["rows"], overview["tasks"]) == (PROMPTS * SIBLINGS * TURNS, PROMPTS)
    task, _ = held[0]
    shown = terminal(f"sqlbuffer show {url} {task}").out
    assert shown.count("What is") == SIBLINGS
    assert shown.count("terminated") == SIBLINGS
    waiting = terminal(
        f"sqlbuffer sql {url} 'SELECT count(*) AS groups, sum(rows) AS turns FROM v_queue' --csv"
    )
    assert waiting.out.split() == ["groups,turns", f"{PROMPTS},{PROMPTS * SIBLINGS * TURNS}"]

    # The others train on all of it, on what the victim held when its lease has run out.
    trained: SimpleQueue[Groups] = SimpleQueue()
    trainers = [Process(target=train, args=(url, trained, False)) for _ in range(2)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
        assert trainer.exitcode == 0
    groups: Groups = []
    while not trained.empty():
        groups += trained.get()
    assert sorted(task for task, _ in groups) == sorted(f"prompt-{i}" for i in range(PROMPTS))
    assert all(len(rewards) == SIBLINGS * TURNS for _, rewards in groups)
    assert all(sum(rewards) == TURNS for _, rewards in groups)
    with opened(url) as buffer:
        assert len(buffer) == 0
