"""Make the ids of episodes free, and count their steps, on SQLite."""

import json
from collections.abc import Mapping

from sqlalchemy import Connection

_ADVANCE = """
UPDATE episodes SET next_t = g.end_t
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS t,
    json_extract(value, '$[2]') AS end_t FROM json_each(?)) AS g
WHERE episodes.id = g.id AND episodes.next_t = g.t RETURNING episodes.id
"""


def free_episode(
    connection: Connection, buffer_id: int, key: str, task_id: str
) -> tuple[str, int | None] | None:
    """Make the id of an ended episode free if all its steps have left.

    Returns:
        The status and length of an episode that keeps its id; None if the id is free.
    """
    found = connection.exec_driver_sql(
        "SELECT id, status, length FROM episodes WHERE buffer_id = ? AND key = ? AND task_id = ?",
        (buffer_id, key, task_id),
    ).one_or_none()
    if found is None:
        return None
    number, status, length = found
    is_held = connection.exec_driver_sql(
        "SELECT 1 FROM step_numbers WHERE buffer_id = ? AND episode_id = ? "
        "AND +seq > (SELECT low_seq FROM v_windows WHERE buffer_id = ?) LIMIT 1",
        (buffer_id, number, buffer_id),
    ).one_or_none()
    if status == "open" or is_held:
        return status, length
    connection.exec_driver_sql("DELETE FROM episodes WHERE id = ?", (number,))
    return None


def advance(connection: Connection, spans: Mapping[int, tuple[int, int]]) -> set[int]:
    """Append steps to episodes; return the episodes for which these were the next steps.

    Args:
        connection: The transaction.
        spans: For each episode the place of the first of these steps, and the one after the last.
    """
    given = json.dumps([(id_, *span) for id_, span in spans.items()])
    return set(connection.exec_driver_sql(_ADVANCE, (given,)).scalars())
