"""How a sampler draws from a buffer: a batch of things, rows as they are, or whole tasks."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from sqlbuffer.batches import Batch
from sqlbuffer.errors import FieldError
from sqlbuffer.query import Node
from sqlbuffer.storage.insertion import Row
from sqlbuffer.storage.population import Population
from sqlbuffer.storage.readers.base import Reader
from sqlbuffer.storage.store import BufferStore

if TYPE_CHECKING:
    from sqlbuffer.samplers import Sampler, TaskSampler


class SampledRows(NamedTuple):
    """Rows as they are stored, and the arrays that the sampler gives along with them."""

    rows: list[Row]
    columns: Mapping[str, NDArray[Any] | None]


def sample_batch(
    store: BufferStore,
    node: Node,
    reader: Reader,
    sampler: "Sampler",
    n: int,
    begin: Callable[[], None] | None = None,
) -> Batch:
    """Return up to n things that a reader makes of what a sampler draws.

    Args:
        store: The buffer.
        node: Which rows.
        reader: What the batch is made of.
        sampler: Draws their keys.
        n: How many.
        begin: Called before each attempt: a lost connection has it drawn again.
    """

    def draw(population: Population) -> Batch:
        if n == 0:
            return _with_columns(reader.read(population, []), sampler, population)
        if begin is not None:
            begin()
        return _with_columns(reader.draw(population, sampler, n), sampler, population)

    if sampler.reads_priorities:
        store.seal_due()
    with store.pacer.sampling(n) as drawn:
        batch = store.draw(node, draw, reader.columns)
        # A batch that is too small is not handed out.
        drawn(batch.n_rows if batch.n_rows >= n else 0)
    return batch


def _with_columns(batch: Batch, sampler: "Sampler", population: Population) -> Batch:
    columns = sampler.columns(population, batch.info["seq"].tolist())
    for name in columns:
        if name in batch:
            raise FieldError(
                f"field {name!r} has the name of an array that {type(sampler).__name__} gives: "
                f"leave it out with fields=[...], or declare it by another name"
            )
    return Batch({**batch, **columns}, batch.info) if columns else batch


def sample_rows(store: BufferStore, node: Node, sampler: "Sampler", n: int) -> SampledRows:
    """Return up to n rows that a sampler draws."""

    def draw(population: Population) -> SampledRows:
        rows = population.rows(sampler.choose(population, n)) if n else []
        return SampledRows(rows, sampler.columns(population, [row[0] for row in rows]))

    if sampler.reads_priorities:
        store.seal_due()
    with store.pacer.sampling(n) as drawn:
        found = store.draw(node, draw)
        drawn(len(found.rows))
    return found


def sample_tasks(store: BufferStore, node: Node, sampler: "TaskSampler", n: int) -> list[list[Row]]:
    """Return up to n tasks that a sampler draws, each with all its rows."""
    with store.pacer.sampling(n) as drawn:
        tasks = store.draw_tasks(node, lambda population: sampler.choose_tasks(population, n))
        drawn(sum(map(len, tasks)))
    return tasks
