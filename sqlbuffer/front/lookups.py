"""The calls that read rows as they are."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from sqlbuffer.arguments import MAX_LIMIT, Condition
from sqlbuffer.encoding.columns import decode_row
from sqlbuffer.front.shared import Parts
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.steps.data_rows import DataRow


class Lookups(Parts):
    """The calls of `ReplayBuffer` that read rows as they are."""

    def size(self, condition: Condition = None, *, query_condition: Condition = None) -> int:
        """Return how many rows match."""
        return self._store.count(self._node(condition, query_condition))

    def __len__(self) -> int:
        """Return how many rows the buffer holds; nothing is scanned."""
        return self._store.count(EVERYTHING)

    def __bool__(self) -> bool:
        """Return True, also for an empty buffer: `if buffer` asks whether there is one."""
        return True

    def __iter__(self) -> Iterator[DataRow]:
        """Iterate over all rows as `get_all` does."""
        return self.get_all()

    def get_all(
        self,
        condition: Condition = None,
        *,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> Iterator[DataRow]:
        """Stream the rows that match and are there now, in insert order.

        Rows come in pages and no transaction stays open between them, so any number may be read in
        little memory. Rows evicted before their page is read are left out.

        Args:
            condition: Which rows.
            fields: Which fields of each row are read and come back, by dotted names such as
                `["state.image", "reward_t"]`; all by default, keys always. What a row does not have
                is left out. See `docs/fragments.md`.
            query_condition: Other name of `condition`.

        Raises:
            FieldError: An unknown field.
        """
        return chain.from_iterable(self._pages(condition, query_condition, fields))

    def _pages(
        self, condition: Condition, query_condition: Condition, fields: Sequence[str] | None
    ) -> Iterator[Iterator[DataRow]]:
        """Return all rows in pages that fit into memory."""
        node = self._node(condition, query_condition)
        payloads, decoder = self._partly(fields)
        pages = self._store.pages(node, payloads)
        # One by one: a page of compressed rows may be many times as large expanded.
        return (map(decoder.row, page) for page in pages)

    def get_paginated(
        self,
        page: int,
        page_size: int,
        condition: Condition = None,
        *,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> list[DataRow]:
        """Return one page of the rows that match, in insert order.

        Args:
            page: From 1; a page past the end is empty.
            page_size: Rows a page.
            condition: Which rows.
            fields: Which fields; see `get_all`.
            query_condition: Other name of `condition`.

        Raises:
            FieldError: An unknown field.
            ValueError: A page or page size below 1.
        """
        if page < 1:
            raise ValueError("Page must be greater than 0")
        if page_size < 1:
            raise ValueError("Page size must be greater than 0")
        node = self._node(condition, query_condition)
        offset = min((page - 1) * page_size, MAX_LIMIT)
        payloads, decoder = self._partly(fields)
        return decoder.rows(self._store.page(node, offset, min(page_size, MAX_LIMIT), payloads))

    def get_by_task_id(self, task_id: str, *, fields: Sequence[str] | None = None) -> list[DataRow]:
        """Return all rows of a task in the order of (episode, step, execute_time); none for an
        unknown task. Of each those `fields`, all by default; see `get_all`.
        """
        return self.get_batch_by_task_ids([task_id], fields=fields)[task_id]

    def get_batch_by_task_ids(
        self, task_ids: Iterable[str], *, fields: Sequence[str] | None = None
    ) -> dict[str, list[DataRow]]:
        """Return `{task_id: rows}` in the order of the ids, each task's rows in the order of
        (episode, step, execute_time). Of each row those `fields`, all by default; see `get_all`.
        """
        wanted = list(task_ids)
        payloads, decoder = self._partly(fields)
        found = self._store.tasks([str(task_id) for task_id in wanted], payloads)
        return {task_id: decoder.rows(found[str(task_id)]) for task_id in wanted}

    def decode(self, arrays: bytes) -> dict[str, Any]:
        """Return the typed fields of one row, `{name: array of its shape}`, from its column
        `arrays`, as plain SQL returns it.

        Raises:
            FieldError: The row was not written with the buffer's fields.
        """
        return decode_row(self._store.layout, bytes(arrays))

    def sql(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the select that a condition becomes, its values written out for reading."""
        return self._store.sql(self._node(condition, query_condition))

    def explain(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the database's plan for that select."""
        return self._store.explain(self._node(condition, query_condition))
