"""Check the arguments of public calls; each error names the expected value and the remedy."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from sqlbuffer.batches.forms import MOST_STEPS
from sqlbuffer.checks import (
    checked_count,
    checked_duration,
    checked_instance,
    checked_integer,
    checked_items,
    checked_iterable,
    checked_number,
    integer_of,
    real_of,
    refused,
)
from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.display import shown
from sqlbuffer.encoding.priority_values import checked_seqs
from sqlbuffer.encoding.records import MAX_NAME_BYTES, encode_key
from sqlbuffer.errors import ArgumentError, FieldError
from sqlbuffer.fields import near_name
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.steps import DataRow, Experience, ExpMeta
from sqlbuffer.storage.flow import HISTORY_S

Condition = Tree | QueryBuilder | None
# Rows by a condition, or by their numbers: a list, an array or a tensor.
Rows = Any


class Same(Enum):
    """Stands for an argument that was left out where None means something."""

    SAME = "same"

    def __repr__(self) -> str:
        return "SAME"


SAME = Same.SAME

# Defaults of calls whose modules are imported late.
LEASE_S, LEASE_WAIT_S = 300.0, 30.0
MIRROR_BYTES, MIRROR_REFRESH_S = 8 * 2**30, 0.5

MAX_NAME = 200
MAX_TASKS = 2**20  # in one call
MOST_REPLACED = 10_000_000
_META_FIELDS: dict[str, Any] = {
    "task_id": "default",
    "task_name": None,
    "agent_id": "default",
    "step": 0,
    "pre_agent": None,
    "episode_id": None,
    "group_id": None,
    "parent_id": None,
    "model_version": None,
    "session_id": None,
}
_DATA_FIELDS = (
    "state",
    "actions",
    "action",
    "reward_t",
    "adv_t",
    "v_t",
    "messages",
    "terminated",
    "truncated",
    "extra",
)


def row_of(fields: Mapping[str, Any], declared: Collection[str] = ()) -> DataRow:
    """Return the row that the arguments of `add` mean.

    Args:
        fields: The arguments.
        declared: The typed fields of the buffer.
    """
    if "reward" in fields and "reward_t" in fields:
        raise FieldError("give reward=... or reward_t=..., not both")
    values = {"reward_t" if name == "reward" else name: value for name, value in fields.items()}
    known = {*_META_FIELDS, *_DATA_FIELDS, "execute_time", "id"}
    unknown = [name for name in values if name not in known and name not in declared]
    if unknown:
        nearest = near_name(unknown[0], [*known, *declared, "reward"])
        hint = f"did you mean {nearest}?" if nearest else "put it into extra={...}"
        raise FieldError(f"unknown field {shown(unknown[0])}; {hint}")
    if values.get("session_id") is not None:
        values["session_id"] = checked_session(values["session_id"])
    meta = {
        name: default if values.get(name) is None else values[name]
        for name, default in _META_FIELDS.items()
    }
    data = {name: values[name] for name in _DATA_FIELDS if name in values}
    own_id = {"id": values["id"]} if values.get("id") is not None else {}
    execute_time = values.get("execute_time", time.time())
    return DataRow(
        ExpMeta(**meta, execute_time=execute_time),
        Experience(**data),
        **own_id,
        fields={name: values[name] for name in declared if name in values},
    )


def columns_of(
    arrays: Mapping[str, Any], keys: Mapping[str, Any], also: Sequence[str] = ()
) -> dict[str, Any]:
    """Return columns that were given in one dict or as arguments; arguments that are None are
    omitted.

    Args:
        arrays: The dict.
        keys: The arguments.
        also: Other names that the arguments stand for.
    """
    if not hasattr(arrays, "keys"):  # a table of pandas will do
        raise FieldError(f"arrays are given as a dict {{field: values}}, got {shown(arrays)}")
    columns = {name: value for name, value in keys.items() if value is not None}
    double = set(arrays) & {*columns, *also}
    if double:
        raise FieldError(f"{shown(min(double))} is given twice")
    return {**arrays, **columns}


def one_condition(condition: Condition, query_condition: Condition) -> Condition:
    """Return the condition, given by either of its two names."""
    if condition is not None and query_condition is not None:
        raise ArgumentError("give condition=... or query_condition=..., not both")
    return query_condition if condition is None else condition


def is_condition(rows: Rows) -> bool:
    """Return True if rows are given by a condition and not by their numbers."""
    return rows is None or isinstance(rows, (Mapping, QueryBuilder))


def checked_numbers(rows: Rows, call: str) -> list[int]:
    """Return the numbers of rows, each once and in order.

    Raises:
        FieldError: Something else.
    """
    if isinstance(rows, (set, frozenset)):
        rows = list(rows)
    try:
        numbers: list[int] = np.unique(checked_seqs(rows)).tolist()
    except FieldError as error:
        raise FieldError(
            f"condition_or_seqs: {call}() takes a condition or the numbers of rows; {error}"
        ) from None
    return numbers


def checked_reason(reason: Any) -> str | None:
    """Return the reason of a quarantine as bytes that can be stored.

    Raises:
        FieldError: The reason is not text, or cannot be stored.
    """
    return None if reason is None else encode_key(reason, "reason", MAX_NAME_BYTES)


def checked_batch_size(batch_size: Any, sampler: Any = None, *, replace: bool = False) -> int:
    """Return a number of rows to draw, from 1 on; one of more than 64 bits means all of them.

    Args:
        batch_size: The argument.
        sampler: What draws them. If it returns a row several times, there are always enough, so
            the number has a limit.
        replace: Without a sampler they are drawn with replacement.

    Raises:
        ArgumentError: Anything but such a number.
    """
    if sampler is not None:
        replace = bool(getattr(sampler, "replace", False))
    if replace:
        more = ", in a batch that is drawn with replacement"
        return checked_integer(batch_size, "batch_size", 1, MOST_REPLACED, more=more)
    return checked_count(batch_size, "batch_size", 1)


def checked_sampler(value: Any) -> Sampler:
    """Return a sampler of rows.

    Raises:
        ArgumentError: Something else.
    """
    what = "a Sampler of rows, such as RandomSampler()"
    if isinstance(value, TaskSampler):
        what += "; sample_tasks() takes a TaskSampler"
    sampler: Sampler = checked_instance(value, "sampler", Sampler, what)
    return sampler


def checked_task_sampler(value: Any) -> TaskSampler:
    """Return a sampler of tasks.

    Raises:
        ArgumentError: Something else.
    """
    what = "a TaskSampler, such as RandomTaskSample()"
    if isinstance(value, Sampler):
        what += "; sample() takes a Sampler of rows"
    sampler: TaskSampler = checked_instance(value, "sampler", TaskSampler, what)
    return sampler


def checked_buffer_name(name: Any) -> str:
    """Return the name of a buffer.

    Raises:
        ArgumentError: Anything but text that a buffer can be named with.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not is_storable_text(name):
        what = f"text of 1 to {MAX_NAME} characters without U+0000, the name of a buffer"
        raise refused(name, "name", what)
    return name


def checked_clock(clock: Any, name: str) -> int:
    """Return the clock or a version of a model.

    Raises:
        ArgumentError: Anything but an integer of 64 bits.
    """
    return checked_integer(clock, name, more=", the learner's iteration or model version")


def checked_rows(rows: Any, name: str) -> list[DataRow]:
    """Return rows to store.

    Args:
        rows: The argument.
        name: Its name.

    Raises:
        ArgumentError: It is not a list or another iterable.
        FieldError: An item is not a `DataRow`.
    """
    checked = []
    for i, row in enumerate(checked_iterable(rows, name, "a list of DataRows, or a buffer")):
        if not isinstance(row, DataRow):
            raise FieldError(
                f"{name}: row {i}: expected a DataRow, got {shown(row)}; or use "
                f"buffer.add(state=..., ...)"
            )
        checked.append(row)
    return checked


def checked_task_ids(task_ids: Any) -> dict[Any, str]:
    """Return the texts of tasks by the given ids, which may be numbers.

    Raises:
        ArgumentError: Something else than a list of ids.
    """
    what = "a list of ids such as ['t1', 't2']"
    return {
        task_id: checked_task_id(task_id, "each of task_ids")
        for task_id in checked_items(task_ids, "task_ids", what, MAX_TASKS)
    }


def checked_task_id(task_id: Any, name: str = "task_id") -> str:
    """Return the id of a task as text; numbers become text, as those of rows do.

    Raises:
        ArgumentError: Neither text nor a number.
    """
    text = key_text(task_id)
    if text is None:
        raise refused(task_id, name, "text or a number, the id of a task")
    return text


def key_text(key: Any) -> str | None:
    """Return the text of a key; None if it is neither text nor a number of at most 308 digits."""
    if isinstance(key, str):
        return key
    integer, real = integer_of(key), real_of(key)
    if real is None or not math.isfinite(real):
        return None
    return str(real if integer is None else integer)


def checked_session(session_id: Any) -> str:
    """Return the key of a session; numbers become text, as those of rows do.

    Raises:
        FieldError: No text, or none that can be stored.
    """
    if isinstance(session_id, str) and not session_id:
        raise FieldError("session_id: expected text, got ''; leave it out to have one made")
    text = key_text(session_id)
    return encode_key(session_id if text is None else text, "session_id")


def checked_sessions(sessions: Any) -> Any:
    """Return the key of a session, or a list of those of several steps; None is left.

    Raises:
        FieldError: As `checked_session`.
    """
    if isinstance(sessions, np.ndarray):
        sessions = sessions.tolist()
    if not isinstance(sessions, (list, tuple)):
        return None if sessions is None else checked_session(sessions)
    if set(map(type, sessions)) == {str} and "" not in sessions:
        return sessions
    return [None if session is None else checked_session(session) for session in sessions]


def checked_window(window_s: Any) -> float:
    """Return a number of seconds over which rates are known.

    Raises:
        ArgumentError: Anything but a number of seconds, up to an hour.
    """
    return checked_duration(window_s, "window_s", HISTORY_S)


def check_n_step(n_step: Any, gamma: Any) -> None:
    """Raise unless these are a number of steps and a discount from 0 to 1.

    Raises:
        ArgumentError: They are not.
    """
    checked_integer(n_step, "n_step", 1, MOST_STEPS)
    checked_number(gamma, "gamma", 0, 1)


def checked_episodes(episode_ids: Any, task_ids: Any = None) -> list[tuple[str, str | None]]:
    """Return the ids of episodes and their tasks.

    Args:
        episode_ids: The ids.
        task_ids: Their tasks; None, also for one of them: the only task with such an episode.

    Raises:
        ArgumentError: They are not lists of one length.
        FieldError: A key is not text that a database can store.
    """
    ids = checked_items(episode_ids, "episode_ids", "a list of ids such as ['e1']", MAX_TASKS)
    tasks: Sequence[Any] = [None] * len(ids)
    if task_ids is not None:
        tasks = checked_items(task_ids, "task_ids", "a list of ids such as ['t1']", MAX_TASKS)
    if len(tasks) != len(ids):
        raise ArgumentError(
            f"task_ids has {len(tasks)} values for {len(ids)} episode_ids; give one for each"
        )
    return [
        (
            encode_key(key, "each of episode_ids"),
            None if task is None else encode_key(task, "each of task_ids"),
        )
        for key, task in zip(ids, tasks, strict=True)
    ]


def keys_of_envs(keys: Any, name: str, n_envs: int) -> Sequence[Any]:
    """Return the key of each environment; one for all may be given.

    Raises:
        FieldError: A list of another length.
    """
    if keys is None or isinstance(keys, str) or not isinstance(keys, (Sequence, np.ndarray)):
        return [keys] * n_envs
    if len(keys) != n_envs:
        raise FieldError(
            f"{name}: expected one key for all, or one for each of {n_envs} environments, got "
            f"{len(keys)}"
        )
    return list(keys)
