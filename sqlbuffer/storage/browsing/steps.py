"""The steps of a rollout, a bounded page at a time, with facts that are stored apart."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    column,
    or_,
    select,
    true,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.encoding.records import Decoder, Record
from sqlbuffer.errors import FieldError
from sqlbuffer.query.selected_fields import PLAIN, SelectedFields
from sqlbuffer.steps import PAYLOADS, DataRow
from sqlbuffer.storage.browsing.rollouts import Rollout
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.eligibility import quarantine, uses
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.labels.tables import label_history
from sqlbuffer.storage.priorities.blocks import priorities
from sqlbuffer.storage.rows.layouts import layout_of
from sqlbuffer.storage.rows.payload_parts import Payloads, n_bytes_of
from sqlbuffer.storage.sample_log import samples
from sqlbuffer.storage.schema.expressions import SeqList, is_number_of, listed, processed, unindexed

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


@dataclass(frozen=True)
class FinalObservation:
    """The observation after the last step of an episode.

    Attributes:
        values: Value of each observation field.
        trouble: Reason why it cannot be rebuilt.
    """

    values: dict[str, Any]
    trouble: str | None = None


def final_observation(
    connection: Connection, buffer: OpenBuffer, number: int | None
) -> FinalObservation | None:
    """Return the observation after the last step of an episode; None if none is stored.

    Args:
        connection: A transaction.
        buffer: The buffer.
        number: Number of the episode; None for steps without an episode.
    """
    own = (episodes.c.id == number) & (episodes.c.buffer_id == buffer.info.id)
    stored = connection.execute(select(episodes.c.final_arrays).where(own)).scalar_one_or_none()
    if stored is None:
        return None
    layout = buffer.observation_layout
    try:
        arrays = layout.unpack([stored])
    except FieldError as error:
        return FinalObservation({}, str(error))
    return FinalObservation({name: arrays[name][0] for name in layout.specs})


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
    find = _keys_of_chunks if buffer.info.has_chunks else _keys_of_rows
    edge = before if backwards else after
    steps = find(connection, buffer, low, rollout, edge, backwards, limit + 1)
    ordered = sorted(steps, reverse=backwards)[: limit + 1]
    keys = ordered[:limit]
    return KeyPage(keys[::-1] if backwards else keys, len(ordered) > limit)


def _keys_of_rows(
    connection: Connection,
    buffer: OpenBuffer,
    low: int,
    rollout: Rollout,
    edge: StepKey | None,
    backwards: bool,
    limit: int,
) -> Iterable[StepKey]:
    step = experiences.c
    within = _episode_rows(connection, buffer, rollout)
    position = step.step if within is None else step.t
    if within is not None:
        statements = [select(position, step.seq).where(within)]
    else:
        of_task = (step.buffer_id == buffer.info.id) & (step.task_id == rollout.task_id)
        of_task = of_task & step.episode_id.is_(None) & (unindexed(step.seq) > low)
        statements = [
            select(position, step.seq).where(of_task, is_agents)
            for is_agents in _agents(connection, buffer, rollout, experiences)
        ]
    pages = (
        _ordered(statement, position, step.seq, edge, backwards, limit) for statement in statements
    )
    return [StepKey(*row) for page in pages for row in connection.execute(page)]


def _ordered(
    statement: Select[Any],
    position: Any,
    seq: Any,
    edge: StepKey | None,
    backwards: bool,
    limit: int,
) -> Select[Any]:
    seq = unindexed(seq)
    if edge is not None and backwards:
        beyond = or_(position < edge.position, seq < edge.seq)
        statement = statement.where(position <= edge.position, beyond)
    elif edge is not None:
        beyond = or_(position > edge.position, seq > edge.seq)
        statement = statement.where(position >= edge.position, beyond)
    columns = [position, seq]
    if position is experiences.c.t:
        # An episode has each position once, and the index knows that order.
        del columns[1]
    order = [column.desc() for column in columns] if backwards else columns
    return statement.order_by(*order).limit(limit)


def _keys_of_chunks(
    connection: Connection,
    buffer: OpenBuffer,
    low: int,
    rollout: Rollout,
    edge: StepKey | None,
    backwards: bool,
    limit: int,
) -> Iterable[StepKey]:
    is_placed = rollout.number is not None
    keys_of_all: list[StepKey] = []
    for heads in _heads(connection, buffer, low, rollout, edge, backwards, limit):
        keys_of_agent: list[StepKey] = []
        most: int | None = None
        for head in heads:
            if most is not None and _first_position(head, is_placed) > most:
                break
            if len(keys_of_agent) >= limit and is_placed:
                break
            keys = _steps_of(head, is_placed=is_placed)
            keys_of_agent += [
                key for key in keys if key.seq > low and _is_beyond(key, edge, backwards)
            ]
            if most is None and len(keys_of_agent) >= limit and not backwards:
                # No chunk that begins behind these holds any of the first steps.
                most = max(key.position for key in keys_of_agent)
        keys_of_all += keys_of_agent
    return keys_of_all


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
    chunk = chunks.c
    columns = (chunk.first_seq, chunk.n_steps, chunk.t, chunk.step, chunk.steps)
    is_live = chunk.buffer_id == buffer.info.id
    is_live = is_live & (unindexed(chunk.first_seq) > low - MAX_CHUNK_STEPS)
    if rollout.number is not None:
        statement = select(*columns).where(is_live, chunk.episode_id == rollout.number)
        if edge is not None:
            bound = (
                chunk.t <= edge.position if backwards else chunk.t > edge.position - MAX_CHUNK_STEPS
            )
            statement = statement.where(bound)
        # A chunk has at least one step, and one before the edge may have no step behind it.
        statement = statement.order_by(chunk.t.desc() if backwards else chunk.t).limit(
            limit + MAX_CHUNK_STEPS
        )
        yield connection.execute(statement)
        return
    of_task = is_live & (chunk.task_id == rollout.task_id) & chunk.episode_id.is_(None)
    if edge is not None and backwards:
        of_task = of_task & (chunk.step <= edge.position)
    elif edge is not None:
        of_task = of_task & (
            (chunk.step > edge.position - MAX_CHUNK_STEPS) | chunk.steps.is_not(None)
        )
    order = (
        (chunk.step.desc(), chunk.first_seq.desc()) if backwards else (chunk.step, chunk.first_seq)
    )
    for is_agents in _agents(connection, buffer, rollout, chunks):
        statement = select(*columns).where(of_task, is_agents).order_by(*order).limit(MOST_CHUNKS)
        yield connection.execute(statement)


def _first_position(head: Any, is_placed: bool) -> int:
    """Return the first position of a chunk."""
    _, _, t, step, _ = head
    first: int = t if is_placed and t is not None else step
    return first


def _steps_of(head: Any, *, is_placed: bool) -> list[StepKey]:
    """Return the steps of a chunk."""
    first_seq, n_steps, _, _, steps = head
    first = _first_position(head, is_placed)
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
    step, agents = table.c, list[str]()
    if rollout.agent_id is not None:
        return [step.agent_id == rollout.agent_id]
    of_task = and_(step.buffer_id == buffer.info.id, step.task_id == rollout.task_id)
    while len(agents) <= MOST_AGENTS:
        behind = (step.agent_id > agents[-1],) if agents else ()
        agent = connection.execute(
            select(step.agent_id).where(of_task, *behind).order_by(step.agent_id).limit(1)
        ).scalar()
        if agent is None:
            return [step.agent_id == agent for agent in agents]
        agents.append(agent)
    return [true()]


def keys_of_episodes(
    connection: Connection, buffer: OpenBuffer, numbers: Sequence[int]
) -> dict[int, list[StepKey]]:
    """Return all steps of some short episodes in their order, by the numbers of the episodes.

    Args:
        connection: A transaction.
        buffer: The buffer.
        numbers: The episodes. Their steps are not limited, so give the numbers of short ones.
    """
    keys: dict[int, list[StepKey]] = {number: [] for number in numbers}
    low, listed_numbers = buffer.window_in(connection).low, bindparam(None, [*keys], SeqList())
    if buffer.info.has_chunks:
        chunk = chunks.c
        columns = (chunk.first_seq, chunk.n_steps, chunk.t, chunk.step, chunk.steps)
        heads = select(chunk.episode_id, *columns).where(
            chunk.buffer_id == buffer.info.id,
            is_number_of(chunk.episode_id, listed_numbers),
            unindexed(chunk.first_seq) > low - MAX_CHUNK_STEPS,
        )
        for number, *head in connection.execute(heads):
            steps = _steps_of(head, is_placed=True)
            keys[number] += [key for key in steps if key.seq > low]
    else:
        row = experiences.c
        rows = select(row.episode_id, row.t, row.seq).where(
            row.buffer_id == buffer.info.id,
            is_number_of(row.episode_id, listed_numbers),
            unindexed(row.seq) > low,
        )
        for number, *key in connection.execute(rows):
            keys[number].append(StepKey(*key))
    return {number: sorted(of_episode) for number, of_episode in keys.items()}


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
    within, position = _episode_rows(connection, buffer, rollout), experiences.c.t
    if within is not None:
        (last,) = key_page(connection, buffer, rollout, 1, is_last=True).keys
        places = _spaced(page.keys[0].position, last.position, n)
        is_place = is_number_of(position, bindparam(None, places, SeqList()))
        rows = connection.execute(select(position, experiences.c.seq).where(within, is_place))
        return sorted(StepKey(*row) for row in rows), last.position - page.keys[0].position + 1
    if buffer.info.has_chunks:
        return _spaced_in_chunks(connection, buffer, rollout, n)
    keys = key_page(connection, buffer, rollout, MOST_COUNTED).keys
    return [keys[place] for place in _spaced(0, len(keys) - 1, n)], len(keys)


def _spaced_in_chunks(
    connection: Connection, buffer: OpenBuffer, rollout: Rollout, n: int
) -> tuple[list[StepKey], int]:
    low = buffer.window_in(connection).low
    of_agents = _heads(connection, buffer, low, rollout, None, False, MOST_COUNTED)
    heads = list(chain.from_iterable(of_agents))
    skipped = [max(low + 1 - head.first_seq, 0) for head in heads]
    ends = list(accumulate(head.n_steps - gone for head, gone in zip(heads, skipped, strict=True)))
    keys = []
    for rank in _spaced(0, ends[-1] - 1, n):
        i = bisect_right(ends, rank)
        # Counted from the end of the chunk: steps that have left were at its beginning.
        place = heads[i].n_steps - (ends[i] - rank)
        keys.append(_steps_of(heads[i], is_placed=rollout.number is not None)[place])
    return sorted(keys), ends[-1]


def _episode_rows(connection: Connection, buffer: OpenBuffer, rollout: Rollout) -> Any:
    """Return the condition for the rows of an episode.

    Return None if its steps are not rows, or do not belong to an episode.
    """
    if buffer.info.has_chunks or rollout.number is None:
        return None
    row = experiences.c
    low = buffer.window_in(connection).low
    within = (row.buffer_id == buffer.info.id) & (row.episode_id == rollout.number)
    return within & (unindexed(row.seq) > low)


def _spaced(first: int, last: int, n: int) -> list[int]:
    return sorted({first + (last - first) * i // (n - 1) for i in range(n)})


_TEXTS = ("extra", "fields")
# The newest batches are searched for steps: no index knows the steps of each batch.
MOST_BATCHES, MOST_DRAWN = 500, 250_000


@dataclass(frozen=True)
class LabelVersion:
    """Values that one annotation gave a step; None for a value that it did not give.

    Attributes:
        version: Number of the annotation; the highest one counts.
        reward: The reward.
        advantage: The advantage.
        value: The value estimate.
        extra: JSON of the keys of `extra` that it gave.
        fields: JSON of the declared fields that it gave.
        labelled_at: Time of the annotation; text on SQLite.
    """

    version: int
    reward: float | None
    advantage: float | None
    value: float | None
    extra: str | None
    fields: str | None
    labelled_at: Any


@dataclass
class StepNotes:
    """Facts about a step that are stored apart from it.

    Attributes:
        n_uses: How often it was sampled, if that is counted.
        priority: Its priority since the first update.
        quarantine: Reason and time of its quarantine; None if it may be sampled.
        labels: Values from annotations, oldest first.
    """

    n_uses: int | None = None
    priority: float | None = None
    quarantine: tuple[str | None, Any] | None = None
    labels: list[LabelVersion] = field(default_factory=list)


@dataclass(frozen=True)
class Draw:
    """A batch that held a step.

    Attributes:
        batch: Its number.
        clock: The learner's iteration or model version then.
        sampler: Sampler that drew it.
        sampled_at: Time of the draw; text on SQLite.
        n_rows: Number of rows in the batch.
        seq: The step.
        place: Its place in the batch, from 1.
    """

    batch: int
    clock: int | None
    sampler: str
    sampled_at: Any
    n_rows: int
    seq: int
    place: int


@dataclass(frozen=True)
class DrawsOfSteps:
    """The batches that held some steps.

    Attributes:
        draws: One entry for each place in a batch, newest first.
        n_searched: Number of the newest batches that were searched.
        is_all: The log has no other batches.
    """

    draws: list[Draw]
    n_searched: int
    is_all: bool


def notes_of(
    connection: Connection, buffer: OpenBuffer, seqs: Sequence[int]
) -> dict[int, StepNotes]:
    """Return the stored facts about steps, by their numbers; each is looked up by a key."""
    notes_by_seq: dict[int, StepNotes] = defaultdict(StepNotes)
    for seq, n_uses in _overlay_rows(connection, buffer, seqs, uses, uses.c.n_uses):
        notes_by_seq[seq].n_uses = n_uses
    if buffer.info.config.priorities.enabled:
        for seq, priority in _overlay_rows(
            connection, buffer, seqs, priorities, priorities.c.priority
        ):
            notes_by_seq[seq].priority = priority
    entry = quarantine.c
    for seq, reason, since in _overlay_rows(
        connection, buffer, seqs, quarantine, entry.reason, entry.quarantined_at
    ):
        notes_by_seq[seq].quarantine = (reason, since)
    history_entry = label_history.c
    values = (
        history_entry.reward_t,
        history_entry.adv_t,
        history_entry.v_t,
        history_entry.extra,
        history_entry.fields,
        history_entry.labelled_at,
    )
    for seq, *version in _overlay_rows(
        connection, buffer, seqs, label_history, history_entry.version, *values
    ):
        notes_by_seq[seq].labels.append(LabelVersion(*version))
    for notes in notes_by_seq.values():
        notes.labels.sort(key=lambda noted: noted.version)
    return notes_by_seq


def draws_of(connection: Connection, buffer: OpenBuffer, seqs: Sequence[int]) -> DrawsOfSteps:
    """Return the batches that held some steps, among the newest batches of the sample log."""
    sample, drawn_seqs = samples.c, set(seqs)
    of_buffer = sample.buffer_id == buffer.info.id
    newest = (sample.sampled_at.desc(), sample.id.desc())
    sizes = connection.execute(
        select(sample.id, sample.n_rows).where(of_buffer).order_by(*newest).limit(MOST_BATCHES + 1)
    ).all()
    chosen, n_drawn = list[int](), 0
    for number, n_rows in sizes[:MOST_BATCHES]:
        n_drawn += n_rows
        if chosen and n_drawn > MOST_DRAWN:
            break
        chosen.append(number)
    batches = connection.execute(
        select(
            sample.id, sample.clock, sample.sampler, sample.sampled_at, sample.n_rows, sample.seqs
        )
        .where(of_buffer)
        .order_by(*newest)
        .limit(len(chosen))
    )
    draws = [
        Draw(number, clock, sampler, sampled_at, n_rows, seq, place)
        for number, clock, sampler, sampled_at, n_rows, held in batches
        for place, seq in enumerate(listed(held), 1)
        if seq in drawn_seqs
    ]
    return DrawsOfSteps(draws, len(chosen), len(chosen) == len(sizes))


class _rows_at(FunctionElement[Any]):
    """Select the rows of an overlay for some numbers of a buffer, each looked up alone.

    Without statistics PostgreSQL would rather read the whole table.
    """

    inherit_cache = False
    table: str


@compiles(_rows_at, "postgresql")
def _pg_rows_at(element: _rows_at, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    return f"""(SELECT x.* FROM unnest(CAST({seqs} AS bigint[])) AS k(n) CROSS JOIN LATERAL (
        SELECT * FROM {element.table} WHERE buffer_id = {buffer_id} AND seq = k.n OFFSET 0) x)"""


@compiles(_rows_at, "sqlite")
def _sqlite_rows_at(element: _rows_at, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = processed(element, compiler, kw)
    return f"""(SELECT x.* FROM json_each({seqs}) k
        CROSS JOIN {element.table} x ON x.buffer_id = {buffer_id} AND x.seq = k.value)"""


def _overlay_rows(
    connection: Connection, buffer: OpenBuffer, seqs: Sequence[int], table: Any, *columns: Any
) -> Any:
    """Return (seq, *columns) of the rows of an overlay for some numbers."""
    rows = _rows_at(buffer.info.id, bindparam(None, list(seqs), SeqList()))
    rows.table = table.name
    names = [column(field.name, field.type) for field in (table.c.seq, *columns)]
    values = rows.table_valued(*names, name="found").c
    selected = [
        cast(values[field.name], Text) if field.name in _TEXTS else values[field.name]
        for field in names
    ]
    return connection.execute(select(*selected))


STEPS_AT_ONCE = 8
# Pages of large steps have fewer steps.
PAGE_BYTES = 16 * 2**20
# Plain SQL may have stored any value.
_WRONG = (ValueError, TypeError, KeyError, RecursionError)
_INITIAL_PRIORITY = 1 + Record._fields.index("initial_priority")


@dataclass(frozen=True)
class BrowsedStep:
    """A step as it is read for a page.

    Attributes:
        key: Position of the step.
        row: The step, with annotated values in place of its own; None if it cannot be rebuilt.
        trouble: Reason why it cannot be rebuilt.
        initial_priority: The priority that it began with.
    """

    key: StepKey
    row: DataRow | None
    trouble: str | None = None
    initial_priority: float | None = None


def read_steps(
    connection: Connection,
    buffer: OpenBuffer,
    keys: Sequence[StepKey],
    *,
    without: Sequence[str] = (),
    most_bytes: int = PAGE_BYTES,
) -> tuple[list[BrowsedStep], int]:
    """Return steps in the given order, and the number of keys that were read for them.

    Steps that have left the buffer since are left out.

    Args:
        connection: A transaction.
        buffer: The buffer.
        keys: The steps.
        without: Typed fields and payloads to leave out, such as `messages`.
        most_bytes: Maximum size of a page; the page always has at least one step.
    """
    reader = _StepReader(connection, buffer, without)
    browsed: list[BrowsedStep] = []
    start, n, left = 0, STEPS_AT_ONCE, most_bytes
    while start < len(keys) and (left > 0 or not browsed):
        steps, n_bytes = reader.read(keys[start : start + n])
        browsed += steps
        start, left = start + n, left - n_bytes
        n = max(1, min(4 * n, left * n // max(n_bytes, 1)))
    return browsed, min(start, len(keys))


def rewards_of(
    connection: Connection, buffer: OpenBuffer, seqs: Sequence[int]
) -> dict[int, float | None]:
    """Return the rewards of some steps, which may be NaN, by their numbers in the buffer."""
    keys = [StepKey(0, seq) for seq in sorted(set(seqs))]
    steps, _ = read_steps(connection, buffer, keys, without=[*buffer.layout.specs, *PAYLOADS])
    return {step.key.seq: step.row.exp_data.reward_t for step in steps if step.row is not None}


class _StepReader:
    def __init__(self, connection: Connection, buffer: OpenBuffer, without: Sequence[str]) -> None:
        self._connection, self._buffer = connection, buffer
        info, layout = buffer.info, buffer.layout
        wanted = None
        if without:
            typed = tuple(name for name in layout.specs if name not in without)
            payloads = (name for name in (*PAYLOADS, *PLAIN) if name not in without)
            wanted = SelectedFields(dict.fromkeys(payloads), typed)
        self._payloads = Payloads(
            info.id, layout, wanted, steps=layout_of(info), may_replace=info.layout is not None
        )
        self._decoder = Decoder(
            layout=self._payloads.typed_layout, fields=None if wanted is None else wanted.typed
        )
        self._has_labels = buffer.window_in(connection).has_labels

    def read(self, keys: Sequence[StepKey]) -> tuple[list[BrowsedStep], int]:
        """Return some steps, and how many bytes were read for them."""
        stored = self._payloads.reading.by_number(
            self._connection, self._buffer.info.id, [key.seq for key in keys],
            has_labels=self._has_labels, has_deleted=True,
        )  # fmt: skip
        rows, troubles = self._completed(stored)
        whole = {row[0]: row for row in rows}
        steps = [
            BrowsedStep(key, None, troubles[key.seq])
            if key.seq in troubles
            else self._step(key, whole[key.seq])
            for key in keys
            if key.seq in whole or key.seq in troubles
        ]
        return steps, sum(map(n_bytes_of, rows))

    def _completed(self, stored: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
        """Return rows with the bytes that they refer to, and the reason for rows without bytes."""
        try:
            return self._payloads.held(self._connection, stored), {}
        except _WRONG as error:
            if len(stored) == 1:
                return [], {stored[0][0]: _error_text(error)}
        rows, troubles = list[Any](), dict[int, str]()
        for row in stored:
            whole, trouble = self._completed([row])
            rows += whole
            troubles |= trouble
        return rows, troubles

    def _step(self, key: StepKey, row: Sequence[Any]) -> BrowsedStep:
        priority = row[_INITIAL_PRIORITY]
        try:
            return BrowsedStep(key, self._decoder.row(row), None, priority)
        except _WRONG as error:
            return BrowsedStep(key, None, _error_text(error), priority)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
