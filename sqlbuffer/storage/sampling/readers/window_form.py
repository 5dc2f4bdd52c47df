"""The form of windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.steps.episode_steps import with_zeros
from sqlbuffer.storage.sampling.readers.checks import (
    check_window,
    checked_stack,
    checked_step_names,
)


@dataclass(frozen=True, eq=False)
class WindowForm:
    """The form of windows; made with `of`.

    Attributes:
        length: Steps to learn from.
        burn_in: Steps before them.
        stride: Distance in steps between two windows of an episode.
        names: The declared fields of each step.
        built_in: Names among `reward`, `terminated` and `truncated`.
        stack: Number of stacked frames, by field.
    """

    length: int
    burn_in: int
    stride: int
    names: Sequence[str]
    built_in: Sequence[str]
    stack: Mapping[str, int]

    @cached_property
    def n_frames(self) -> int:
        """Maximum number of frames that are needed of each step."""
        return max(self.stack.values(), default=1)

    @cached_property
    def n_before(self) -> int:
        """Number of steps that are needed before the first one to learn from."""
        return self.burn_in + self.n_frames - 1

    def padded(self, arrays: Mapping[str, NDArray[Any]], burn_in: int) -> dict[str, NDArray[Any]]:
        """Return arrays of fewer steps as those of windows, with zeros at the others.

        Args:
            arrays: Arrays of shape (b, n, *shape); also lengths of values, of shape (b, n).
            burn_in: Number of their steps before the one at which a window is placed.
        """
        n, before = self.burn_in + self.length, self.burn_in - burn_in
        return {name: with_zeros(values, n, before) for name, values in arrays.items()}

    @classmethod
    def of(
        cls,
        fields: Fields,
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        *,
        names: Sequence[str] | None = None,
        stack: Mapping[str, int] | None = None,
    ) -> "WindowForm":
        """Return the form of windows.

        Args:
            fields: The typed fields of the buffer.
            length: Steps to learn from.
            burn_in: Steps before them.
            stride: Distance in steps between two windows of an episode.
            names: Names among the fields, `reward`, `terminated` and `truncated`; all by default.
            stack: Number of stacked frames, by field.

        Raises:
            FieldError: An unknown field.
            ValueError: A length or stride below 1, or a burn-in below 0.
        """
        check_window(length, burn_in, stride)
        own, built_in = checked_step_names(fields, names, "windows")
        stacked = {name: k for name, k in checked_stack(fields, stack).items() if name in own}
        return cls(int(length), int(burn_in), int(stride), own, built_in, stacked)
