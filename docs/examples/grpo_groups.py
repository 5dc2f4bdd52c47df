"""GRPO from rollouts to an optimizer step, with a player and a trainer that die.

    python docs/examples/grpo_groups.py --url sqlite:///grpo.db

The policy is a table in torch that gives the next token after the last one. It is asked for the
sum of two digits, modulo 10, and may ask a tool. Players take rollouts to play from the buffer, a
judge rewards them later, and a trainer leases whole groups, takes a step of GRPO (Shao et al. 2024,
DeepSeekMath, section 4.1.2) on their tokens, and writes its model to a file. One player is killed
in the middle of a rollout, and another one plays it again. The trainer is killed after a step that
its file does not have, and goes on from its checkpoint. The log of the buffer shows at the end that
the model of the last file was trained on each rollout once.
"""

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from sqlalchemy import create_engine, make_url, text

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.llm import LLM_FIELDS

BUFFER, TRAINER = "grpo", "trainer-0"
SIBLINGS = 8
GROUPS_A_STEP = 2
LEASE_S = 2.0
PATIENCE_S = 60.0  # longer than a lease, so that lost rollouts come back in time
# Tokens: 0 to 9 are digits, 10 to 19 what the tool says.
RESULT, ASK, GO, CALL = 10, 20, 21, 22
N_TOKENS = 23


def opened(url: str) -> ReplayBuffer:
    return ReplayBuffer(
        url, name=BUFFER, create=True, fields=LLM_FIELDS, leases=True, max_use=1,
        keep_expired=True, track_samples=True,
    )  # fmt: skip


def new_policy() -> torch.nn.Embedding:
    """Return a policy that knows that it may say a digit or call the tool."""
    policy = torch.nn.Embedding(N_TOKENS, N_TOKENS)
    torch.nn.init.constant_(policy.weight, -9.0)
    with torch.no_grad():
        policy.weight[:, :RESULT] = 0.0
        policy.weight[:, CALL] = 2.0
    return policy


def newest(folder: Path, policy: torch.nn.Embedding) -> dict:
    """Load the newest model file into the policy; return the rest of the file."""
    file = folder / "model.pt"
    if not file.exists():
        return {"mark": "start", "step": 0}
    saved = torch.load(file, weights_only=True)
    policy.load_state_dict(saved["policy"])
    return saved


def play(url: str, folder: Path, name: str, dies: bool, all_begin: Barrier) -> None:
    """Play rollouts while there are any; or die in the second one."""
    policy, n_played = new_policy(), 0
    with opened(url) as buffer:
        all_begin.wait(PATIENCE_S)  # or the first to begin might play them all
        while items := buffer.work.take(1, worker=name, lease_s=LEASE_S, timeout_s=2 * LEASE_S):
            (item,) = items
            version = newest(folder, policy)["step"]
            draws = torch.Generator().manual_seed(random.randrange(2**31))
            one, other = item.payload["digits"]
            ids = [ASK, one, other, GO]
            with item.episode(name, model_version=version) as episode:
                for _ in range(2):
                    logprobs = torch.log_softmax(policy.weight[ids[-1]].detach(), -1)
                    said = int(torch.multinomial(logprobs.exp(), 1, generator=draws))
                    episode.append(
                        prompt_ids=ids, completion_ids=[said], logprobs=[float(logprobs[said])]
                    )
                    n_played += 1
                    if dies and n_played > 2:
                        buffer.flush()
                        print(f"{name} is killed in {item.group_id}, {item.sibling}", flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
                    if said != CALL:
                        break
                    ids = [*ids, said, RESULT + (one + other) % 10]


def judge(url: str, n_rollouts: int) -> None:
    """Reward each rollout some time after its end: a half for the tool, a half for the sum."""
    unjudged = QueryBuilder().eq("status", "complete").and_().is_null("episode_reward").build()
    n_judged = 0
    with opened(url) as buffer:
        while n_judged < n_rollouts:
            time.sleep(0.05)
            turns = {}
            for row in buffer.get_all(condition=unjudged):
                turns.setdefault(row.exp_meta.episode_id, []).append(row)
            rewards = {}
            for episode_id, rows in turns.items():
                _, one, other, *_ = rows[0].fields["prompt_ids"].tolist()
                said = [int(row.fields["completion_ids"][0]) for row in rows]
                rewards[episode_id] = 0.5 * (said[0] == CALL) + 0.5 * (
                    said[-1] == (one + other) % 10
                )
            if rewards:
                buffer.annotate_episodes(list(rewards), list(rewards.values()))
            n_judged += len(rewards)


def train(url: str, folder: Path, n_steps: int, dies_at: int | None) -> None:
    """Take steps of GRPO, each on some groups; or die after one, before its file is written."""
    policy = new_policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=20.0)
    saved = newest(folder, policy)
    with opened(url) as buffer:
        if buffer.checkpoints(TRAINER):
            undone = buffer.restore(saved["mark"], consumer=TRAINER)
            print(f"{TRAINER} goes on from {undone.name}, {undone.n_freed} turns are free again")
        else:
            buffer.checkpoint("start", consumer=TRAINER)
        for step in range(saved["step"] + 1, n_steps + 1):
            with buffer.lease(
                GROUPS_A_STEP, group_by="group_id", group_size=SIBLINGS, require_reward=True,
                order="fifo", timeout_s=PATIENCE_S, consumer=TRAINER,
            ) as batch:  # fmt: skip
                tokens = batch.padded(device="cpu")
                loss = grpo_loss(policy, tokens)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            reward = tokens.reward.mean()
            print(f"step {step}: {len(tokens.reward)} rollouts, mean reward {reward:.2f}")
            if step == dies_at:
                print(f"{TRAINER} is killed after step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            mark = f"step-{step}"
            buffer.checkpoint(mark, consumer=TRAINER)  # first the mark, then the file that names it
            state = {"mark": mark, "step": step, "policy": policy.state_dict()}
            torch.save(state, folder / "model.part")
            os.replace(folder / "model.part", folder / "model.pt")


def grpo_loss(policy: torch.nn.Embedding, tokens) -> torch.Tensor:
    """Return the clipped loss of the sampled tokens."""
    logprobs = torch.log_softmax(policy(tokens.input_ids[:, :-1]), -1)
    # Of token i at place i, as in the batch: the table says it after token i - 1.
    of_token = logprobs.gather(-1, tokens.input_ids[:, 1:, None])[..., 0]
    mask, before = tokens.loss_mask[:, 1:], tokens.logprobs[:, 1:]
    ratio = torch.exp(of_token - before)
    advantage = tokens.advantage[:, None]
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -(gain * mask).sum() / mask.sum()


def trained_on(url: str) -> dict[int, list[str]]:
    """Return the rollouts of each batch of the trainer that counts, from the log of the buffer."""
    log = text(
        "SELECT DISTINCT batch_id FROM v_samples "
        "WHERE consumer = :consumer AND NOT undone ORDER BY batch_id"
    )
    engine = create_engine(make_url(url))
    with engine.connect() as connection:
        batch_ids = list(connection.execute(log, {"consumer": TRAINER}).scalars())
    engine.dispose()
    with opened(url) as buffer:
        return {
            batch_id: [rollout.episode_id for rollout in buffer.batch(batch_id).rollouts()]
            for batch_id in batch_ids
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///grpo.db", help="of the database")
    parser.add_argument("--groups", type=int, default=8, help="groups to train on")
    args = parser.parse_args()

    with opened(args.url) as buffer:
        buffer.drop(args.url, BUFFER)
    rng = random.Random(0)
    with opened(args.url) as buffer:
        pairs = [(rng.randrange(10), rng.randrange(10)) for _ in range(args.groups)]
        buffer.work.put(
            [
                {"task_id": f"{a}+{b}", "group_id": f"group-{i}", "payload": {"digits": [a, b]}}
                for i, (a, b) in enumerate(pairs)
            ],
            group_size=SIBLINGS,
        )
    with tempfile.TemporaryDirectory() as name:
        run(args.url, Path(name), args.groups)
    batches = trained_on(args.url)
    for batch_id, rollouts in batches.items():
        print(f"batch {batch_id} has trained the model: {', '.join(rollouts[:3])}, ..")
    times = Counter(rollout for rollouts in batches.values() for rollout in rollouts)
    print(f"{len(times)} of {args.groups * SIBLINGS} rollouts, {max(times.values())} time each")


def run(url: str, folder: Path, n_groups: int) -> None:
    """Play, judge and train until all groups were used."""
    n_steps = n_groups // GROUPS_A_STEP
    context = multiprocessing.get_context("spawn")
    process, all_begin = context.Process, context.Barrier(2)
    others = [
        process(target=play, args=(url, folder, "player-0", True, all_begin)),
        process(target=play, args=(url, folder, "player-1", False, all_begin)),
        process(target=judge, args=(url, n_groups * SIBLINGS)),
    ]
    for other in others:
        other.start()
    for dies_at in (2, None):
        trainer = process(target=train, args=(url, folder, n_steps, dies_at))
        trainer.start()
        trainer.join()
    for other in others:
        other.join()


if __name__ == "__main__":
    main()
