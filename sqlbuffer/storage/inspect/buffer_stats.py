"""Statistics of buffers, at a cost independent of their size, in few statements for many."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    bindparam,
    cast,
    column,
    func,
    literal,
    or_,
    select,
)

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.rate_limits import Waiting
from sqlbuffer.stats import Distribution, Stats, distribution
from sqlbuffer.storage import flow
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.buffers.window import settled_seq, windows
from sqlbuffer.storage.chunks.relations import chunk_steps, n_steps, steps_at
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.eligibility import uses
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.flow import flow as flow_rows
from sqlbuffer.storage.flow import flow_history
from sqlbuffer.storage.leases.tables import queue_items
from sqlbuffer.storage.priorities.blocks import priorities
from sqlbuffer.storage.reading import RowQueries
from sqlbuffer.storage.schema.expressions import (
    IntegerList,
    SeqList,
    age_s,
    is_one_of,
    numbers_in,
    unix_now,
)
from sqlbuffer.storage.watermarks import Watermark, last_number

# Looked at in each range by one statement: a round trip takes as long as some 20 lookups. In many
# ranges together fewer are looked at, and more statements sent.
POINTS, POINTS_IN_ALL = 15, 300

Numbers = NDArray[np.int64]


def first_numbers(
    low: Numbers, high: Numbers, is_before: Callable[[Numbers, Numbers], NDArray[np.bool_]]
) -> Numbers:
    """Return the first number of each range that is not before what is searched.

    Args:
        low: First number of each range, of shape (n,).
        high: Last number of each range, of shape (n,); it is returned if all lower ones are before.
        is_before: Function of places of ranges and numbers in them, both of shape (m,). It returns
            True for numbers before the searched one. In a range these come first.

    Returns:
        One number for each range, of shape (n,).
    """
    low, high = low.copy(), high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        n = max(1, min(POINTS, POINTS_IN_ALL // open_.size))
        span = (high - low)[open_, None]
        points = low[open_, None] + span * np.arange(1, n + 1) // (n + 1)
        before = is_before(open_.repeat(n), points.ravel()).reshape(points.shape)
        n_before = np.where(before.all(axis=1), n, before.argmin(axis=1))
        moved, cut = n_before > 0, n_before < n
        low[open_[moved]] = points[moved, n_before[moved] - 1] + 1
        high[open_[cut]] = points[cut, n_before[cut]]
    return low


def first_step(buffer_id: Any, seq: Any) -> tuple[Any, Any]:
    """Return the number and the age in seconds of a buffer's first step from a number on."""
    row, step = experiences.c, chunk_steps.c
    of_row = (row.buffer_id == buffer_id, row.seq >= seq), (row.seq,)
    near = step.first_seq > seq - MAX_CHUNK_STEPS
    of_chunk = (step.buffer_id == buffer_id, near, step.seq >= seq), (step.first_seq, step.seq)
    return _first_of_either((row.seq, of_row), (step.seq, of_chunk)), _first_of_either(
        (age_s(row.inserted_at), of_row), (age_s(step.inserted_at), of_chunk)
    )


def newest_step_age(buffer_id: Any, low: Any) -> Any:
    """Return the age in seconds of the last step of a buffer that is above a number."""
    row, chunk = experiences.c, chunks.c
    of_row = (row.buffer_id == buffer_id, row.seq > low), (row.seq.desc(),)
    is_held = chunk.first_seq + chunk.n_steps - 1 > low
    of_chunk = (chunk.buffer_id == buffer_id, is_held), (chunk.first_seq.desc(),)
    return _first_of_either((age_s(row.inserted_at), of_row), (age_s(chunk.inserted_at), of_chunk))


def _first_of_either(*choices: tuple[Any, tuple[Any, Any]]) -> Any:
    """Return the first value of rows or of chunks: a buffer has one of them."""
    return func.coalesce(
        *(
            select(value).where(*where).order_by(*order).limit(1).scalar_subquery()
            for value, (where, order) in choices
        )
    )


@dataclass
class EvictionCount:
    """What this process knows of the steps that left a buffer.

    Attributes:
        watermark: Number up to which no step can appear any more.
        settled: That number when it was read last, None if each number given is settled.
        most: Largest count so far. Each count is at most the true one, which never falls.
    """

    watermark: Watermark
    settled: int | None = None
    most: int = 0

    def update(
        self, connection: Connection, about: Any, inserted: int, rows: int, n_others: int
    ) -> int:
        """Return how many steps left in other ways than those in `n_others`.

        Args:
            connection: A snapshot, opened after `settled` was read.
            about: Number and window of the buffer.
            inserted: Latest number that the buffer has given.
            rows: Number of stored steps.
            n_others: Number of steps that were deleted and are counted elsewhere.
        """
        end = inserted if self.settled is None else min(self.settled, inserted)
        above = 0
        if end < about.high_seq:
            start = max(end, about.low_seq) + 1
            above = _n_steps_between(connection, about.buffer_id, start, int(about.high_seq) + 1)
        self.most = max(self.most, end - (rows - above) - n_others)
        return self.most


_counts: WeakKeyDictionary[Engine, dict[int, EvictionCount]] = WeakKeyDictionary()


def eviction_counts(engine: Engine, ids: Collection[int]) -> dict[int, EvictionCount]:
    """Read which numbers of buffers are settled; call this before the snapshot is opened."""
    known = _counts.setdefault(engine, {})
    for number in ids:
        count = known.setdefault(number, EvictionCount(Watermark(number)))
        try:
            count.settled = settled_seq(engine, count.watermark)
        except psycopg.errors.UndefinedTable:  # the buffer was dropped
            del known[number]
    return {number: known[number] for number in ids if number in known}


def evicted_rows(
    connection: Connection,
    about: Any,
    inserted: int,
    rows: int,
    counts: Mapping[int, EvictionCount],
) -> int:
    """Return how many steps of a buffer left, apart from those of `left_otherwise`.

    Args:
        connection: A snapshot.
        about: Number, window and counters of the buffer.
        inserted: Latest number that the buffer has given.
        rows: Number of stored steps.
        counts: See `eviction_counts`. A buffer without gets a lower bound: those below the window.
    """
    n_others = sum(left_otherwise(about))
    if about.buffer_id not in counts:
        return max(0, int(about.low_seq) - n_others)
    return counts[about.buffer_id].update(connection, about, inserted, rows, n_others)


def left_otherwise(about: Any) -> tuple[int, int, int, int, int]:
    """Return how many steps were deleted for each cause that a buffer counts."""
    return (
        about.n_expired, about.n_used_up, about.n_other_session, about.n_partial, about.n_flat,
    )  # fmt: skip


def _n_steps_between(connection: Connection, buffer_id: int, start: int, end: int) -> int:
    """Return the number of steps with start <= seq < end."""
    row = experiences.c
    inside = (row.buffer_id == buffer_id, row.seq >= start, row.seq < end)
    rows = select(func.count()).select_from(experiences).where(*inside).scalar_subquery()
    counted = connection.execute(select(rows + n_steps(buffer_id, start, end)))
    return int(counted.scalar_one())


# At 300,000 rows a sample of 5,000 took 100 ms on either database. The median of 2,000 rows is
# between the 0.48 and the 0.52 quantile in nineteen of twenty cases.
MOST_ROWS = 2_000
# Limit for several buffers together; each has at least this few.
MOST_ROWS_IN_ALL, FEWEST_ROWS = 8_000, 8
MOST_EPISODES = 100_000
FEWEST_EPISODES = 1_000
# Over a shorter time, rates would depend on which rows were written together.
SHORTEST_S = 1.0
# A row of any buffer as one number: the number of the buffer times this, plus the row's own number,
# which is lower.
_NUMBERS = 2**40

_ID = "buffer_id"


@dataclass(frozen=True)
class HeldRows:
    """Number of rows of a buffer.

    Attributes:
        rows: The number.
        exact: Whether it is exact; see `listings.buffers`.
    """

    rows: int
    exact: bool = True


def stats(queries: RowQueries, window_s: float) -> Stats:
    """Return the statistics of a buffer, with rates over a time in seconds."""
    queries.store_waiting()
    number = queries.buffer.info.id
    # Its statements already read both layouts.
    engine = queries.buffer.engine
    with translated(queries.buffer.url):
        counts = eviction_counts(engine, [number])
        settled = counts[number].settled if counts else None
        with snapshot(engine) as connection:
            rows = queries.count_all_in(connection, settled)
            statistics = look(connection, {number: HeldRows(rows)}, window_s, counts)
    if not statistics:
        raise queries.buffer.dropped()
    return statistics[0]


def look(
    connection: Connection,
    held: Mapping[int, HeldRows],
    window_s: float,
    counts: Mapping[int, EvictionCount] | None = None,
    *,
    in_depth: bool = True,
    most_episodes: int = MOST_EPISODES,
) -> list[Stats]:
    """Return the statistics of buffers by name, with rates over a time.

    Args:
        connection: A snapshot.
        held: Number of rows of each buffer. Buffers that were dropped are left out.
        window_s: Time of the rates in seconds.
        counts: What is known of the steps that left, read before the snapshot; without it `evicted`
            is a lower bound, the steps below the window.
        in_depth: Also count episodes, and read a sample of the rows; otherwise there are 0 episodes
            and no distributions.
        most_episodes: Maximum number of episodes that are counted, of all buffers together.
    """
    about = connection.execute(_select_buffers(list(held))).all()
    ids = [buffer.buffer_id for buffer in about]
    spans_s = {row.buffer_id: min(window_s, max(row.age_s, SHORTEST_S)) for row in about}
    totals = _totals(connection, ids)
    insert_rates = _insert_rates(connection, about, spans_s)
    sample_rates = _sample_rates(connection, about, spans_s)
    n_episodes = _episodes(connection, ids, most_episodes) if in_depth else dict.fromkeys(ids, 0)
    distributions = _distributions(connection, about if in_depth else [])
    waiting = _waiting(connection, ids)
    evicted = {
        row.buffer_id: evicted_rows(
            connection, row, _inserted(row), held[row.buffer_id].rows, counts or {}
        )
        for row in about
    }
    return [
        _stats(
            row,
            held[row.buffer_id],
            evicted[row.buffer_id],
            totals.get(row.buffer_id, (0, 0)),
            spans_s[row.buffer_id],
            (insert_rates[row.buffer_id], sample_rates[row.buffer_id]),
            n_episodes[row.buffer_id],
            distributions.get(row.buffer_id, _NO_DISTRIBUTIONS),
            tuple(waiting[row.buffer_id]),
        )
        for row in about
    ]


def _stats(
    about: Any,
    held: HeldRows,
    evicted: int,
    totals: tuple[int, int],
    span_s: float,
    rates: tuple[float | None, float],
    n_episodes: int,
    distributions: "_Distributions",
    waiting: tuple[Waiting, ...],
) -> Stats:
    return Stats(
        about.buffer,
        held.rows,
        held.exact,
        about.max_capacity,
        _inserted(about),
        evicted,
        *left_otherwise(about),
        *totals,
        span_s,
        *rates,
        None if about.oldest_age_s is None else max(0.0, about.oldest_age_s),
        None if about.newest_age_s is None else max(0.0, about.newest_age_s),
        n_episodes,
        about.clock,
        *distributions,
        waiting,
    )


def _is_listed(column_: Any, ids: Sequence[int]) -> Any:
    return is_one_of(column_, bindparam(None, list(ids), IntegerList(), unique=True))


def _select_buffers(ids: Sequence[int]) -> Any:
    window, buffer = windows.c, buffers.c
    oldest_seq, oldest_age = first_step(window.buffer_id, window.low_seq + 1)
    newest_age = newest_step_age(window.buffer_id, window.low_seq)

    return (
        select(
            window.buffer_id,
            window.buffer,
            window.max_capacity,
            window.low_seq,
            window.high_seq,
            buffer.clock,
            buffer.has_priorities,
            buffer.has_uses,
            buffer.has_queue,
            buffer.has_chunks,
            buffer.n_expired,
            buffer.n_used_up,
            buffer.n_other_session,
            buffer.n_partial,
            buffer.n_flat,
            age_s(buffer.created_at).label("age_s"),
            last_number(buffer.id).label("inserted"),
            unix_now().label("now"),
            oldest_seq.label("oldest_seq"),
            oldest_age.label("oldest_age_s"),
            newest_age.label("newest_age_s"),
        )
        .join_from(windows, buffers, buffer.id == window.buffer_id)
        .where(_is_listed(buffer.id, ids))
        .order_by(buffer.name)
    )


def _inserted(about: Any) -> int:
    return max(int(about.inserted), int(about.high_seq))


def _totals(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the numbers of sampled rows and batches, for buffers that were sampled."""
    flow_row = flow_rows.c
    sums = (func.sum(flow_row.n_sampled), func.sum(flow_row.n_batches))
    totals = connection.execute(
        select(flow_row.buffer_id, *sums)
        .where(_is_listed(flow_row.buffer_id, ids))
        .group_by(flow_row.buffer_id)
    )
    return {number: (int(sampled), int(batches)) for number, sampled, batches in totals}


def _insert_rates(
    connection: Connection, about: Sequence[Any], spans_s: Mapping[int, float]
) -> dict[int, float | None]:
    rates: dict[int, float | None] = {}
    searched = []
    for buffer in about:
        number, span_s, inserted = buffer.buffer_id, spans_s[buffer.buffer_id], _inserted(buffer)
        if buffer.oldest_age_s is None:
            rates[number] = None if inserted else 0.0
        elif buffer.newest_age_s > span_s:
            rates[number] = 0.0
        elif buffer.oldest_age_s > span_s:
            searched.append(buffer)
        elif buffer.oldest_seq == 1:
            rates[number] = inserted / span_s
        else:
            # The other rows of the time have left.
            since = inserted - buffer.oldest_seq + 1
            rates[number] = since / max(buffer.oldest_age_s, SHORTEST_S)
    spans = np.array([spans_s[buffer.buffer_id] for buffer in searched])
    for buffer, first, span_s in zip(
        searched, _first_younger(connection, searched, spans), spans.tolist(), strict=True
    ):
        rates[buffer.buffer_id] = (_inserted(buffer) - first + 1) / span_s
    return rates


def _first_younger(
    connection: Connection, about: Sequence[Any], ages_s: NDArray[np.float64]
) -> list[int]:
    """Return for each buffer the first number whose row is not older, searched in all together.

    Rows are written approximately in the order of their numbers.
    """
    ids = np.array([buffer.buffer_id for buffer in about], np.int64)
    low = np.array([buffer.low_seq + 1 for buffer in about], np.int64)
    high = np.array([buffer.high_seq for buffer in about], np.int64)

    def is_older(places: Numbers, numbers: Numbers) -> NDArray[np.bool_]:
        return _ages(connection, ids[places] * _NUMBERS + numbers) > ages_s[places]

    return [int(number) for number in first_numbers(low, high, is_older)]


def _ages(connection: Connection, keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for each key the age in seconds of the first row of its buffer from its number on."""
    table, number, seq = _rows_of(keys)
    _, age = first_step(number, seq)
    ages = connection.execute(select(age).select_from(table).order_by(table.c.place)).scalars()
    return np.array([0.0 if age_or_none is None else age_or_none for age_or_none in ages])


def _rows_of(keys: NDArray[np.int64]) -> tuple[Any, Any, Any]:
    """Return a table of keys with their places, and each key's buffer and number."""
    bound = bindparam("keys", keys.tolist(), SeqList())
    table = numbers_in(bound).table_valued(column("value", BigInteger), column("place", BigInteger))
    value = table.c.value
    return table, value // _NUMBERS, value % _NUMBERS


def _sample_rates(
    connection: Connection, about: Sequence[Any], spans_s: Mapping[int, float]
) -> dict[int, float]:
    # The interval in which a buffer was made has no draws of an earlier time.
    start = {}
    for buffer in about:
        is_younger = buffer.age_s <= spans_s[buffer.buffer_id]
        span_s = buffer.age_s + flow.BUCKET_S if is_younger else spans_s[buffer.buffer_id]
        start[buffer.buffer_id] = buffer.now - span_s
    totals = dict.fromkeys(start, 0.0)
    if not start:
        return totals
    table = flow_history.c
    statement = (
        select(table.buffer_id, table.bucket, func.sum(table.n_sampled))
        .where(
            _is_listed(table.buffer_id, list(start)),
            table.bucket >= int(min(start.values()) // flow.BUCKET_S),
        )
        .group_by(table.buffer_id, table.bucket)
    )
    now = {buffer.buffer_id: buffer.now for buffer in about}
    for number, bucket, n_rows in connection.execute(statement):
        if bucket >= start[number] // flow.BUCKET_S:
            share = flow.share_since(start[number], int(bucket), now[number])
            totals[number] += float(n_rows) * share
    return {number: total / spans_s[number] for number, total in totals.items()}


def _episodes(connection: Connection, ids: Sequence[int], in_all: int) -> dict[int, int]:
    """Return the number of episodes of each buffer, up to a limit."""
    most = max(FEWEST_EPISODES, in_all // max(len(ids), 1))
    window, episode = windows.c, episodes.c
    held = (
        select(episode.id)
        .where(
            episode.buffer_id == window.buffer_id,
            or_(episode.last_seq > window.low_seq, episode.last_seq.is_(None)),
        )
        .limit(most)
        .correlate(windows)
        .subquery()
    )
    counted = select(func.count()).select_from(held).scalar_subquery()
    counts = connection.execute(
        select(window.buffer_id, counted).where(_is_listed(window.buffer_id, ids))
    )
    return {number: int(n) for number, n in counts}


_Distributions = tuple[Distribution | None, Distribution | None, Distribution | None]
_NO_DISTRIBUTIONS: _Distributions = (None, None, None)


def _distributions(connection: Connection, about: Sequence[Any]) -> dict[int, _Distributions]:
    """Return the distributions of uses, priorities and staleness of rows, if they have any."""
    distributions = {buffer.buffer_id: _NO_DISTRIBUTIONS for buffer in about}
    buffers_with_values = [
        buffer
        for buffer in about
        if buffer.has_uses or buffer.has_queue or buffer.has_priorities or buffer.clock is not None
    ]
    if buffers_with_values:
        rows = _sampled_rows(connection, buffers_with_values)
        distributions.update(
            {
                buffer.buffer_id: _distributed(buffer, rows[buffer.buffer_id])
                for buffer in buffers_with_values
            }
        )
    return distributions


def _distributed(about: Any, rows: Sequence[Any]) -> _Distributions:
    priorities_of_rows = [
        next(p for p in (row.priority, row.initial_priority, 1.0) if p is not None) for row in rows
    ]
    used = [(row.n_claimed if about.has_queue else row.n_uses) or 0 for row in rows]
    versions = [row.model_version for row in rows if row.model_version is not None]
    clock = about.clock
    stale = [] if clock is None else [max(0, clock - version) for version in versions]
    return (
        distribution(used if about.has_uses or about.has_queue else []),
        distribution(priorities_of_rows if about.has_priorities else []),
        distribution(stale),
    )


def _sampled_rows(connection: Connection, about: Sequence[Any]) -> dict[int, list[Any]]:
    """Return values of the rows of buffers, or of a uniform sample of them."""
    most = min(MOST_ROWS, max(FEWEST_ROWS, MOST_ROWS_IN_ALL // len(about)))
    rows: dict[int, list[Any]] = defaultdict(list)
    seqs = {buffer.buffer_id: _numbers(buffer.low_seq, buffer.high_seq, most) for buffer in about}
    for buffer in about:
        if buffer.has_chunks:
            listed = bindparam("seqs", seqs.pop(buffer.buffer_id).tolist(), SeqList())
            step = steps_at(literal(buffer.buffer_id), listed).c
            columns = _overlay_values(step.buffer_id, step.seq)
            rows[buffer.buffer_id] = list(
                connection.execute(select(step.model_version, step.initial_priority, *columns))
            )
    if not seqs:
        return rows
    keys = np.concatenate(
        [number * _NUMBERS + seqs_of_buffer for number, seqs_of_buffer in seqs.items()]
    )
    _, number, seq = _rows_of(keys)
    columns = [_value_at(experiences, "seq", number, seq).label("found")]
    columns += [
        _value_at(experiences, name, number, seq) for name in ("model_version", "initial_priority")
    ]
    columns += _overlay_values(number, seq)
    for row in connection.execute(select(cast(number, BigInteger).label(_ID), *columns)):
        if row.found is not None:
            rows[row.buffer_id].append(row)
    return rows


def _overlay_values(number: Any, seq: Any) -> list[Any]:
    """Return the values of a step in the overlays."""
    columns = [
        _value_at(priorities, "priority", number, seq),
        _value_at(uses, "n_uses", number, seq),
    ]
    return [*columns, _value_at(queue_items, "n_uses", number, seq).label("n_claimed")]


def _value_at(table: Any, name: str, number: Any, seq: Any) -> Any:
    """Look up a column row by row: without statistics a join would read the whole table."""
    is_row = (table.c.buffer_id == number) & (table.c.seq == seq)
    return select(table.c[name]).where(is_row).scalar_subquery().label(name)


def _waiting(connection: Connection, ids: Sequence[int]) -> dict[int, list[Waiting]]:
    waiting: dict[int, list[Waiting]] = defaultdict(list)
    for number, call in flow.waiting(connection, ids):
        waiting[number].append(call)
    return waiting


def _numbers(low: int, high: int, most: int) -> Any:
    """Return all numbers of a window, or a uniform sample of them."""
    if high - low <= most:
        return np.arange(low + 1, high + 1)
    random = np.random.default_rng(time.monotonic_ns())
    return np.unique(random.integers(low + 1, high + 1, most))
