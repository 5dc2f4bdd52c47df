"""Check the arguments of public calls; each error names the expected value and the remedy."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from sqlbuffer.codec.scalar_tags import is_storable_text
from sqlbuffer.config.setting_checks import MAX_LIMIT, checked_seconds
from sqlbuffer.encoding.priority_values import checked_seqs
from sqlbuffer.encoding.records import MAX_NAME_BYTES, encode_key
from sqlbuffer.errors import BufferConfigError, FieldError
from sqlbuffer.fields.near_names import near_name
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.scalars import integer_of, real_of
from sqlbuffer.steps.data_rows import DataRow, Experience, ExpMeta
from sqlbuffer.storage.flow.limiters import HISTORY_S
from sqlbuffer.storage.sampling.readers.checks import MOST_STEPS

Condition = Tree | QueryBuilder | None
# Rows by a condition, or by their numbers: a list, an array or a tensor.
Rows = Any


class Same(Enum):
    """Stands for an argument that was left out where None means something."""

    SAME = "same"

    def __repr__(self) -> str:
        return "SAME"


SAME = Same.SAME

MAX_NAME = 200
MOST_REPLACED = 10_000_000
_META_FIELDS: dict[str, Any] = {
    "task_id": "default",
    "task_name": None,
    "agent_id": "default",
    "step": 0,
    "pre_agent": None,
    "episode_id": None,
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
    given = {"reward_t" if name == "reward" else name: value for name, value in fields.items()}
    known = {*_META_FIELDS, *_DATA_FIELDS, "execute_time", "id"}
    unknown = [name for name in given if name not in known and name not in declared]
    if unknown:
        nearest = near_name(unknown[0], [*known, *declared, "reward"])
        hint = f"did you mean {nearest}?" if nearest else "put it into extra={...}"
        raise FieldError(f"unknown field {unknown[0]!r}; {hint}")
    if given.get("session_id") is not None:
        given["session_id"] = checked_session(given["session_id"])
    meta = {
        name: default if given.get(name) is None else given[name]
        for name, default in _META_FIELDS.items()
    }
    data = {name: given[name] for name in _DATA_FIELDS if name in given}
    own_id = {"id": given["id"]} if given.get("id") is not None else {}
    execute_time = given.get("execute_time", time.time())
    return DataRow(
        ExpMeta(**meta, execute_time=execute_time),
        Experience(**data),
        **own_id,
        fields={name: given[name] for name in declared if name in given},
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
        raise FieldError(f"arrays are given as a dict {{field: values}}, got {arrays!r:.100}")
    given = {name: value for name, value in keys.items() if value is not None}
    double = set(arrays) & {*given, *also}
    if double:
        raise FieldError(f"{min(double)!r} is given twice")
    return {**arrays, **given}


def one_condition(condition: Condition, query_condition: Condition) -> Condition:
    """Return the condition, given by either of its two names."""
    if condition is not None and query_condition is not None:
        raise TypeError("give condition=... or query_condition=..., not both")
    return query_condition if condition is None else condition


def is_condition(rows: Rows) -> bool:
    """Return True if rows are given by a condition and not by their numbers."""
    return rows is None or isinstance(rows, (Mapping, QueryBuilder))


def checked_numbers(rows: Rows, call: str) -> list[int]:
    """Return the numbers of rows, each once and in order.

    Raises:
        FieldError: Something else.
    """
    if isinstance(rows, (set, frozenset, range)):
        rows = list(rows)
    try:
        numbers: list[int] = np.unique(checked_seqs(rows)).tolist()
    except FieldError as error:
        raise FieldError(f"{call}() takes a condition or the numbers of rows; {error}") from None
    return numbers


def checked_reason(reason: Any) -> str | None:
    """Return the reason of a quarantine as bytes that can be stored.

    Raises:
        FieldError: The reason is not text, or cannot be stored.
    """
    return None if reason is None else encode_key(reason, "reason", MAX_NAME_BYTES)


def check_batch_size(batch_size: int, sampler: Any = None, *, replace: bool = False) -> None:
    """Raise unless it is an integer from 0 on.

    Args:
        batch_size: Number of rows or tasks.
        sampler: What draws them. If it returns a row several times, there are always enough, so
            the number has a limit.
        replace: Without a sampler they are drawn with replacement.
    """
    if integer_of(batch_size) is None:
        raise TypeError(f"a batch size is an integer, got {batch_size!r}")
    if batch_size < 0:
        raise ValueError(f"a batch holds 0 rows or more, got batch_size={batch_size}")
    if sampler is not None:
        replace = bool(getattr(sampler, "replace", False))
    if replace and batch_size > MOST_REPLACED:
        raise ValueError(
            f"a batch that is drawn with replacement holds at most {MOST_REPLACED} rows, got "
            f"batch_size={batch_size}; draw without replacement, or several batches"
        )


def check_name(name: str) -> None:
    """Raise unless it is text that can name a buffer."""
    if not isinstance(name, str) or not name or not is_storable_text(name) or len(name) > MAX_NAME:
        raise BufferConfigError(
            f"a buffer's name is text of 1 to {MAX_NAME} characters without U+0000, got {name!r}"
        )


def checked_clock(clock: Any, name: str = "the clock") -> int:
    """Return the clock, or another integer of its kind.

    Raises:
        TypeError: No integer.
        ValueError: More than 64 bits.
    """
    integer = integer_of(clock)
    if integer is None:
        also = ", the learner's iteration or model version" if name == "the clock" else ""
        raise TypeError(f"{name} is an integer{also}, got {clock!r}")
    if not -MAX_LIMIT - 1 <= integer <= MAX_LIMIT:
        raise ValueError(f"{name} is an integer of 64 bits, got {clock}")
    return integer


def checked_session(session_id: Any) -> str:
    """Return the key of a session; numbers become text, as those of rows do.

    Raises:
        FieldError: No text, or none that can be stored.
    """
    if isinstance(session_id, str) and not session_id:
        raise FieldError("session_id: expected text, got ''; leave it out to have one made")
    integer, real = integer_of(session_id), real_of(session_id)
    if real is not None and math.isfinite(real):
        session_id = str(real if integer is None else integer)
    return encode_key(session_id, "session_id")


def checked_sessions(given: Any) -> Any:
    """Return the key of a session, or a list of those of several steps; None is left.

    Raises:
        FieldError: As `checked_session`.
    """
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, (list, tuple)):
        return None if given is None else checked_session(given)
    if set(map(type, given)) == {str} and "" not in given:
        return given
    return [None if each is None else checked_session(each) for each in given]


def check_rate_window(window_s: Any) -> None:
    """Raise unless rates over that many seconds are known.

    Raises:
        BufferConfigError: They are not.
    """
    if checked_seconds("window_s", window_s) > HISTORY_S:
        raise BufferConfigError(
            f"window_s is at most {HISTORY_S}: samples are known for an hour, got {window_s!r}"
        )


def check_n_step(n_step: int, gamma: float) -> None:
    """Raise unless these are a number of steps and a discount from 0 to 1."""
    steps = integer_of(n_step)
    if steps is None or not 1 <= steps <= MOST_STEPS:
        raise ValueError(f"n_step is an integer from 1 to {MOST_STEPS}, got {n_step!r}")
    if real_of(gamma) is None:
        raise TypeError(f"gamma is a number from 0 to 1, got {gamma!r}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is a number from 0 to 1, got {gamma!r}")


def described(sampler: Any) -> str:
    """Return the error for a value that is not a sampler."""
    if isinstance(sampler, type):
        return f"the class {sampler.__name__}; make one: {sampler.__name__}()"
    return type(sampler).__name__
