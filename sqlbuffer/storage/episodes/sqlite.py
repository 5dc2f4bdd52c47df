"""Makes the ids of episodes free on SQLite."""

from sqlalchemy import Connection


def free_episode(
    connection: Connection, buffer_id: int, key: str, task_id: str
) -> tuple[str, int | None] | None:
    """Make the id of an ended episode free if all its steps have left.

    Returns:
        The status and length of an episode that keeps its id; None: the id is free.
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
