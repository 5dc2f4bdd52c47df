"""What callers give, checked at the door: each error says what was expected and what to do."""

import difflib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
from pydantic import ValidationError

from sqlbuffer.codec.scalar_tags import is_storable_text
from sqlbuffer.encoding.priority_values import checked_seqs
from sqlbuffer.encoding.records import MAX_NAME_BYTES, encode_key
from sqlbuffer.errors import BufferConfigError, FieldError, InsufficientDataError
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.rate_limits import NO_LIMIT, FlowCounts, Policy
from sqlbuffer.scalars import integer_of, real_of
from sqlbuffer.steps.data_rows import DataRow, Experience, ExpMeta
from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.storage.buffers.limits import Limits
from sqlbuffer.storage.database.transactions import DURABILITIES
from sqlbuffer.storage.flow.limiters import HISTORY_S

Condition = Tree | QueryBuilder | None
# Rows by a condition, or by their numbers: a list, an array or a tensor.
Rows = Any


class Same(Enum):
    """Stands for an argument that was left out where None means something."""

    SAME = "same"

    def __repr__(self) -> str:
        return "SAME"


SAME = Same.SAME

EVICT_UNITS = ("row", "task", "episode")
MAX_SECONDS = 1e8  # three years
MAX_NAME = 200
MAX_USE = 2**31 - 1
MAX_LIMIT = 2**63 - 1  # what the databases take
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
        declared: The typed fields of the buffer, which `add` does not take.
    """
    if "reward" in fields and "reward_t" in fields:
        raise FieldError("give reward=... or reward_t=..., not both")
    given = {"reward_t" if name == "reward" else name: value for name, value in fields.items()}
    known = {*_META_FIELDS, *_DATA_FIELDS, "execute_time", "id"}
    unknown = [name for name in given if name not in known]
    typed = next((name for name in unknown if name in declared), None)
    if typed is not None:
        raise FieldError(
            f"{typed!r} is a typed field, and add() takes none; use extend({{{typed!r}: [value], "
            f"...}}) or episode()"
        )
    if unknown:
        nearest = difflib.get_close_matches(unknown[0], [*known, "reward"], n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else "put it into extra={...}"
        raise FieldError(f"unknown field {unknown[0]!r}; {hint}")
    meta = {name: given.get(name, default) for name, default in _META_FIELDS.items()}
    data = {name: given[name] for name in _DATA_FIELDS if name in given}
    own_id = {"id": given["id"]} if given.get("id") is not None else {}
    execute_time = given.get("execute_time", time.time())
    try:
        return DataRow(ExpMeta(**meta, execute_time=execute_time), Experience(**data), **own_id)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise FieldError(f"{path}: {first['msg']}, got {first['input']!r}") from None


def columns_of(
    arrays: Mapping[str, Any], keys: Mapping[str, Any], also: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what was given in one dict and, unless it is None, as arguments, as columns.

    Args:
        arrays: The dict.
        keys: The arguments.
        also: What the arguments say of rows beside their names.
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
    """Tell whether rows are given by a condition and not by their numbers."""
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
    """Return what is said of rows.

    Raises:
        FieldError: No text, or none that can be stored.
    """
    return None if reason is None else encode_key(reason, "reason", MAX_NAME_BYTES)


def check_batch_size(batch_size: int) -> None:
    """Raise unless it is an integer from 0 on."""
    if integer_of(batch_size) is None:
        raise TypeError(f"a batch size is an integer, got {batch_size!r}")
    if batch_size < 0:
        raise ValueError(f"a batch holds 0 rows or more, got batch_size={batch_size}")


def check_name(name: str) -> None:
    """Raise unless it is text that can name a buffer."""
    if not isinstance(name, str) or not name or not is_storable_text(name) or len(name) > MAX_NAME:
        raise BufferConfigError(
            f"a buffer's name is text of 1 to {MAX_NAME} characters without U+0000, got {name!r}"
        )


def checked_capacity(value: Any, name: str = "max_capacity") -> int | None:
    """Return a positive integer, or None."""
    if value is None:
        return None
    integer = integer_of(value)
    if integer is None or not 1 <= integer <= MAX_LIMIT:
        raise BufferConfigError(f"{name} is a positive integer or None (unlimited), got {value!r}")
    return integer


def checked_limits(limits: Limits) -> Limits:
    """Return limits that a buffer can have, their numbers as Python's."""
    capacities = ("max_capacity", "max_episodes", "keep_episodes", "max_use", "max_row_bytes")
    counts, times = ("max_staleness", "min_size"), ("keep_samples_s", "open_timeout_s")
    given: dict[str, Any] = {
        **{name: checked_capacity(getattr(limits, name), name) for name in capacities},
        **{name: _checked_count(getattr(limits, name), name) for name in counts},
    }
    for name in times:
        if (value := getattr(limits, name)) is not None:
            given[name] = checked_seconds(name, value)
    limits = replace(limits, **given)
    _check_together(limits)
    return limits


def _check_together(limits: Limits) -> None:
    if limits.max_use is not None and limits.max_use > MAX_USE:
        raise BufferConfigError(f"max_use is at most {MAX_USE}, got {limits.max_use}")
    check_fits(limits.max_capacity, limits.min_size or 0)
    check_reached(limits.rate_limiter, limits.min_size or 0)
    for name in ("priorities", "track_samples", "leases", "current_session_only", "keep_expired"):
        if getattr(limits, name) not in (None, True, False):
            raise BufferConfigError(f"{name} is True or False, got {getattr(limits, name)!r}")
    _check_unit(limits)


def _check_unit(limits: Limits) -> None:
    evict_by = limits.evict_by
    if evict_by not in (None, *EVICT_UNITS):
        raise BufferConfigError(f"evict_by is one of {', '.join(EVICT_UNITS)}, got {evict_by!r}")
    if limits.max_episodes is not None and evict_by not in (None, "episode"):
        raise BufferConfigError(
            f"a buffer with max_episodes evicts by episode; leave out evict_by={evict_by!r}"
        )
    if limits.leases and (evict_by not in (None, "row") or limits.max_episodes is not None):
        raise BufferConfigError(
            "a buffer with leases=True evicts by row; leave out evict_by and max_episodes"
        )


def check_fits(max_capacity: int | None, min_size: int) -> None:
    """Raise where a buffer never holds so many rows that any is sampled."""
    if max_capacity is not None and max_capacity < min_size:
        raise BufferConfigError(
            f"a buffer of max_capacity={max_capacity} never holds the {min_size} rows that it is "
            f"sampled from (min_size); let it hold as many"
        )


def check_reached(policy: Policy | None, min_size: int, n_rows: int = 0) -> None:
    """Raise where a limiter stops inserts before there are so many rows that any is sampled."""
    room = NO_LIMIT if policy is None else policy.room(FlowCounts(0, 0))
    if n_rows + room < min_size:
        raise BufferConfigError(
            f"{policy} lets {room:,} rows in before any is sampled, and the buffer holds "
            f"{n_rows:,} and is sampled from {min_size:,} on (min_size): both sides would wait for "
            f"each other; give the limiter min_size={min_size - n_rows} or more"
        )


def _checked_count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    integer = integer_of(value)
    if integer is None or not 0 <= integer <= MAX_LIMIT:
        raise BufferConfigError(f"{name} is an integer from 0 on, got {value!r}")
    return integer


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


def checked_alpha(alpha: Any, priorities: bool | None) -> float | None:
    """Return the exponent of priorities.

    Raises:
        BufferConfigError: Not a number from 0 to 1, or given beside `priorities=False`.
    """
    if alpha is None:
        return None
    exponent = real_of(alpha)
    if exponent is None or not 0 <= exponent <= 1:
        raise BufferConfigError(f"alpha is a number from 0 to 1, got {alpha!r}")
    if priorities is False:
        raise BufferConfigError("alpha goes with priorities=True")
    return exponent


def checked_seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0."""
    seconds = real_of(value)
    if seconds is None or not 0 < seconds <= MAX_SECONDS:
        raise BufferConfigError(f"{name} is a number of seconds above 0, got {value!r}")
    return seconds


def check_rate_window(window_s: Any) -> None:
    """Raise unless rates over that many seconds are known.

    Raises:
        BufferConfigError: They are not.
    """
    if checked_seconds("window_s", window_s) > HISTORY_S:
        raise BufferConfigError(
            f"window_s is at most {HISTORY_S}: what was sampled is known for an hour, got "
            f"{window_s!r}"
        )


def checked_wait(name: str, value: Any) -> float:
    """Return a number of seconds from 0 on that ends."""
    seconds = real_of(value)
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        raise BufferConfigError(
            f"{name} is a number of seconds, 0 (raise at once) to {MAX_SECONDS:g}, got {value!r}"
        )
    return seconds


def check_n_step(n_step: int, gamma: float) -> None:
    """Raise unless these are a number of steps from 1 on and a discount from 0 to 1."""
    steps = integer_of(n_step)
    if steps is None or steps < 1:
        raise ValueError(f"n_step is an integer from 1 on, got {n_step!r}")
    if real_of(gamma) is None:
        raise TypeError(f"gamma is a number from 0 to 1, got {gamma!r}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is a number from 0 to 1, got {gamma!r}")


def check_options(durability: str | None, retry_s: float) -> None:
    """Raise unless these are a durability and a number of seconds."""
    if durability is not None and durability not in DURABILITIES:
        raise BufferConfigError(
            f"durability is one of {', '.join(DURABILITIES)}, or omitted, got {durability!r}"
        )
    seconds = real_of(retry_s)
    if seconds is None or not 0 <= seconds < float("inf"):
        raise BufferConfigError(f"retry_s is a number of seconds, 0 or more, got {retry_s!r}")


def check_sufficient(found: int, wanted: int, strict: bool, ineligible: str = "") -> None:
    """Raise where fewer were found than must be.

    Args:
        found: How many were.
        wanted: How many were asked for.
        strict: Whether so many must be.
        ineligible: Which rows could not be drawn; see `ineligible_rows`.
    """
    if strict and found < wanted:
        also = f"; not drawn are rows that {ineligible}" if ineligible else ""
        raise InsufficientDataError(
            f"asked for {wanted}, and {found} match; wait for more data or lower the batch size"
            f"{also}"
        )


def ineligible_rows(info: BufferInfo, *, by_priority: bool, quarantine: bool = False) -> str:
    """Return which rows of a buffer are not drawn though they match; empty where all are.

    Args:
        info: The buffer.
        by_priority: Whether a row of priority 0 is not drawn.
        quarantine: Whether some are in quarantine.
    """
    kinds = []
    if info.max_use is not None:
        kinds.append(f"were sampled {info.max_use} times (max_use)")
    if info.max_staleness is not None:
        kinds.append(f"are more than {info.max_staleness} behind the clock (max_staleness)")
    if info.current_session_only:
        kinds.append("are of another session (current_session_only)")
    if quarantine:
        kinds.append("are in quarantine")
    if by_priority:
        kinds.append("have the priority 0")
    return " or ".join(kinds)


def described(sampler: Any) -> str:
    """Return what was given for a sampler and is none."""
    if isinstance(sampler, type):
        return f"the class {sampler.__name__}; make one: {sampler.__name__}()"
    return type(sampler).__name__
