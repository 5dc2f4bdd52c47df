"""How a sampler draws from a buffer: a batch of things, rows as they are, or whole tasks."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from sqlbuffer.batches import Batch
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
    columns: Mapping[str, NDArray[Any]]


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
            return reader.read(population, [])
        if begin is not None:
            begin()
        batch = reader.draw(population, sampler, n)
        columns = sampler.columns(population, batch.info["seq"].tolist())
        return Batch({**batch, **columns}, batch.info) if columns else batch

    with store.pacer.sampling(n) as drawn:
        batch = store.draw(node, draw, reader.columns)
        # A batch that is too small is not handed out.
        drawn(batch.n_rows if batch.n_rows >= n else 0)
    return batch


def sample_rows(store: BufferStore, node: Node, sampler: "Sampler", n: int) -> SampledRows:
    """Return up to n rows that a sampler draws."""

    def draw(population: Population) -> SampledRows:
        rows = population.rows(sampler.choose(population, n))
        return SampledRows(rows, sampler.columns(population, [row[0] for row in rows]))

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
