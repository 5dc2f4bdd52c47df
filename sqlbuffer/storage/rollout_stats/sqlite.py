"""Add steps to their rollouts on SQLite."""

from sqlalchemy import Connection

from sqlbuffer.storage.dialects.column_inserts import insert_columns
from sqlbuffer.storage.rollout_stats.added_steps import AddedSteps

_COLUMNS = ("buffer_id", "task_id", "episode_id", "length", '"return"', "first_seq", "last_seq")
# The same as in the triggers for plain SQL; SQLite stores null for NaN.
_ADD = """
ON CONFLICT (buffer_id, task_id, episode_id, part) DO UPDATE
SET length = length + excluded.length,
    "return" = CASE WHEN excluded."return" IS NULL THEN "return"
        ELSE coalesce("return", 0) + excluded."return" END,
    first_seq = min(first_seq, excluded.first_seq), last_seq = max(last_seq, excluded.last_seq)
"""


def add_steps(connection: Connection, buffer_id: int, added: AddedSteps) -> None:
    """Add steps to their rollouts; triggers keep the groups."""
    rows = [(buffer_id, *key, *sums) for key, sums in added.rollouts.items()]
    if rows:
        columns = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
        insert_columns(connection, "rollout_stats", columns, 0, _ADD)
