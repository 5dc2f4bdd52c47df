"""The checked settings of a mirror, and its lag behind its buffer."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlbuffer.arguments import Condition
from sqlbuffer.batches.forms import checked_step_names
from sqlbuffer.checks import checked_duration, checked_integer
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import StorageError, StorageUnreachableError
from sqlbuffer.fields import Fields
from sqlbuffer.mirror.conditions import check_no_abandoned
from sqlbuffer.mirror.memory.records import kept_layout
from sqlbuffer.query.tree import EVERYTHING, Node, check
from sqlbuffer.storage.buffers.hanging import HangingWriter
from sqlbuffer.storage.following.feed import backlog_of
from sqlbuffer.storage.following.state import BufferState
from sqlbuffer.storage.store import BufferStore

logger = logging.getLogger("sqlbuffer")


@dataclass(frozen=True)
class MirrorLag:
    """Distance of a mirror behind its buffer.

    Attributes:
        seconds: Age in seconds of the last successful look at the database.
        steps: Number of steps of the buffer that the mirror has not read; None if the database is
            unreachable.
        high: Newest step that the mirror has.
        error: Reason why the last look failed, or why `steps` is unknown; None: neither failed.
        held_back_by: A writer of the buffer whose transaction has been open for more than 5
            seconds. Its steps are not visible before it commits. None: there is no such writer, or
            this role may not see it.

    Example:
        >>> MirrorLag(seconds=0.2, steps=0, high=1000, error=None, held_back_by=None).high
        1000
    """

    seconds: float
    steps: int | None
    high: int
    error: str | None
    held_back_by: HangingWriter | None


def lag_of(
    store: BufferStore,
    seconds: float,
    high: int,
    state: BufferState | None,
    error: Exception | None,
) -> MirrorLag:
    """Return how far a mirror is behind, as the database says now.

    Args:
        store: The buffer.
        seconds: Age of the last look that succeeded.
        high: The newest step that the mirror has.
        state: State of the buffer that it shows; None if it is unknown.
        error: Why the last look failed.
    """
    steps, writer = None, None
    # One that does not answer would be waited for.
    if state is not None and not isinstance(error, StorageUnreachableError):
        try:
            steps, writer = backlog_of(store, state)
        except StorageError as own:
            logger.warning("the lag of a mirror of buffer %r is unknown: %s", store.info.name, own)
            error = error or own
    return MirrorLag(seconds, steps, high, None if error is None else str(error), writer)


@dataclass
class MirrorSettings:
    """Checked settings of a mirror; made with `of`.

    Attributes:
        max_bytes: Largest number of bytes that the steps may take.
        refresh_s: Seconds between two looks for changes.
        max_lag_s: Largest age in seconds of the last look before draws fail; None: no limit.
        node: Condition that drawn steps must match.
        fields: Fields that are kept.
        layout: Layout of the chunks that contain them.
        keeps_all: All fields are kept, also those that are added to the buffer later.
    """

    max_bytes: int
    refresh_s: float
    max_lag_s: float | None
    node: Node
    fields: Fields
    layout: Layout
    keeps_all: bool

    def with_fields_of(self, store: BufferStore) -> "MirrorSettings":
        """Return the settings with all fields that the buffer has now."""
        fields = store.info.config.fields
        return replace(self, fields=fields, layout=kept_layout(store.layout, list(fields.specs)))

    def take_fields(self, other: "MirrorSettings") -> None:
        """Take the fields of other settings; at once for all who hold this object."""
        self.fields, self.layout = other.fields, other.layout

    @classmethod
    def of(
        cls,
        store: BufferStore,
        max_bytes: int,
        refresh_s: float,
        max_lag_s: float | None,
        condition: Condition,
        fields: Sequence[str] | None,
    ) -> "MirrorSettings":
        """Return the settings; see `ReplayBuffer.mirror`.

        Raises:
            ArgumentError: A number of another kind.
            ConditionError: The condition is malformed, or asks for open or abandoned episodes.
            FieldError: A field is unknown.
        """
        node = check(condition, store.info.config.fields.comparable)
        check_no_abandoned(node)
        config = store.info.config
        names, _ = checked_step_names(config.fields, fields, "steps")
        kept = config.fields.model_copy(
            update={
                "specs": {name: config.fields.specs[name] for name in names},
                "observations": tuple(o for o in config.fields.observations if o in names),
            }
        )
        return cls(
            checked_integer(max_bytes, "max_bytes", 1),
            checked_duration(refresh_s, "refresh_s"),
            None if max_lag_s is None else checked_duration(max_lag_s, "max_lag_s"),
            node,
            kept,
            kept_layout(store.layout, names),
            fields is None,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that distinguish the mirror from others of the same buffer, as JSON."""
        return {"condition": repr(self.node), "kept": list(self.fields.specs)}

    @property
    def selects(self) -> bool:
        """Whether only steps that match a condition are drawn."""
        return self.node != EVERYTHING
