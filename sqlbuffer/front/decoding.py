"""Choose the parts of rows to read, and rebuild the rows."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sqlbuffer.encoding.records import Decoder
from sqlbuffer.errors import FieldError
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.strict_models import library_error


class RowDecoding:
    """Chooses the parts of rows to read, and rebuilds the rows.

    Args:
        source: Opens the rows of the buffer.
        state_type: Type that states are rebuilt as; None: plain values.
        action_type: Type that each action is rebuilt as.

    Attributes:
        whole: Rebuilds whole rows.
    """

    def __init__(self, source: CandidateSource, state_type: Any, action_type: Any) -> None:
        self._source = source
        self._rebuild_state, self._rebuild_action = _rebuild(state_type), _rebuild(action_type)
        layout = source.buffer.layout
        self.whole = Decoder(self._rebuild_state, self._rebuild_action, layout)

    def of(self, fields: Sequence[str] | None) -> tuple[Payloads, Decoder]:
        """Return what reads rows with these fields, and what rebuilds them; None: all fields."""
        if fields is None:
            return self._source.whole_rows, self.whole
        layout = self._source.buffer.layout
        wanted = SelectedFields.parse(fields, layout.specs)
        # A type takes a whole value.
        state = self._rebuild_state if wanted.is_whole("state") else None
        action = self._rebuild_action if wanted.is_whole("actions") else None
        payloads = self._source.payloads(wanted)
        return payloads, Decoder(state, action, payloads.typed_layout, wanted.typed)


def _rebuild(type_: Any) -> Callable[[Any], Any] | None:
    if type_ is None:
        return None
    adapter: TypeAdapter[Any] = TypeAdapter(type_)
    name = getattr(type_, "__name__", str(type_))

    def rebuilt(value: Any) -> Any:
        try:
            # Models are stored under the names of their fields.
            return adapter.validate_python(value, by_alias=True, by_name=True)
        except ValidationError as error:
            raise library_error(error, FieldError, name) from None

    return rebuilt
