"""Make the ids of episodes free, and count their steps, on PostgreSQL."""

from collections.abc import Mapping

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.arrays import number_array

_ADVANCE = """
UPDATE episodes e SET next_t = g.end_t
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS g(id, t, end_t)
WHERE e.id = g.id AND e.next_t = g.t RETURNING e.id
"""


def free_episode(
    connection: Connection, buffer_id: int, key: str, task_id: str
) -> tuple[str, int | None] | None:
    """Make the id of an ended episode free if all its steps have left.

    Returns:
        The status and length of an episode that keeps its id; None if the id is free.
    """
    statement = "SELECT status, length FROM sqlbuffer_free_episode_v1(%s::integer, %s, %s)"
    values = (buffer_id, key, task_id)
    ((status, length),) = driver_of(connection).execute(statement, values)
    return None if status is None else (status, length)


def advance(connection: Connection, spans: Mapping[int, tuple[int, int]]) -> set[int]:
    """Append steps to episodes; return the episodes for which these were the next steps.

    Args:
        connection: The transaction.
        spans: For each episode the place of the first of these steps, and the one after the last.
    """
    firsts, ends = zip(*spans.values(), strict=True)
    values = number_array(spans), number_array(firsts), number_array(ends)
    return {id_ for (id_,) in driver_of(connection).execute(_ADVANCE, values)}
