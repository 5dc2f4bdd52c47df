"""What the public views show of a buffer, in a form that is the same on both databases."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from tests.support.sql import connected

# Views of what belongs to single steps, or is made of steps; and what they are ordered by.
STEP_VIEWS = (
    "v_experiences", "v_tasks", "v_agents", "v_groups", "v_episodes", "v_fields", "v_priorities",
    "v_sessions", "v_quarantine", "v_queue", "v_labels", "v_verdicts",
)  # fmt: skip
# The buffer's own name and key; and what is computed of a column that is compared.
_LEFT_OUT = {"buffer", "buffer_id", "executed_at", "first_at", "last_at", "age_s"}
_OF_BUFFERS = (
    "rows", "capacity", "evict_by", "last_insert_at", "expired", "used_up", "other_session",
    "partial", "flat", "quarantined", "clock", "max_staleness", "max_use", "min_size", "alpha",
)  # fmt: skip
_JSON = {
    "state", "actions", "messages", "extra", "fields", "meta", "special_numbers", "shape",
    "default_value",
}  # fmt: skip


def shown(url: str, name: str, views: Iterable[str] = STEP_VIEWS) -> dict[str, list[Any]]:
    """Return what views show of a buffer, by view, in the same order for equal contents."""
    found = {view: _rows(url, f"SELECT * FROM {view} WHERE buffer = :name", name) for view in views}
    of_buffer = f"SELECT {', '.join(_OF_BUFFERS)} FROM v_buffers WHERE buffer = :name"
    if "v_groups" in found:
        # Its figures count what was written, also what had left before a copy.
        names = ("group_id", "incomplete", "late")
        found["v_groups"] = [{name: row[name] for name in names} for row in found["v_groups"]]
    return {**found, "v_buffers": _rows(url, of_buffer, name)}


def _rows(url: str, statement: str, name: str) -> list[Any]:
    with connected(url) as connection:
        result = connection.execute(text(statement), {"name": name})
        columns = list(result.keys())
        rows = [
            {
                column: _plain(column, value)
                for column, value in zip(columns, row, strict=True)
                if column not in _LEFT_OUT
            }
            for row in result
        ]
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, default=str))


def _plain(column: str, value: Any) -> Any:
    if column.endswith("_at") and value is not None:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return time.astimezone(UTC).isoformat()
    if isinstance(value, str) and column in _JSON:
        return _without_nan(json.loads(value))
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return _without_nan(float(value) if isinstance(value, Decimal) else value)


def _without_nan(value: Any) -> Any:
    """NaN is null on SQLite, and sums may be added up in another order."""
    if isinstance(value, dict):
        return {name: _without_nan(own) for name, own in value.items()}
    if isinstance(value, list):
        return [_without_nan(own) for own in value]
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return None if math.isnan(value) else value if math.isinf(value) else float(f"{value:.12g}")
