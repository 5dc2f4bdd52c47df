"""Facts about steps that are stored apart: labels, uses, priorities, quarantine, draws."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Text, bindparam, cast, column, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.eligibility.tables import quarantine, uses
from sqlbuffer.storage.labels.tables import label_history
from sqlbuffer.storage.priorities.tables import priorities
from sqlbuffer.storage.schema.column_types import SeqList, listed
from sqlbuffer.storage.schema.compiled_clauses import processed
from sqlbuffer.storage.use_counts.tables import samples

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
class FoundDraws:
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
    found: dict[int, StepNotes] = defaultdict(StepNotes)
    for seq, n_uses in _at(connection, buffer, seqs, uses, uses.c.n_uses):
        found[seq].n_uses = n_uses
    if buffer.info.config.priorities.enabled:
        for seq, priority in _at(connection, buffer, seqs, priorities, priorities.c.priority):
            found[seq].priority = priority
    own = quarantine.c
    for seq, reason, since in _at(
        connection, buffer, seqs, quarantine, own.reason, own.quarantined_at
    ):
        found[seq].quarantine = (reason, since)
    label = label_history.c
    values = (label.reward_t, label.adv_t, label.v_t, label.extra, label.fields, label.labelled_at)
    for seq, *version in _at(connection, buffer, seqs, label_history, label.version, *values):
        found[seq].labels.append(LabelVersion(*version))
    for notes in found.values():
        notes.labels.sort(key=lambda each: each.version)
    return found


def draws_of(connection: Connection, buffer: OpenBuffer, seqs: Sequence[int]) -> FoundDraws:
    """Return the batches that held some steps, among the newest batches of the sample log."""
    own, wanted = samples.c, set(seqs)
    of_buffer = own.buffer_id == buffer.info.id
    newest = (own.sampled_at.desc(), own.id.desc())
    sizes = connection.execute(
        select(own.id, own.n_rows).where(of_buffer).order_by(*newest).limit(MOST_BATCHES + 1)
    ).all()
    chosen, n_drawn = list[int](), 0
    for number, n_rows in sizes[:MOST_BATCHES]:
        n_drawn += n_rows
        if chosen and n_drawn > MOST_DRAWN:
            break
        chosen.append(number)
    batches = connection.execute(
        select(own.id, own.clock, own.sampler, own.sampled_at, own.n_rows, own.seqs)
        .where(of_buffer)
        .order_by(*newest)
        .limit(len(chosen))
    )
    draws = [
        Draw(number, clock, sampler, sampled_at, n_rows, seq, place)
        for number, clock, sampler, sampled_at, n_rows, held in batches
        for place, seq in enumerate(listed(held), 1)
        if seq in wanted
    ]
    return FoundDraws(draws, len(chosen), len(chosen) == len(sizes))


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


def _at(
    connection: Connection, buffer: OpenBuffer, seqs: Sequence[int], table: Any, *columns: Any
) -> Any:
    """Return (seq, *columns) of the rows of an overlay for some numbers."""
    rows = _rows_at(buffer.info.id, bindparam(None, list(seqs), SeqList()))
    rows.table = table.name
    names = [column(each.name, each.type) for each in (table.c.seq, *columns)]
    found = rows.table_valued(*names, name="found").c
    wanted = [
        cast(found[each.name], Text) if each.name in _TEXTS else found[each.name] for each in names
    ]
    return connection.execute(select(*wanted))
