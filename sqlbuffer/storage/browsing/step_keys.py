"""Page through the numbers of a rollout's steps, in their order, by key."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, func, or_, select, true

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.storage.browsing.found_rollouts import Rollout
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks
from sqlbuffer.storage.schema.column_types import SeqList, listed
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.schema.planner import unindexed

# Limit for looking up the agents of a task one by one, and for chunks without an episode.
MOST_AGENTS = 64
MOST_CHUNKS = 65_536
# Limit of the steps that are counted and chosen from if no index knows their order.
MOST_COUNTED = 100_000


class StepKey(NamedTuple):
    """Position of a step in its rollout.

    Attributes:
        position: Place in the episode if that is known, otherwise number within the task.
        seq: Number within the buffer.
    """

    position: int
    seq: int


@dataclass(frozen=True)
class KeyPage:
    """Some steps of a rollout in their order.

    Attributes:
        keys: The steps.
        has_more: There are more steps in the direction of reading.
    """

    keys: list[StepKey]
    has_more: bool


def key_page(
    connection: Connection,
    buffer: OpenBuffer,
    rollout: Rollout,
    limit: int,
    *,
    after: StepKey | None = None,
    before: StepKey | None = None,
    is_last: bool = False,
) -> KeyPage:
    """Return steps of a rollout.

    Args:
        connection: A transaction.
        buffer: The buffer.
        rollout: The rollout.
        limit: Maximum number of steps.
        after: Step before the page; the page has the first steps behind it.
        before: Step behind the page; the page has the last steps before it.
        is_last: Return the last steps of the rollout.
    """
    backwards = before is not None or is_last
    if not is_storable_text(f"{rollout.task_id}{rollout.agent_id}"):
        return KeyPage([], False)
    low = buffer.window_in(connection).low
    find = _of_chunks if buffer.info.has_chunks else _of_rows
    edge = before if backwards else after
    found = find(connection, buffer, low, rollout, edge, backwards, limit + 1)
    ordered = sorted(found, reverse=backwards)[: limit + 1]
    keys = ordered[:limit]
    return KeyPage(keys[::-1] if backwards else keys, len(ordered) > limit)


def _of_rows(
    connection: Connection,
    buffer: OpenBuffer,
    low: int,
    rollout: Rollout,
    edge: StepKey | None,
    backwards: bool,
    limit: int,
) -> Iterable[StepKey]:
    own = experiences.c
    within, position = _episode_rows(connection, buffer, rollout)
    if within is not None:
        wanted = [select(position, own.seq).where(within)]
    else:
        position = own.step
        of_task = (own.buffer_id == buffer.info.id) & (own.task_id == rollout.task_id)
        of_task = of_task & own.episode_id.is_(None) & (unindexed(own.seq) > low)
        wanted = [
            select(position, own.seq).where(of_task, is_agents)
            for is_agents in _agents(connection, buffer, rollout, experiences)
        ]
    pages = (_ordered(each, position, own.seq, edge, backwards, limit) for each in wanted)
    return [StepKey(*row) for page in pages for row in connection.execute(page)]


def _ordered(
    wanted: Select[Any], position: Any, seq: Any, edge: StepKey | None, backwards: bool, limit: int
) -> Select[Any]:
    seq = unindexed(seq)
    if edge is not None and backwards:
        beyond = or_(position < edge.position, seq < edge.seq)
        wanted = wanted.where(position <= edge.position, beyond)
    elif edge is not None:
        beyond = or_(position > edge.position, seq > edge.seq)
        wanted = wanted.where(position >= edge.position, beyond)
    columns = [position, seq]
    if position is experiences.c.t:
        # An episode has each position once, and the index knows that order.
        del columns[1]
    order = [column.desc() for column in columns] if backwards else columns
    return wanted.order_by(*order).limit(limit)


def _of_chunks(
    connection: Connection,
    buffer: OpenBuffer,
    low: int,
    rollout: Rollout,
    edge: StepKey | None,
    backwards: bool,
    limit: int,
) -> Iterable[StepKey]:
    is_placed = rollout.number is not None
    found: list[StepKey] = []
    for heads in _heads(connection, buffer, low, rollout, edge, backwards, limit):
        own: list[StepKey] = []
        most: int | None = None
        for head in heads:
            if most is not None and _begin(head, is_placed) > most:
                break
            if len(own) >= limit and is_placed:
                break
            keys = _steps_of(head, is_placed=is_placed)
            own += [key for key in keys if key.seq > low and _is_beyond(key, edge, backwards)]
            if most is None and len(own) >= limit and not backwards:
                # No chunk that begins behind these holds any of the first steps.
                most = max(key.position for key in own)
        found += own
    return found


def _heads(
    connection: Connection,
    buffer: OpenBuffer,
    low: int,
    rollout: Rollout,
    edge: StepKey | None,
    backwards: bool,
    limit: int,
) -> Iterator[Iterable[Any]]:
    """Yield the chunks of a rollout that may have steps beyond an edge, in order.

    They are all chunks of an episode, or those of each agent.
    """
    own = chunks.c
    columns = (own.first_seq, own.n_steps, own.t, own.step, own.steps)
    is_live = own.buffer_id == buffer.info.id
    is_live = is_live & (unindexed(own.first_seq) > low - MOST_STEPS)
    if rollout.number is not None:
        wanted = select(*columns).where(is_live, own.episode_id == rollout.number)
        if edge is not None:
            bound = own.t <= edge.position if backwards else own.t > edge.position - MOST_STEPS
            wanted = wanted.where(bound)
        # A chunk has at least one step, and one before the edge may have no step behind it.
        wanted = wanted.order_by(own.t.desc() if backwards else own.t).limit(limit + MOST_STEPS)
        yield connection.execute(wanted)
        return
    of_task = is_live & (own.task_id == rollout.task_id) & own.episode_id.is_(None)
    if edge is not None and backwards:
        of_task = of_task & (own.step <= edge.position)
    elif edge is not None:
        of_task = of_task & ((own.step > edge.position - MOST_STEPS) | own.steps.is_not(None))
    order = (own.step.desc(), own.first_seq.desc()) if backwards else (own.step, own.first_seq)
    for is_agents in _agents(connection, buffer, rollout, chunks):
        wanted = select(*columns).where(of_task, is_agents).order_by(*order).limit(MOST_CHUNKS)
        yield connection.execute(wanted)


def _begin(head: Any, is_placed: bool) -> int:
    """Return the first position of a chunk."""
    _, _, t, step, _ = head
    first: int = t if is_placed and t is not None else step
    return first


def _steps_of(head: Any, *, is_placed: bool) -> list[StepKey]:
    """Return the steps of a chunk."""
    first_seq, n_steps, _, _, steps = head
    first = _begin(head, is_placed)
    positions: Sequence[int] = range(first, first + n_steps)
    if steps is not None and not is_placed:
        positions = listed(steps)
    numbers = range(first_seq, first_seq + n_steps)
    return [StepKey(*pair) for pair in zip(positions, numbers, strict=False)]


def _is_beyond(key: StepKey, edge: StepKey | None, backwards: bool) -> bool:
    return edge is None or (key < edge if backwards else key > edge)


def _agents(connection: Connection, buffer: OpenBuffer, rollout: Rollout, table: Any) -> list[Any]:
    """Return the conditions for the steps of each agent of a task, which an index has in order.

    Each agent is found by one search of the index. If there are many agents, one condition is
    returned for all.
    """
    own, found = table.c, list[str]()
    if rollout.agent_id is not None:
        return [own.agent_id == rollout.agent_id]
    of_task = and_(own.buffer_id == buffer.info.id, own.task_id == rollout.task_id)
    while len(found) <= MOST_AGENTS:
        behind = (own.agent_id > found[-1],) if found else ()
        agent = connection.execute(
            select(own.agent_id).where(of_task, *behind).order_by(own.agent_id).limit(1)
        ).scalar()
        if agent is None:
            return [own.agent_id == agent for agent in found]
        found.append(agent)
    return [true()]


def spaced_keys(
    connection: Connection, buffer: OpenBuffer, rollout: Rollout, n: int
) -> tuple[list[StepKey], int]:
    """Return at most n steps of a rollout at even distances, and how many steps were counted.

    Args:
        connection: A transaction.
        buffer: The buffer.
        rollout: The rollout.
        n: Number of steps.
    """
    page = key_page(connection, buffer, rollout, n)
    if not page.has_more:
        return page.keys, len(page.keys)
    within, position = _episode_rows(connection, buffer, rollout)
    if position is experiences.c.t:
        (last,) = key_page(connection, buffer, rollout, 1, is_last=True).keys
        places = _spaced(page.keys[0].position, last.position, n)
        is_place = is_number_of(position, bindparam(None, places, SeqList()))
        found = connection.execute(select(position, experiences.c.seq).where(within, is_place))
        return sorted(StepKey(*row) for row in found), last.position - page.keys[0].position + 1
    if buffer.info.has_chunks:
        return _spaced_in_chunks(connection, buffer, rollout, n)
    if within is not None:
        return _spaced_in_rows(connection, within, position, n)
    keys = key_page(connection, buffer, rollout, MOST_COUNTED).keys
    return [keys[place] for place in _spaced(0, len(keys) - 1, n)], len(keys)


def _spaced_in_rows(
    connection: Connection, within: Any, position: Any, n: int
) -> tuple[list[StepKey], int]:
    order = (position, unindexed(experiences.c.seq))
    rank = func.row_number().over(order_by=order) - 1
    total: int = connection.execute(select(func.count()).where(within)).scalar_one()
    ranked = (
        select(position, experiences.c.seq, rank.label("rank")).where(within).subquery("ranked")
    )
    is_place = is_number_of(ranked.c.rank, bindparam(None, _spaced(0, total - 1, n), SeqList()))
    found = connection.execute(select(ranked.c[position.name], ranked.c.seq).where(is_place))
    return sorted(StepKey(*row) for row in found), total


def _spaced_in_chunks(
    connection: Connection, buffer: OpenBuffer, rollout: Rollout, n: int
) -> tuple[list[StepKey], int]:
    low = buffer.window_in(connection).low
    of_agents = _heads(connection, buffer, low, rollout, None, False, MOST_COUNTED)
    heads = list(chain.from_iterable(of_agents))
    skipped = [max(low + 1 - head.first_seq, 0) for head in heads]
    ends = list(accumulate(head.n_steps - gone for head, gone in zip(heads, skipped, strict=True)))
    found = []
    for rank in _spaced(0, ends[-1] - 1, n):
        i = bisect_right(ends, rank)
        # Counted from the end of the chunk: steps that have left were at its beginning.
        place = heads[i].n_steps - (ends[i] - rank)
        found.append(_steps_of(heads[i], is_placed=rollout.number is not None)[place])
    return sorted(found), ends[-1]


def _episode_rows(connection: Connection, buffer: OpenBuffer, rollout: Rollout) -> tuple[Any, Any]:
    """Return the condition for the rows of an episode, and the column that orders them.

    Return None if its steps are not rows, or do not belong to an episode.
    """
    if buffer.info.has_chunks or rollout.number is None:
        return None, None
    own = experiences.c
    low = buffer.window_in(connection).low
    within = (own.buffer_id == buffer.info.id) & (own.episode_id == rollout.number)
    within = within & (unindexed(own.seq) > low)
    stored_alone = select(own.seq).where(within, own.t.is_(None)).limit(1)
    # No index knows the order of rows that were stored one by one.
    return within, own.t if connection.execute(stored_alone).first() is None else own.step


def _spaced(first: int, last: int, n: int) -> list[int]:
    return sorted({first + (last - first) * i // (n - 1) for i in range(n)})
