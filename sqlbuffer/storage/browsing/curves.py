"""Points of the curves of a buffer: bounded numbers of rows, looked up by indexes.

Times are Unix seconds by the database's clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Connection, bindparam, column, func, literal, select

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.storage.browsing.rollouts import in_order
from sqlbuffer.storage.buffers.tables import experiences, sessions
from sqlbuffer.storage.buffers.window import windows
from sqlbuffer.storage.chunks.relations import steps_at
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.flow import BUCKET_S, HISTORY_S, flow, flow_history
from sqlbuffer.storage.inspect.buffer_stats import Numbers, first_numbers, first_step
from sqlbuffer.storage.rollout_stats import rollout_stats
from sqlbuffer.storage.sample_log import samples
from sqlbuffer.storage.schema.expressions import (
    SeqList,
    age_s,
    is_number_of,
    numbers_in,
    seconds_ago,
    unix_now,
    unix_time,
)
from sqlbuffer.storage.schema.number_keys import has_number

# Counting 100,000 would take half of the time that the page may take.
MOST_EPISODES = 10_000
# If there are more episodes, about this number of them is read, spread evenly.
SAMPLED_EPISODES = 2_000
_SCATTERED = 2_654_435_761  # of Knuth, TAOCP 6.4: multiples of it are spread evenly
LOOKED_AT_DISTANCES, EPISODES_OF_A_DISTANCE = 32, 64
LOOKED_AT_STEPS = 400
LOOKED_AT_BATCHES = 100
ROWS_OF_A_BATCH = 16
_SLACK_S = 1.0


Floats = NDArray[np.float64]
_NONE: Floats = np.empty(0)
# What the episodes of a buffer can be told apart by.
KINDS = ("agent", "session", "version")


@dataclass(frozen=True)
class TimeSpan:
    """A part of the history.

    Attributes:
        since: Unix time; None for the beginning.
        until: Unix time; None for now.
    """

    since: float | None = None
    until: float | None = None


@dataclass(frozen=True)
class EpisodePoints:
    """Ended episodes in the order of their ends, or other rollouts ordered by their last steps.

    Attributes:
        ended_at: Time when each ended, or when its last step was written.
        returns: Sum of the rewards of each; NaN if it has none.
        lengths: Steps of each.
        is_sample: The points are a sample of the episodes, spread evenly.
        has_ends: The points are episodes that have ended.
        seqs: Number of the last step of each: the steps of the buffer so far. NaN if unknown.
        places: Number of each among the stored episodes of the buffer, from 1 on. Those of a
            sample, and of a part of the history, are estimates.
        versions: Model version of each; NaN if it has none.
        names: Agent, session or version of each, as asked for; None if it has none.
    """

    ended_at: Floats
    returns: Floats
    lengths: Floats
    is_sample: bool = False
    has_ends: bool = True
    seqs: Floats = field(default_factory=lambda: _NONE)
    places: Floats = field(default_factory=lambda: _NONE)
    versions: Floats = field(default_factory=lambda: _NONE)
    names: Sequence[str | None] = ()


@dataclass(frozen=True)
class StepTimes:
    """Times when some steps of a buffer were written, at even distances.

    Attributes:
        seqs: Numbers of the steps, increasing.
        written_at: Time when each was written.
        n_before: Steps of the buffer that were written before the first of them; they may have
            left.
    """

    seqs: Floats
    written_at: Floats
    n_before: int = 0


@dataclass(frozen=True)
class DrawnCounts:
    """Counts of sampled rows in intervals of ten seconds, kept for an hour.

    A process reports its draws every five seconds; they count when they are reported.

    Attributes:
        begun_at: Time when each interval began.
        rows: Rows sampled in it.
        since: Time from which all intervals are known; those without draws are left out.
        last_at: Time of the last report; -inf if there was none.
    """

    begun_at: Floats
    rows: Floats
    since: float
    last_at: float


@dataclass(frozen=True)
class DrawnStaleness:
    """Staleness of the rows of batches, for buffers with `track_samples`.

    Attributes:
        drawn_at: Time when each batch was drawn.
        mean: Mean staleness of the batch's rows that are still held; NaN if none is.
    """

    drawn_at: Floats
    mean: Floats


def now_of(connection: Connection) -> float:
    """Return the time of the database."""
    return float(connection.execute(select(unix_now())).scalar_one())


def buffer_number(connection: Connection, name: str) -> int | None:
    """Return the key of a buffer in the tables; None if no buffer has that name."""
    if "\0" in name:  # which no server takes
        return None
    numbers = connection.execute(select(windows.c.buffer_id).where(windows.c.buffer == name))
    number = numbers.scalar_one_or_none()
    return None if number is None else int(number)


def episode_points(
    connection: Connection, buffer_id: int, span: TimeSpan, by: str | None = None
) -> EpisodePoints:
    """Return the ended episodes of a buffer in a part of its history, or a sample of them.

    Args:
        connection: A snapshot.
        buffer_id: The buffer.
        span: Part of the history.
        by: One of `KINDS`, for the names of the points; None: without names.
    """
    episode = episodes.c
    low, high = connection.execute(
        select(
            select(episode.id)
            .where(episode.buffer_id == buffer_id)
            .order_by(episode.id)
            .limit(1)
            .scalar_subquery(),
            select(episode.id)
            .where(episode.buffer_id == buffer_id)
            .order_by(episode.id.desc())
            .limit(1)
            .scalar_subquery(),
        )
    ).one()
    if low is None:
        return EpisodePoints(_NONE, _NONE, _NONE)
    now = now_of(connection)
    first, last = _between(
        span, low, high, lambda numbers: _started_at(connection, buffer_id, numbers, now)
    )
    is_in_span = (episode.buffer_id == buffer_id, episode.id >= first, episode.id <= last)
    # The session of an episode is that of its last step, which is looked up.
    most = SAMPLED_EPISODES if by == "session" else MOST_EPISODES
    query = select(
        unix_time(func.coalesce(episode.ended_at, episode.started_at)),
        episode["return"],
        episode.length,
        episode.last_seq,
        episode.id,
        episode.model_version,
        *([episode.agent_id] if by == "agent" else []),
    ).where(episode.status != "open", episode.length.is_not(None))
    further = (
        select(episode.id).where(*is_in_span).order_by(episode.id.desc()).limit(1).offset(most)
    )
    with in_order(connection):
        is_sample = connection.execute(further).scalar_one_or_none() is not None
    if is_sample:
        ids = _spread_ids(connection, buffer_id, first, last)
        query = query.where(is_number_of(episode.id, bindparam("ids", ids, SeqList())))
    else:
        query = query.where(*is_in_span)
    found = connection.execute(query).all()
    table = np.array(
        [[np.nan if value is None else value for value in row[:6]] for row in found],
        np.float64,
    ).reshape(-1, 6)
    order = np.argsort(table[:, 0], kind="stable")
    ended_at, returns, lengths, seqs, ids_found, versions = table[order].T
    points = EpisodePoints(
        ended_at, returns, lengths, is_sample, seqs=seqs, versions=versions,
        places=_places(connection, buffer_id, (low, high), ids_found, is_sample),
        names=[found[place][-1] for place in order] if by == "agent" else (),
    )  # fmt: skip
    return _named(connection, buffer_id, points, by)


def _places(
    connection: Connection, buffer_id: int, ends: tuple[int, int], ids: Floats, is_sample: bool
) -> Floats:
    """Return the numbers of episodes among those of their buffer.

    Of a part of the history they are estimates, from the distances between ids: counting all
    episodes would read as many entries of an index.
    """
    if not ids.size:
        return ids
    low, high = ends
    own = np.arange(ids.size, dtype=np.float64)
    if not is_sample and ids.min() <= low:
        return own + 1
    episode = episodes.c
    bounds = np.unique(np.linspace(low, high + 1, LOOKED_AT_DISTANCES + 1).astype(np.int64))
    starts = _table_of(bounds[:-1])
    further = (
        select(episode.id)
        .where(episode.buffer_id == buffer_id, episode.id >= starts.c.value)
        .order_by(episode.id)
        .limit(1)
        .offset(EPISODES_OF_A_DISTANCE)
        .scalar_subquery()
    )
    with in_order(connection):
        further_ids = select(further).select_from(starts).order_by(starts.c.place)
        found = connection.execute(further_ids).scalars().all()
    distances = np.array(
        [
            # Near the end there are not as many: the distances are those before.
            np.nan if last is None else (last - start) / EPISODES_OF_A_DISTANCE
            for last, start in zip(found, bounds[:-1].tolist(), strict=True)
        ]
    )
    is_known = np.isfinite(distances)
    distances[~is_known] = distances[is_known][-1] if is_known.any() else 1.0
    counts = np.concatenate([[0.0], np.cumsum(np.diff(bounds) / np.maximum(distances, 1.0))])
    if is_sample:
        return np.asarray(np.sort(np.interp(ids, bounds, counts)).round() + 1)
    return own + 1 + round(float(np.interp(ids.min(), bounds, counts)))


def _named(
    connection: Connection, buffer_id: int, points: EpisodePoints, by: str | None
) -> EpisodePoints:
    """Return points with names, if they are to have some that are not yet known."""
    if by == "version":
        names = [f"{version:.0f}" if np.isfinite(version) else None for version in points.versions]
        return replace(points, names=names)
    if by != "session" or not points.seqs.size:
        return points
    low = connection.execute(
        select(windows.c.low_seq).where(windows.c.buffer_id == buffer_id)
    ).scalar_one()
    numbers = np.nan_to_num(points.seqs, nan=0).astype(np.int64)
    steps = _steps_before(connection, buffer_id, low, numbers)
    keys: dict[int, str] = dict(
        connection.execute(
            select(sessions.c.id, sessions.c.key).where(sessions.c.buffer_id == buffer_id)
        ).all()
    )
    return replace(
        points,
        names=[
            # Not that of an earlier step, if the last one of the episode has left.
            keys.get(step.session_id or 0) if step is not None and step.seq >= number else None
            for step, number in zip(steps, numbers, strict=True)
        ],
    )


def _spread_ids(connection: Connection, buffer_id: int, first: int, last: int) -> list[int]:
    """Return the ids of one episode in each of up to `SAMPLED_EPISODES` equal parts.

    In a part it is at a place that differs from part to part: agents that take turns would else
    be missed. Later episodes do not change the sample, until the parts are twice as long.
    """
    episode = episodes.c
    width = 1 << max(0, -(-(last - first + 1) // SAMPLED_EPISODES) - 1).bit_length()
    parts = np.arange(first // width, last // width + 1, dtype=np.int64)
    places = parts * width + (parts * _SCATTERED >> 15) % width
    bounds = _table_of(np.unique(np.clip(np.append(places, last), first, last)))
    nearest = (
        select(episode.id)
        .where(episode.buffer_id == buffer_id, episode.id >= bounds.c.value)
        .order_by(episode.id)
        .limit(1)
        .scalar_subquery()
    )
    nearest_ids = connection.execute(select(nearest).select_from(bounds)).scalars()
    return sorted({int(number) for number in nearest_ids if number is not None})


def _started_at(connection: Connection, buffer_id: int, numbers: Numbers, now: float) -> Floats:
    """Return the begin of the first episode from each number on; now if there is none."""
    episode, bounds = episodes.c, _table_of(numbers)
    age = (
        select(age_s(episode.started_at))
        .where(episode.buffer_id == buffer_id, episode.id >= bounds.c.value)
        .order_by(episode.id)
        .limit(1)
        .scalar_subquery()
    )
    ages = connection.execute(select(age).select_from(bounds).order_by(bounds.c.place)).scalars()
    return np.array(
        [now if age_or_none is None else now - float(age_or_none) for age_or_none in ages]
    )


def _between(
    span: TimeSpan, low: int, high: int, times_of: Callable[[Numbers], Floats]
) -> tuple[int, int]:
    """Return the first and the last number of a part of the history, found by bisection.

    Numbers are given approximately in the order of time. The last number of an empty part is below
    its first.
    """
    first = low if span.since is None else _first_from(span.since, low, high + 1, times_of)
    last = high
    if span.until is not None:
        last = _first_from(span.until, low, high + 1, times_of) - 1
    return first, last


def _first_from(time: float, low: int, high: int, times_of: Callable[[Numbers], Floats]) -> int:
    ends = np.array([low], np.int64), np.array([high], np.int64)
    (first,) = first_numbers(*ends, lambda _, numbers: times_of(numbers) < time)
    return int(first)


def _table_of(numbers: Sequence[int] | Numbers) -> Any:
    """Return a table of numbers with the columns `value` and `place`."""
    listed = numbers.tolist() if isinstance(numbers, np.ndarray) else list(numbers)
    bound = bindparam(None, listed, SeqList(), unique=True)
    return numbers_in(bound).table_valued(column("value", BigInteger), column("place", BigInteger))


def step_times(connection: Connection, buffer_id: int, span: TimeSpan) -> StepTimes:
    """Return when some steps of a buffer were written, at even distances."""
    window = windows.c
    low, high = connection.execute(
        select(window.low_seq, window.high_seq).where(window.buffer_id == buffer_id)
    ).one()
    if high <= low:
        return StepTimes(np.empty(0), np.empty(0))
    first, last = _between(
        span, low + 1, high, lambda numbers: _written_at(connection, buffer_id, low, numbers)
    )
    if last < first:
        return StepTimes(np.empty(0), np.empty(0))
    wanted = np.unique(np.linspace(first, last, LOOKED_AT_STEPS).astype(np.int64))
    seqs, times = times_of(connection, buffer_id, low, wanted)
    first_held, _ = first_step(literal(buffer_id), literal(first))
    n_before = (connection.execute(select(first_held)).scalar_one() or first) - 1
    # Writers that commit late have numbers below those of earlier commits.
    return StepTimes(seqs, np.maximum.accumulate(times), n_before)


def written_before(
    connection: Connection, buffer_id: int, steps: StepTimes, times: Floats
) -> Floats:
    """Return for each time how many steps of a buffer were written before it, found by bisection.

    Args:
        connection: A snapshot.
        buffer_id: The buffer.
        steps: Steps in this part of the history, which narrow the search.
        times: Unix times.
    """
    window = windows.c
    low, high = connection.execute(
        select(window.low_seq, window.high_seq).where(window.buffer_id == buffer_id)
    ).one()
    ends = np.concatenate([[low + 1], steps.seqs, [high + 1]]).astype(np.int64)
    places = np.searchsorted(steps.written_at, times)
    firsts = first_numbers(
        ends[places],
        np.maximum(ends[places], ends[places + 1]),
        lambda of, numbers: _written_at(connection, buffer_id, low, numbers) < times[of],
    )
    return np.asarray(firsts - 1, np.float64)


def _written_at(connection: Connection, buffer_id: int, low: int, numbers: Numbers) -> Floats:
    """Return when the last step at or before each number was written; -inf if there is none."""
    steps = _steps_before(connection, buffer_id, low, numbers)
    return np.array([-np.inf if step is None else step.written_at for step in steps])


def step_ages(connection: Connection, buffer_id: int, numbers: Sequence[int]) -> list[float | None]:
    """Return how many seconds ago each of some steps was written; None for one that has left."""
    low = connection.execute(
        select(windows.c.low_seq).where(windows.c.buffer_id == buffer_id)
    ).scalar_one()
    now, steps = now_of(connection), _steps_before(connection, buffer_id, low, numbers)
    return [
        None if step is None or step.seq < number else now - step.written_at
        for step, number in zip(steps, numbers, strict=True)
    ]


def times_of(
    connection: Connection, buffer_id: int, low: int, numbers: Sequence[int] | Numbers
) -> tuple[Floats, Floats]:
    """Return the numbers and the times of the steps that `_steps_before` finds.

    The steps are sorted, and each occurs once.
    """
    steps = {step[:2] for step in _steps_before(connection, buffer_id, low, numbers) if step}
    seqs, times = np.array(sorted(steps), np.float64).reshape(-1, 2).T
    return seqs, times


class _FoundStep(NamedTuple):
    """A step, or a chunk with the number of its last step."""

    seq: int
    written_at: float
    agent_id: str
    session_id: int | None
    model_version: int | None


def _steps_before(
    connection: Connection, buffer_id: int, low: int, numbers: Sequence[int] | Numbers
) -> list[_FoundStep | None]:
    """Return the last step at or before each number, with its time in Unix seconds.

    For a chunk the number and the time are those of its last step; None if there is no step.
    """
    bounds, row, chunk = _table_of(numbers), experiences.c, chunks.c
    of_row = (row.buffer_id == buffer_id, row.seq > low, row.seq <= bounds.c.value)
    of_chunk = (
        chunk.buffer_id == buffer_id,
        chunk.first_seq > low - MAX_CHUNK_STEPS,
        chunk.first_seq <= bounds.c.value,
    )
    # Not max(): it would read all rows below the number.
    nearest = select(_last(row.seq, of_row), _last(chunk.first_seq, of_chunk))
    ordered = nearest.select_from(bounds).order_by(bounds.c.place)
    places = [tuple(pair) for pair in connection.execute(ordered)]
    last_of_chunk = chunk.first_seq + chunk.n_steps - 1
    steps: list[dict[int, _FoundStep]] = []
    for place, (of, number, last) in enumerate(
        ((row, row.seq, row.seq), (chunk, chunk.first_seq, last_of_chunk))
    ):
        listed = sorted({int(pair[place]) for pair in places if pair[place] is not None})
        is_one = has_number(number, literal(buffer_id), bindparam("places", listed, SeqList()))
        query = select(
            number, last, unix_time(of.inserted_at),
            of.agent_id, of.session_id, of.model_version,
        ).where(is_one)  # fmt: skip
        rows = connection.execute(query) if listed else ()
        steps.append({first: _FoundStep(*step) for first, *step in rows})
    of_rows, of_chunks = steps
    return [of_rows.get(seq) or of_chunks.get(first) for seq, first in places]


def _last(number: Any, where: Sequence[Any]) -> Any:
    return select(number).where(*where).order_by(number.desc()).limit(1).scalar_subquery()


def drawn_counts(connection: Connection, buffer_id: int) -> DrawnCounts:
    """Return how many rows of a buffer were sampled in the last hour."""
    history, now = flow_history.c, now_of(connection)
    rows = connection.execute(
        select(history.bucket, func.sum(history.n_sampled))
        .where(history.buffer_id == buffer_id)
        .group_by(history.bucket)
        .order_by(history.bucket)
    )
    table = np.array([(bucket, float(n)) for bucket, n in rows], np.float64).reshape(-1, 2)
    reported = select(func.max(unix_time(flow.c.heartbeat_at))).where(
        flow.c.buffer_id == buffer_id, flow.c.n_sampled > 0
    )
    last_at = connection.execute(reported).scalar_one()
    begun_at = table[:, 0] * BUCKET_S
    hour_ago = (now - HISTORY_S) // BUCKET_S * BUCKET_S
    return DrawnCounts(begun_at, table[:, 1], hour_ago, -np.inf if last_at is None else last_at)


def drawn_staleness(connection: Connection, buffer_id: int, span: TimeSpan) -> DrawnStaleness:
    """Return how stale the rows of some batches were, at even distances in time."""
    sample, now = samples.c, now_of(connection)
    first = select(age_s(func.min(sample.sampled_at))).where(sample.buffer_id == buffer_id)
    oldest_s = connection.execute(first).scalar_one_or_none()
    if oldest_s is None:
        return DrawnStaleness(np.empty(0), np.empty(0))
    begin_s = float(oldest_s) if span.since is None else min(float(oldest_s), now - span.since)
    end_s = 0.0 if span.until is None else max(0.0, now - span.until)
    # Time passes between the statements: without this slack the oldest batch would be missed.
    ages_s = np.linspace(begin_s + _SLACK_S, end_s, LOOKED_AT_BATCHES)
    ages_ms = _table_of((ages_s * 1_000).astype(np.int64))
    batch = (
        select(sample.id)
        .where(
            sample.buffer_id == buffer_id,
            sample.sampled_at >= seconds_ago(ages_ms.c.value / 1_000.0),
        )
        .order_by(sample.sampled_at)
        .limit(1)
        .scalar_subquery()
    )
    ids = set(connection.execute(select(batch).select_from(ages_ms)).scalars())
    listed = bindparam("ids", sorted(number for number in ids if number is not None), SeqList())
    query = select(unix_time(sample.sampled_at), sample.clock, sample.seqs).where(
        is_number_of(sample.id, listed), sample.clock.is_not(None)
    )
    batches = [
        (float(drawn_at), int(clock), _numbers(seqs)[:ROWS_OF_A_BATCH])
        for drawn_at, clock, seqs in connection.execute(query.order_by(sample.id))
    ]
    versions = _versions_of(
        connection, buffer_id, sorted({n for *_, seqs in batches for n in seqs})
    )
    means = [
        [max(0, clock - versions[seq]) for seq in seqs if seq in versions]
        for _, clock, seqs in batches
    ]
    return DrawnStaleness(
        np.array([drawn_at for drawn_at, *_ in batches], np.float64),
        np.array([np.mean(staleness) if staleness else np.nan for staleness in means], np.float64),
    )


def _numbers(seqs: Any) -> list[int]:
    """Return numbers from JSON (SQLite) or from an array (PostgreSQL)."""
    return list(orjson.loads(seqs) if isinstance(seqs, str) else seqs)


def _versions_of(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> dict[int, int]:
    """Return the model versions of the steps that are held and have one."""
    bounds = _table_of(seqs)
    row = experiences.c
    version = (
        select(row.model_version)
        .where(row.buffer_id == buffer_id, row.seq == bounds.c.value)
        .scalar_subquery()
    )
    step = steps_at(literal(buffer_id), bindparam("seqs", list(seqs), SeqList())).c
    versions = [
        *connection.execute(select(bounds.c.value, version).select_from(bounds)),
        *connection.execute(select(step.seq, step.model_version)),
    ]
    return {int(seq): int(number) for seq, number in versions if number is not None}


MOST_ROLLOUTS = 2_000


def rollout_points(
    connection: Connection, buffer_id: int, span: TimeSpan, by: str | None = None
) -> EpisodePoints:
    """Return the newest rollouts whose last step is held and was written in a part of the history.

    A rollout that several processes write at the same time counts once for each process. The
    arguments are those of `episode_points`.
    """
    rollout = rollout_stats.c
    newest = (
        select(rollout.last_seq, rollout["return"], rollout.length)
        .where(rollout.buffer_id == buffer_id)
        .order_by(rollout.first_seq.desc())
        .limit(MOST_ROLLOUTS)
    )
    with in_order(connection):
        rollouts = connection.execute(newest).all()
    low = connection.execute(
        select(windows.c.low_seq).where(windows.c.buffer_id == buffer_id)
    ).scalar_one()
    listed = [(last, total, length) for last, total, length in rollouts if last > low]
    steps = _steps_before(connection, buffer_id, low, [last for last, *_ in listed])
    # The step with that number, or the chunk that holds it.
    held = [
        (
            step.written_at,
            np.nan if total is None else total,
            length,
            last,
            np.nan if step.model_version is None else step.model_version,
            step,
        )
        for (last, total, length), step in zip(listed, steps, strict=True)
        if step is not None
        and (span.since is None or step.written_at >= span.since)
        and (span.until is None or step.written_at <= span.until)
    ]
    held.sort(key=lambda point: point[0])
    table = np.array([point[:-1] for point in held], np.float64).reshape(-1, 5)
    written_at, returns, lengths, seqs, versions = table.T
    points = EpisodePoints(
        written_at, returns, lengths, has_ends=False, seqs=seqs, versions=versions,
        places=np.arange(1.0, 1 + seqs.size),
        names=[step.agent_id for *_, step in held] if by == "agent" else (),
    )  # fmt: skip
    return _named(connection, buffer_id, points, by)
