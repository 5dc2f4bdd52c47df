"""The form of trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.storage.sampling.readers.checks import checked_step_names

FINAL_PREFIX = "final_"


@dataclass(frozen=True, eq=False)
class TrajectoryForm:
    """The form of trajectories; made with `of`.

    Attributes:
        names: The declared fields of each step.
        built_in: Names among `reward`, `terminated` and `truncated`.
        finals: The observations that are also returned as final ones.
        include_partial: Include episodes that are open or have lost steps.
    """

    names: Sequence[str]
    built_in: Sequence[str]
    finals: Sequence[str]
    include_partial: bool

    @classmethod
    def of(
        cls, fields: Fields, *, names: Sequence[str] | None = None, include_partial: bool = False
    ) -> "TrajectoryForm":
        """Return the form of trajectories.

        Args:
            fields: The typed fields of the buffer.
            names: Names among these, `reward`, `terminated` and `truncated`; all by default.
            include_partial: Include episodes that are open or have lost steps.

        Raises:
            FieldError: An unknown field, or one with the name of a final observation.
        """
        own, built_in = checked_step_names(fields, names, "trajectories")
        finals = [name for name in fields.observations if name in own]
        for name in finals:
            if FINAL_PREFIX + name in fields.specs:
                raise FieldError(
                    f"field '{FINAL_PREFIX}{name}' has the name of a final observation in a "
                    f"trajectory: leave out {shown(name)} or that field with fields=[...]"
                )
        return cls(own, built_in, finals, include_partial)
