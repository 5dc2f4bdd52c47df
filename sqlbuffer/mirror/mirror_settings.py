"""The checked settings of a mirror."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlbuffer.arguments import Condition
from sqlbuffer.batches.forms import checked_step_names
from sqlbuffer.checks import checked_duration, checked_integer
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.mirror.memory.step_record import kept_layout
from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.query.tree_checks import check
from sqlbuffer.storage.store import BufferStore


@dataclass(frozen=True)
class MirrorSettings:
    """Checked settings of a mirror; made with `of`.

    Attributes:
        max_bytes: Largest number of bytes that the steps may take.
        refresh_s: Seconds between two looks for changes.
        max_lag_s: Largest age in seconds of the last look before draws fail; None: no limit.
        node: Condition that drawn steps must match.
        fields: Fields that are kept.
        layout: Layout of the chunks that contain them.
    """

    max_bytes: int
    refresh_s: float
    max_lag_s: float | None
    node: Node
    fields: Fields
    layout: Layout

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
            ConditionError: The condition is malformed.
            FieldError: A field is unknown.
        """
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
            check(condition, config.fields.comparable),
            kept,
            kept_layout(store.layout, names),
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that distinguish the mirror from others of the same buffer, as JSON."""
        return {"condition": repr(self.node), "kept": list(self.fields.specs)}

    @property
    def selects(self) -> bool:
        """Whether only steps that match a condition are drawn."""
        return self.node != EVERYTHING
