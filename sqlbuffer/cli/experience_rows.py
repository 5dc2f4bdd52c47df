"""Experiences as rows of a table: their columns and values."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlbuffer import DataRow

_META = (
    "task_id",
    "task_name",
    "agent_id",
    "pre_agent",
    "episode_id",
    "step",
    "execute_time",
    "model_version",
    "session_id",
)
_DATA = (
    "reward_t",
    "adv_t",
    "v_t",
    "terminated",
    "truncated",
    "state",
    "actions",
    "messages",
    "extra",
)
# The arguments of `ReplayBuffer.add`, behind the number.
COLUMNS = ("seq", "id", *_META, *_DATA)
BRIEF_COLUMNS = ("seq", "task_id", "agent_id", "step", "reward", "end", "state", "actions")


def in_full(row: "DataRow") -> list[Any]:
    """Return the values of `COLUMNS`."""
    meta = [getattr(row.exp_meta, name) for name in _META]
    return [row.seq, row.id, *meta, *(getattr(row.exp_data, name) for name in _DATA)]


def in_brief(row: "DataRow") -> list[Any]:
    """Return the values of `BRIEF_COLUMNS`, payloads on a short line."""
    from sqlbuffer.cli.brief_values import brief

    meta, data = row.exp_meta, row.exp_data
    payloads = [None if value is None else brief(value) for value in (data.state, data.actions)]
    return [row.seq, meta.task_id, meta.agent_id, meta.step, data.reward_t, ending(row), *payloads]


def ending(row: "DataRow") -> str:
    """Return how the episode ended with this step; nothing where it went on."""
    flags = ("terminated", "truncated")
    return ", ".join(flag for flag in flags if getattr(row.exp_data, flag))


def total_reward(rows: Sequence["DataRow"]) -> float | None:
    """Return the sum of the rewards; None where no row has one."""
    rewards = [row.exp_data.reward_t for row in rows if row.exp_data.reward_t is not None]
    return sum(rewards) if rewards else None
