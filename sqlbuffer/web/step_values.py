"""Values of steps in the cells of a table: numbers, small bars, texts. Nothing here reads a
database.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from sqlbuffer.display import brief, safe_text
from sqlbuffer.spaces import ACTION, NEXT, OBSERVATION, Spaces
from sqlbuffer.web.step_arrays import array_of, is_image

# Arrays of more numbers are shown by their least, mean and greatest one.
MOST_BARS = 64
# Arrays of fewer numbers are shown by their numbers.
FEWEST_BARS = 5
MOST_COLUMNS = 24
_HEIGHT, _WIDTHS = 18.0, (2, 7)


@dataclass(frozen=True)
class ShownValue:
    """A value in short.

    Attributes:
        path: Where it is in the step; see `arrays_of`.
        text: The value in one line, without the dtype and the shape.
        is_image: An image of it can be shown.
        kind: The dtype and the shape of an array; empty for other values.
        numbers: The numbers of a small array, in order; None for other values.
        is_scalar: It is one number.
    """

    path: str
    text: str
    is_image: bool = False
    kind: str = ""
    numbers: tuple[float, ...] | None = None
    is_scalar: bool = False

    @property
    def has_bars(self) -> bool:
        """It has enough numbers for bars."""
        return self.numbers is not None and len(self.numbers) >= FEWEST_BARS


@dataclass(frozen=True)
class ValueColumn:
    """The values of a path in the steps of a page.

    Attributes:
        path: The path.
        title: Name of the column: the keys of its space, or the path.
        kind: The dtype and the shape that all values have; empty if they differ.
        space: Its space in words; empty if the buffer has none for it.
        is_number: All values are single numbers.
        least: Least finite number of the small arrays, at most 0.
        greatest: Greatest finite number of them, at least 0.
        is_whole: All these numbers are whole.
    """

    path: str
    title: str
    kind: str = ""
    space: str = ""
    is_number: bool = False
    least: float = 0.0
    greatest: float = 0.0
    is_whole: bool = False


def shown_value(path: str, value: Any, printable: Any = safe_text) -> ShownValue:
    """Return a value in short.

    Args:
        path: Where it is in the step.
        value: The value.
        printable: Returns a text without what a page cannot hold.

    Example:
        >>> shown_value("obs", np.float32([1, 2])).text, shown_value("obs", np.float32([1, 2])).kind
        ('1 2', 'float32(2,)')
    """
    try:
        text = printable(brief(value))
        is_typed = hasattr(value, "dtype") and hasattr(value, "shape")
        array = array_of(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ShownValue(path, f"<{type(value).__name__}>")
    if is_typed and is_image(np.asarray(value)):
        return ShownValue(path, text, True)
    kind = ""
    if is_typed and (typed := np.asarray(value)).dtype.kind != "O":
        kind = f"{typed.dtype}{tuple(typed.shape) if typed.ndim else ''}"
        text = text.removeprefix(kind).strip()
        if typed.ndim == 1 and typed.size and text.startswith("["):
            text = text[1:-1]
    if array is None or isinstance(value, bool) or array.dtype == bool:
        return ShownValue(path, text, False, kind)
    numbers = None
    if 0 < array.size <= MOST_BARS:
        numbers = tuple(float(number) for number in array.reshape(-1))
    return ShownValue(path, text, False, kind, numbers, array.ndim == 0)


def columns_of(
    values: Iterable[ShownValue], spaces: Spaces | None = None
) -> tuple[list[ValueColumn], int]:
    """Return the columns of a table of values, and how many more there would be.

    Args:
        values: The values of all steps.
        spaces: The spaces of the buffer.
    """
    by_path: dict[str, list[ShownValue]] = {}
    for value in values:
        by_path.setdefault(value.path, []).append(value)
    places = {} if spaces is None else spaces.places()
    columns = []
    for path, of_path in [*by_path.items()][:MOST_COLUMNS]:
        kinds = {value.kind for value in of_path if not value.is_image}
        numbers = [n for v in of_path for n in v.numbers or () if math.isfinite(n)]
        keys, space = _place(path, places)
        columns.append(
            ValueColumn(
                path, keys or path, next(iter(kinds)) if len(kinds) == 1 else "", space,
                all(value.is_scalar for value in of_path),
                min([0.0, *numbers]), max([0.0, *numbers]), all(n.is_integer() for n in numbers),
            )
        )  # fmt: skip
    return columns, max(len(by_path) - MOST_COLUMNS, 0)


def _place(path: str, places: Mapping[str, tuple[tuple[Any, ...], str]]) -> tuple[str, str]:
    """Return the keys of a field in its space, as a text, and the space there in words."""
    is_next = path not in places and path.startswith(NEXT)
    keys, space = places.get(path.removeprefix(NEXT) if is_next else path, ((), ""))
    if not keys:
        return "", space
    root = ACTION if path.startswith(ACTION) else f"{NEXT if is_next else ''}{OBSERVATION}"
    return " \u203a ".join([root, *map(safe_text, keys)]), space


def bars(numbers: Sequence[float], least: float, greatest: float) -> Markup:
    """Return small bars of numbers as SVG, up from 0 and down from it; NaN has none.

    Args:
        numbers: The numbers.
        least: Number at the bottom, at most 0.
        greatest: Number at the top, at least 0.
    """
    width = max(_WIDTHS[0], min(_WIDTHS[1], 160 // max(len(numbers), 1)))
    # Doubles that differ by more than the largest one.
    scale = _HEIGHT / ((greatest / 2 - least / 2) * 2 or 1.0)
    scale = scale if math.isfinite(scale) else 0.0
    zero = min(greatest * scale, _HEIGHT) if scale else _HEIGHT / 2
    path = []
    for i, number in enumerate(numbers):
        if math.isnan(number):
            continue
        clipped = min(max(number, least), greatest)
        height = round(clipped * scale, 1)
        if not height:
            height = 0.6
        path.append(f"M{i * width} {zero:.1f}v{-height:.1f}h{width - 1}v{height:.1f}z")
    return Markup(
        '<svg class="vector" width="{w}" height="{h}" viewBox="0 0 {w} {h}" aria-hidden="true">'
        '<path class="axis" d="M0 {zero}h{w}"/><path d="{d}"/></svg>'
    ).format(w=len(numbers) * width, h=int(_HEIGHT), zero=f"{zero:.1f}", d="".join(path))


def numbers_text(numbers: Sequence[float], column: ValueColumn | None = None) -> str:
    """Return numbers with the same width and decimals in a column; four digits without one.

    Example:
        >>> numbers_text([1, -0.25])
        '1 -0.25'
    """
    if column is None:
        return " ".join(f"{number:.4g}" for number in numbers)
    most = max(column.greatest, -column.least)
    if most and not 1e-3 <= most < 1e6:
        return " ".join(f"{number:11.3e}" for number in numbers)
    before = len(f"{most:.0f}") + (column.least < 0)
    decimals = 0 if column.is_whole else max(4 - len(f"{most:.0f}"), 0)
    width = before + (decimals + 1 if decimals else 0)
    # Without the sign of -0.0.
    return " ".join(f"{number + 0.0:{width}.{decimals}f}" for number in numbers)
