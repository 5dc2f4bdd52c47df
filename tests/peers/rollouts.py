"""Rollouts of agents that answer questions: some with one step, some with tools."""

from typing import Any

from sqlbuffer import ReplayBuffer


def store_rollouts(
    url: str, name: str = "rollouts", n_tasks: int = 4, **settings: Any
) -> ReplayBuffer:
    """Store three rollouts of each task; the reward of sibling i is i / 2."""
    buffer = ReplayBuffer(url, name, create=True, **settings)
    for task in range(n_tasks):
        question = {"role": "user", "content": f"What is {task} + 2? Grüße, 你好"}
        for sibling in range(3):
            with buffer.episode(
                f"task-{task}", "solver", episode_id=f"{task}/{sibling}", model_version=7
            ) as episode:
                call = {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "1", "function": {"name": "add", "arguments": {"a": task, "b": 2}}}
                ]}  # fmt: skip
                episode.append(messages=[question], actions=[call], reward=0.0)
                episode.append(
                    messages=[{"role": "tool", "content": str(task + sibling)}],
                    actions=[f"It is {task + sibling}."], reward=sibling / 2, terminated=True,
                )  # fmt: skip
    return buffer
