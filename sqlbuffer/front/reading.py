"""Read rows as they are, and the parts of them that are wanted."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sqlbuffer.arguments import (
    MAX_TASKS,
    Condition,
    Rows,
    checked_numbers,
    checked_task_ids,
    is_condition,
    one_condition,
)
from sqlbuffer.checks import MAX_INTEGER, checked_count, checked_items, refused
from sqlbuffer.display import shown
from sqlbuffer.encoding.records import Decoder, Rebuild, encode_key
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.query.tree import EVERYTHING, Node, check
from sqlbuffer.steps import DataRow, EncodedRow
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.reading import RowQueries
from sqlbuffer.storage.rows.layouts import task_order
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.strict_models import library_error

_MOST_KEPT = 64


class Conditions:
    """Checks the conditions that calls are given.

    Args:
        info: The buffer.
    """

    def __init__(self, info: BufferInfo) -> None:
        self._info = info

    def node(self, condition: Condition, query_condition: Condition = None) -> Node:
        """Return a condition checked; it has two names."""
        return check(one_condition(condition, query_condition), self._info.config.fields.comparable)

    def rows(self, rows: Rows, call: str) -> Node | list[int]:
        """Return which rows a call is about: a condition checked, or their numbers in order.

        Raises:
            ConditionError: An empty condition.
            FieldError: Neither a condition nor numbers.
        """
        if not is_condition(rows):
            return checked_numbers(rows, call)
        node = self.node(rows)
        if node == EVERYTHING:
            raise ConditionError(f"{call}() needs a condition, or the numbers of rows (seq)")
        return node


_ENCODED = frozenset((*EncodedRow._fields, "payload_bytes"))


class RowDecoding:
    """Chooses the parts of rows to read, and rebuilds the rows.

    Args:
        source: Opens the rows of the buffer.
        state_type: Rebuilds states; None: they stay plain values.
        action_type: Rebuilds each action.

    Attributes:
        whole: Rebuilds whole rows.
    """

    def __init__(
        self, source: CandidateSource, state_type: Rebuild | None, action_type: Rebuild | None
    ) -> None:
        self._source = source
        self._rebuild_state, self._rebuild_action = state_type, action_type
        layout = source.buffer.layout
        self.whole = Decoder(self._rebuild_state, self._rebuild_action, layout)
        self._of: dict[tuple[bool, int, tuple[str, ...]], tuple[Payloads, Decoder]] = {}

    def of(
        self, fields: Sequence[str] | None, *, is_encoded: bool = False
    ) -> tuple[Payloads, Decoder]:
        """Return what reads rows with these fields, and what rebuilds them.

        Args:
            fields: The fields; None for all.
            is_encoded: Only the columns of `EncodedRow` are read.
        """
        if fields is None:
            return self._source.whole_rows, self.whole
        # To make them again for each batch took as long as to read the batch.
        is_kept = isinstance(fields, list) and _are_texts(fields)
        number = self._source.buffer.layout.number
        key = (is_encoded, number, tuple(fields)) if is_kept else None
        known = None if key is None else self._of.get(key)
        if known is None:
            known = self._reading(fields, is_encoded)
            if key is not None and len(self._of) < _MOST_KEPT:
                self._of[key] = known
        return known

    def _reading(self, fields: Sequence[str], is_encoded: bool) -> tuple[Payloads, Decoder]:
        layout = self._source.buffer.layout
        selected = SelectedFields.parse(fields, layout.specs)
        # A type takes a whole value.
        state = self._rebuild_state if selected.is_whole("state") else None
        action = self._rebuild_action if selected.is_whole("actions") else None
        payloads = self._source.payloads(selected, _ENCODED if is_encoded else None)
        return payloads, Decoder(state, action, payloads.typed_layout, selected.typed)


def _are_texts(names: list[Any]) -> bool:
    return all(type(name) is str for name in names)


def rebuilder(type_: Any, name: str) -> Rebuild | None:
    """Return a function that rebuilds values as a type; None for no type.

    Args:
        type_: The type.
        name: Name of the argument.

    Raises:
        ArgumentError: pydantic does not take it for a type.
    """
    if type_ is None:
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(type_)
    except Exception:  # pydantic has an error for each kind of value
        what = "a type that pydantic knows, such as a model, a dataclass or dict[str, int]"
        raise refused(type_, name, what) from None
    shown_name = getattr(type_, "__name__", shown(type_))

    def rebuilt(value: Any) -> Any:
        try:
            # Models are stored under the names of their fields.
            return adapter.validate_python(value, by_alias=True, by_name=True)
        except ValidationError as error:
            raise library_error(error, FieldError, shown_name) from None

    return rebuilt


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

    def episode(self, node: Node) -> list[DataRow]:
        """Return the rows of an episode in its order."""
        payloads, decoder = self._decoding.of(None)
        pages = self._queries.pages(node, payloads)
        rows = sorted(chain.from_iterable(pages), key=task_order)
        return decoder.rows(rows)

    def page(
        self, node: Node, page: int, page_size: int, fields: Sequence[str] | None
    ) -> list[DataRow]:
        """Return one page of the rows that match."""
        page, n_rows = checked_count(page, "page", 1), checked_count(page_size, "page_size", 1)
        offset = min((page - 1) * n_rows, MAX_INTEGER)
        payloads, decoder = self._decoding.of(fields)
        stored_rows = self._queries.page(node, offset, n_rows, payloads)
        return decoder.rows(stored_rows)

    def tasks(
        self, task_ids: Iterable[str], fields: Sequence[str] | None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of tasks by id."""
        keys = checked_task_ids(task_ids)
        payloads, decoder = self._decoding.of(fields)
        rows_by_key = self._queries.tasks(list(keys.values()), payloads)
        return {task_id: decoder.rows(rows_by_key[key]) for task_id, key in keys.items()}

    def by_ids(self, ids: Iterable[str], fields: Sequence[str] | None) -> dict[str, DataRow]:
        """Return rows by their ids."""
        listed = checked_items(ids, "ids", "a list of ids such as ['a', 'b']", MAX_TASKS)
        keys = list(dict.fromkeys(encode_key(id_, "each of ids") for id_ in listed))
        payloads, decoder = self._decoding.of(fields)
        if not keys:
            return {}
        is_given = check({"field": "id", "op": "in", "value": keys}, {})
        rows_by_id = self._queries.by_ids(keys, is_given, payloads)
        return dict(zip(rows_by_id, decoder.rows(list(rows_by_id.values())), strict=True))
