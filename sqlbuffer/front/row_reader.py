"""Read rows as they are."""

from collections.abc import Iterable, Iterator, Sequence

from sqlbuffer.arguments import checked_task_ids
from sqlbuffer.checks import MAX_INTEGER, checked_count
from sqlbuffer.front.decoding import RowDecoding
from sqlbuffer.query.condition_tree import Node
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.storage.reading.row_queries import RowQueries


class RowReader:
    """Reads rows of a buffer as they are.

    Args:
        queries: Reads them from the database.
        decoding: Rebuilds them.
    """

    def __init__(self, queries: RowQueries, decoding: RowDecoding) -> None:
        self._queries, self._decoding = queries, decoding

    def all(self, node: Node, fields: Sequence[str] | None) -> Iterator[DataRow]:
        """Stream the rows that match."""
        payloads, decoder = self._decoding.of(fields)
        pages = self._queries.pages(node, payloads)
        n = decoder.n_at_once
        return (
            row
            for page in pages
            for start in range(0, len(page), n)
            for row in decoder.rows(page[start : start + n])
        )

    def page(
        self, node: Node, page: int, page_size: int, fields: Sequence[str] | None
    ) -> list[DataRow]:
        """Return one page of the rows that match."""
        page, n_rows = checked_count(page, "page", 1), checked_count(page_size, "page_size", 1)
        offset = min((page - 1) * n_rows, MAX_INTEGER)
        payloads, decoder = self._decoding.of(fields)
        found = self._queries.page(node, offset, n_rows, payloads)
        return decoder.rows(found)

    def tasks(
        self, task_ids: Iterable[str], fields: Sequence[str] | None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of tasks by id."""
        keys = checked_task_ids(task_ids)
        payloads, decoder = self._decoding.of(fields)
        found = self._queries.tasks(list(keys.values()), payloads)
        return {task_id: decoder.rows(found[key]) for task_id, key in keys.items()}
