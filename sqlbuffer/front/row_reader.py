"""Read rows as they are."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from sqlbuffer.config.setting_checks import MAX_LIMIT
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
        # One by one: a page of compressed rows may be many times as large expanded.
        return chain.from_iterable(map(decoder.row, page) for page in pages)

    def page(
        self, node: Node, page: int, page_size: int, fields: Sequence[str] | None
    ) -> list[DataRow]:
        """Return one page of the rows that match."""
        if page < 1:
            raise ValueError("Page must be greater than 0")
        if page_size < 1:
            raise ValueError("Page size must be greater than 0")
        offset = min((page - 1) * page_size, MAX_LIMIT)
        payloads, decoder = self._decoding.of(fields)
        found = self._queries.page(node, offset, min(page_size, MAX_LIMIT), payloads)
        return decoder.rows(found)

    def tasks(
        self, task_ids: Iterable[str], fields: Sequence[str] | None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of tasks by id."""
        wanted = list(task_ids)
        payloads, decoder = self._decoding.of(fields)
        found = self._queries.tasks([str(task_id) for task_id in wanted], payloads)
        return {task_id: decoder.rows(found[str(task_id)]) for task_id in wanted}
