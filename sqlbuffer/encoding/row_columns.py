"""Rows with typed fields as columns of steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sqlbuffer.display.short_values import shown
from sqlbuffer.encoding.given_columns import GivenColumns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import Record, encode_rows
from sqlbuffer.encoding.step_payloads import PayloadParts, collected_payload
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.steps.data_rows import DataRow


def columns_of_rows(
    layout: Layout,
    rows: Sequence[DataRow],
    model_version: int | None = None,
    priority: Any = None,
    *,
    makes_steps: bool = False,
) -> GivenColumns:
    """Return the columns of rows.

    Args:
        layout: The typed fields of the buffer.
        rows: The rows, at least one.
        model_version: Version for rows that name none.
        priority: One number for all, or one for each; None: that of the buffer.
        makes_steps: Whether the numbers of the steps were made, and not given.

    Raises:
        FieldError: A value cannot be stored, or a field is missing or unknown; the message names
            the row.
    """
    records = encode_rows(rows, model_version, priority)
    check_declared(rows, layout)
    each: dict[str, list[Any]] = dict(
        zip(Record._fields, map(list, zip(*records, strict=True)), strict=True)
    )
    payloads = zip(*(each[name] for name in (*PayloadParts._fields[:-1], "arrays")), strict=True)
    rewards = np.array(each["reward_t"], np.float64)  # None is NaN
    names = ("adv_t", "v_t", "terminated", "truncated")
    return GivenColumns(
        n_steps=len(rows),
        fields={name: _cast(spec, rows) for name, spec in layout.specs.items()},
        reward=None if np.isnan(rewards).all() else rewards,
        reward_tags={},
        terminated=None,
        truncated=None,
        ids=each["id"],
        task_id=_one_or_each(each["task_id"]),
        agent_id=_one_or_each(each["agent_id"]),
        model_version=_one_or_each(each["model_version"]),
        session_id=_one_or_each(each["session_key"]),
        steps=np.array(each["step"], np.int64),
        priority=None if priority is None else each["initial_priority"],
        payloads=(),
        more_keys={
            name: _one_or_each(each[name]) for name in ("task_name", "pre_agent", "episode_key")
        },
        more_values={
            "times": each["execute_time"],
            **{name: each[name] for name in names if set(each[name]) != {None}},
        },
        encoded=[
            collected_payload(PayloadParts(state, actions, messages, extra, arrays or b""))
            for state, actions, messages, extra, arrays in payloads
        ],
        makes_steps=makes_steps,
    )


def check_declared(rows: Sequence[DataRow], layout: Layout) -> None:
    """Raise FieldError if a row has a typed field that the buffer does not declare."""
    for i, row in enumerate(rows):
        for name in row.fields:
            if name not in layout.specs:
                raise FieldError(
                    f"row {i}: unknown field {shown(name)}; the buffer has "
                    f"{', '.join(layout.specs) or 'no typed fields'}"
                )


def _cast(spec: FieldSpec, rows: Sequence[DataRow]) -> Any:
    """Return the values of a field: an array of shape (n, *shape), or a list of n arrays."""
    values = []
    for i, row in enumerate(rows):
        value = row.fields.get(spec.name)
        if value is None:
            value = spec.default_value
        if value is None:
            raise FieldError(f"row {i}: field {spec.name!r} is missing: expected {spec}")
        values.append(value)
    if spec.is_variable:
        return [spec.cast(value, casting="same_kind") for value in values]
    return spec.cast_rows(values, casting="same_kind", copy=False)


def _one_or_each(values: list[Any]) -> Any:
    """Return the value that all have, or all values."""
    return values[0] if len(set(values)) == 1 else values
