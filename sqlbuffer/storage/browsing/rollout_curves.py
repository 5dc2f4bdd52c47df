"""The returns and lengths of rollouts that have no end: tasks without episodes, open episodes."""

import numpy as np
from sqlalchemy import Connection, select

from sqlbuffer.storage.browsing import postgresql, sqlite
from sqlbuffer.storage.browsing.buffer_curves import EpisodePoints, TimeSpan, times_of
from sqlbuffer.storage.buffers.buffer_window import windows
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rollout_stats.tables import rollout_stats

MOST_ROLLOUTS = 2_000

_in_order = by_database(sqlite=sqlite.in_order, postgresql=postgresql.in_order)


def rollout_points(connection: Connection, buffer_id: int, span: TimeSpan) -> EpisodePoints:
    """Return the newest rollouts whose last step is held and was written in a part of the history.

    A rollout that several processes write at the same time counts once for each process.
    """
    own = rollout_stats.c
    newest = (
        select(own.last_seq, own["return"], own.length)
        .where(own.buffer_id == buffer_id)
        .order_by(own.first_seq.desc())
        .limit(MOST_ROLLOUTS)
    )
    with _in_order(connection):
        found = connection.execute(newest).all()
    low = connection.execute(
        select(windows.c.low_seq).where(windows.c.buffer_id == buffer_id)
    ).scalar_one()
    held = [
        (last, np.nan if total is None else total, length)
        for last, total, length in found
        if last > low
    ]
    table = np.array(held, np.float64).reshape(-1, 3)
    seqs, times = times_of(connection, buffer_id, low, table[:, 0].astype(np.int64))
    if not seqs.size:
        return EpisodePoints(np.empty(0), np.empty(0), np.empty(0), is_sample=False)
    # The step with that number, or the chunk that holds it.
    places = np.minimum(np.searchsorted(seqs, table[:, 0]), seqs.size - 1)
    written_at = times[places]
    inside = np.ones(len(table), bool)
    if span.since is not None:
        inside &= written_at >= span.since
    if span.until is not None:
        inside &= written_at <= span.until
    order = np.flatnonzero(inside)[np.argsort(written_at[inside], kind="stable")]
    _, returns, lengths = table[order].T
    return EpisodePoints(written_at[order], returns, lengths, is_sample=False, has_ends=False)
