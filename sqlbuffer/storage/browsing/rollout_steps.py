"""Read the steps of a rollout as the library returns them, a bounded page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.encoding.records import Decoder, Record
from sqlbuffer.query.selected_fields import PAYLOADS, PLAIN, SelectedFields
from sqlbuffer.steps import DataRow
from sqlbuffer.storage.browsing.step_keys import StepKey
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.rows.layouts import layout_of
from sqlbuffer.storage.rows.payload_parts import Payloads, n_bytes_of

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
    found: list[BrowsedStep] = []
    start, n, left = 0, STEPS_AT_ONCE, most_bytes
    while start < len(keys) and (left > 0 or not found):
        steps, n_bytes = reader.read(keys[start : start + n])
        found += steps
        start, left = start + n, left - n_bytes
        n = max(1, min(4 * n, left * n // max(n_bytes, 1)))
    return found, min(start, len(keys))


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
        found = self._payloads.reading.by_number(
            self._connection, self._buffer.info.id, [key.seq for key in keys],
            has_labels=self._has_labels, has_deleted=True,
        )  # fmt: skip
        rows, troubles = self._completed(found)
        whole = {row[0]: row for row in rows}
        steps = [
            BrowsedStep(key, None, troubles[key.seq])
            if key.seq in troubles
            else self._step(key, whole[key.seq])
            for key in keys
            if key.seq in whole or key.seq in troubles
        ]
        return steps, sum(map(n_bytes_of, rows))

    def _completed(self, found: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
        """Return rows with the bytes that they refer to, and the reason for rows without bytes."""
        try:
            return self._payloads.held(self._connection, found), {}
        except _WRONG as error:
            if len(found) == 1:
                return [], {found[0][0]: _said(error)}
        rows, troubles = list[Any](), dict[int, str]()
        for row in found:
            whole, trouble = self._completed([row])
            rows += whole
            troubles |= trouble
        return rows, troubles

    def _step(self, key: StepKey, row: Sequence[Any]) -> BrowsedStep:
        priority = row[_INITIAL_PRIORITY]
        try:
            return BrowsedStep(key, self._decoder.row(row), None, priority)
        except _WRONG as error:
            return BrowsedStep(key, None, _said(error), priority)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
