"""Changes of rollouts after the write of their steps, the same on both databases."""

from collections.abc import Mapping, Sequence

from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    bindparam,
    delete,
    func,
    literal_column,
    text,
    update,
)

from sqlbuffer.storage.rollout_stats.added_steps import within_range
from sqlbuffer.storage.rollout_stats.tables import group_changes, group_stats, rollout_stats

Rollout = tuple[str, int]  # the task, and the number of the episode or 0

_own = rollout_stats.c
_IS_ONE = (
    (_own.buffer_id == bindparam("of_buffer"))
    & (_own.task_id == bindparam("of_task"))
    & (_own.episode_id == bindparam("of_episode"))
)
_CHANGED = func.nullif(
    func.coalesce(_own["return"], 0.0) + bindparam("change", type_=Double()),
    literal_column("'NaN'"),
)
_CHANGE = update(rollout_stats).where(_IS_ONE).values({"return": _CHANGED})
_REMOVE = (
    update(rollout_stats)
    .where(_IS_ONE)
    .values(length=_own.length - bindparam("n", type_=BigInteger()))
)
_LEAVE = delete(rollout_stats).where(_IS_ONE, _own.length <= 0)
# Sums over the held steps; steps of earlier rollouts that have left are unknown here.
_ADD_UP = text("""
INSERT INTO rollout_stats (buffer_id, task_id, episode_id, length, "return", first_seq, last_seq)
SELECT :id, s.task_id, s.episode_id, s.length, s.total, n.first_seq, n.last_seq
FROM (
    SELECT task_id, coalesce(episode_id, 0) AS episode_id, sum(n_steps) AS length,
        sum(total_reward) AS total
    FROM step_sums WHERE buffer = (SELECT name FROM buffers WHERE id = :id) AND n_steps > 0
    GROUP BY task_id, coalesce(episode_id, 0)
) AS s
JOIN (
    SELECT task_id, coalesce(episode_id, 0) AS episode_id, min(seq) AS first_seq,
        max(seq) AS last_seq
    FROM step_numbers WHERE buffer_id = :id GROUP BY task_id, coalesce(episode_id, 0)
) AS n ON n.task_id = s.task_id AND n.episode_id = s.episode_id
""")


def change_returns(
    connection: Connection, buffer_id: int, changes: Mapping[Rollout, Sequence[float]]
) -> None:
    """Add the changes of rewards by annotations to the returns of rollouts."""
    rows = [
        {**_of(buffer_id, rollout), "change": sum(map(within_range, own))}
        for rollout, own in sorted(changes.items())
    ]
    if rows:
        connection.execute(_CHANGE, rows)


def remove_steps(
    connection: Connection, buffer_id: int, removed: Mapping[Rollout, tuple[int, float | None]]
) -> None:
    """Subtract steps that a user deletes from their rollouts.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        removed: For each rollout the number of steps, and the sum of their rewards.
    """
    given = sorted(removed.items())
    if given:
        change_returns(
            connection,
            buffer_id,
            {rollout: [-total] for rollout, (_, total) in given if total is not None},
        )
        lengths = [{**_of(buffer_id, rollout), "n": n} for rollout, (n, _) in given]
        connection.execute(_REMOVE, lengths)
        connection.execute(_LEAVE, [_of(buffer_id, rollout) for rollout, _ in given])


def forget(connection: Connection, buffer_id: int) -> None:
    """Delete all rollouts of a buffer."""
    # Groups first: then rollouts are not subtracted from them.
    for table in (group_stats, rollout_stats, group_changes):
        connection.execute(delete(table).where(table.c.buffer_id == buffer_id))


def add_up(connection: Connection, buffer_id: int) -> None:
    """Compute the rollouts of a buffer from the steps that it holds."""
    forget(connection, buffer_id)
    connection.execute(_ADD_UP, {"id": buffer_id})


def _of(buffer_id: int, rollout: Rollout) -> dict[str, int | str]:
    task_id, episode_id = rollout
    return {"of_buffer": buffer_id, "of_task": task_id, "of_episode": episode_id}
