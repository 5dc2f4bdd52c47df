"""Choose the parts of rows to read, and rebuild the rows."""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sqlbuffer.checks import refused
from sqlbuffer.display.short_values import shown
from sqlbuffer.encoding.records import Decoder, Rebuild
from sqlbuffer.errors import FieldError
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.strict_models import library_error


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
