"""Makes the ids of episodes free on PostgreSQL."""

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of


def free_episode(
    connection: Connection, buffer_id: int, key: str, task_id: str
) -> tuple[str, int | None] | None:
    """Make the id of an ended episode free if all its steps have left.

    Returns:
        The status and length of an episode that keeps its id; None: the id is free.
    """
    statement = "SELECT status, length FROM sqlbuffer_free_episode_v1(%s::integer, %s, %s)"
    values = (buffer_id, key, task_id)
    ((status, length),) = driver_of(connection).execute(statement, values)
    return None if status is None else (status, length)
