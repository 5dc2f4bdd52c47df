"""What the calls of a buffer share."""

from collections.abc import Sequence

from sqlbuffer.arguments import Condition, Rows, checked_numbers, is_condition, one_condition
from sqlbuffer.encoding.records import Decoder
from sqlbuffer.errors import ConditionError
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.query.tree_checks import check
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.writing.write_queue import WriteQueue


class Parts:
    """The parts of a buffer, and how a condition becomes one that they take."""

    _store: BufferStore
    _decoder: Decoder
    _queue: WriteQueue

    def _make_decoder(self, wanted: SelectedFields | None = None) -> Decoder:
        raise NotImplementedError

    def _partly(self, fields: Sequence[str] | None) -> tuple[Payloads, Decoder]:
        """Return what reads rows with these fields, and what makes rows of it."""
        if fields is None:
            return self._store.whole_rows, self._decoder
        wanted = SelectedFields.parse(fields)
        return self._store.payloads(wanted), self._make_decoder(wanted)

    @property
    def name(self) -> str:
        """Name of the buffer."""
        return self._store.info.name

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """The typed fields, as stored."""
        return dict(self._store.info.fields.specs)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """Which of them an observation is made of."""
        return self._store.info.fields.observations

    def _node(self, condition: Condition, query_condition: Condition = None) -> Node:
        """Return a condition checked, by either of its two names."""
        one = one_condition(condition, query_condition)
        return check(one, self._store.info.fields.comparable)

    def _rows(self, rows: Rows, call: str) -> Node | list[int]:
        """Return which rows a call is about: a condition checked, or their numbers in order.

        Raises:
            ConditionError: An empty condition.
            FieldError: Neither a condition nor numbers.
        """
        if not is_condition(rows):
            return checked_numbers(rows, call)
        node = self._node(rows)
        if node == EVERYTHING:
            raise ConditionError(f"{call}() needs a condition, or the numbers of rows (seq)")
        return node
