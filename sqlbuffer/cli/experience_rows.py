"""Experiences as rows of a table: their columns and values."""

from collections.abc import Iterable, Iterator, Sequence
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
_BRIEF_COLUMNS = ("seq", "task_id", "agent_id", "step", "reward", "end")
_BRIEF_PAYLOADS = ("state", "actions")


def in_full(
    rows: Iterable["DataRow"], fields: Iterable[str]
) -> tuple[Sequence[str], Iterator[list[Any]]]:
    """Return the columns of rows and their values.

    Args:
        rows: The rows.
        fields: The typed fields that the buffer declares; each is a column.
    """
    names = tuple(fields)
    return (*COLUMNS, *names), (_full(row, names) for row in rows)


def _full(row: "DataRow", names: Sequence[str]) -> list[Any]:
    meta = [getattr(row.exp_meta, name) for name in _META]
    data = [getattr(row.exp_data, name) for name in _DATA]
    return [row.seq, row.id, *meta, *data, *map(row.fields.get, names)]


def in_brief(
    rows: Sequence["DataRow"], fields: Iterable[str]
) -> tuple[Sequence[str], list[list[Any]]]:
    """Return the columns of rows and their values, arrays and payloads on a short line.

    Args:
        rows: The rows.
        fields: The typed fields that the buffer declares. If there are some, payloads that no row
            has are left out.
    """
    names = tuple(fields)
    payloads = [
        name
        for name in _BRIEF_PAYLOADS
        if not names or any(getattr(row.exp_data, name) is not None for row in rows)
    ]
    return (*_BRIEF_COLUMNS, *names, *payloads), [_brief(row, names, payloads) for row in rows]


def _brief(row: "DataRow", names: Sequence[str], payloads: Sequence[str]) -> list[Any]:
    meta, data = row.exp_meta, row.exp_data
    values = [*map(row.fields.get, names), *(getattr(data, name) for name in payloads)]
    own = [row.seq, meta.task_id, meta.agent_id, meta.step, data.reward_t, ending(row)]
    return [*own, *map(_cell, values)]


def _cell(value: Any) -> Any:
    """Return a value on a short line; None and scalars of numpy as Python has them."""
    from sqlbuffer.display.brief_values import brief

    if value is None:
        return None
    if getattr(value, "shape", None) == ():
        value = value.item()
        return value if isinstance(value, (bool, int, float)) else brief(value)
    return brief(value)


def ending(row: "DataRow") -> str:
    """Return how the episode ended with this step; nothing where it went on."""
    flags = ("terminated", "truncated")
    return ", ".join(flag for flag in flags if getattr(row.exp_data, flag))


def total_reward(rows: Sequence["DataRow"]) -> float | None:
    """Return the sum of the rewards; None where no row has one."""
    rewards = [row.exp_data.reward_t for row in rows if row.exp_data.reward_t is not None]
    return sum(rewards) if rewards else None
