"""Numbers and images of steps as a page shows them. Nothing here reads a database."""

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.display import safe_text
from sqlbuffer.web.rendering import readable

if TYPE_CHECKING:
    from sqlbuffer.steps import DataRow


# Arrays of more numbers show those at both ends.
MOST_NUMBERS = 20_000


def value_text(value: Any) -> str:
    """Return a value as text: JSON with indents; an array with its dtype, shape and numbers.

    Example:
        >>> print(value_text(np.arange(3)))
        int64, shape (3,)
        [0, 1, 2]
    """
    if not isinstance(value, (np.ndarray, np.generic)):
        return readable(value)
    array = np.asarray(value)
    numbers = np.array2string(
        array, separator=", ", threshold=MOST_NUMBERS, edgeitems=50, max_line_width=120
    )
    return f"{array.dtype}, shape {tuple(array.shape)}\n{numbers}"


MOST_VALUES = 64
MOST_DEPTH = 4
# A list of more numbers than these is looked at as one value of JSON.
MOST_ITEMS = 65_536
_PAYLOADS = ("state", "actions", "extra")
SCALARS = {"reward": "reward_t", "value": "v_t", "advantage": "adv_t"}


def arrays_of(row: "DataRow") -> dict[str, NDArray[Any]]:
    """Return the numbers and arrays of a step by name.

    A typed field has its own name. A value inside JSON has the path to it: `state/image`, with `~1`
    for a slash in a key and `~0` for a tilde. A list of numbers is an array.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> row = DataRow(ExpMeta("t"), Experience(state={"x": [1, 2]}, reward_t=0.5))
        >>> {name: array.tolist() for name, array in arrays_of(row).items()}
        {'reward': 0.5, 'state/x': [1, 2]}
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, attribute in SCALARS.items():
        if (value := getattr(row.exp_data, attribute)) is not None:
            arrays[name] = np.asarray(value, np.float64)
    pairs = ((pointer(name), array_of(value)) for name, value in row.fields.items())
    inside = (pair for name in _PAYLOADS for pair in _inside(name, getattr(row.exp_data, name), 0))
    for name, array in (*pairs, *inside):
        if array is not None and len(arrays) < MOST_VALUES:
            arrays.setdefault(name, array)
    return arrays


def pointer(*names: Any) -> str:
    """Return the path of a value.

    Example:
        >>> pointer("state", "a/b")
        'state/a~1b'
    """
    return "/".join(map(_escaped, names))


def value_at(row: "DataRow", path: str) -> Any:
    """Return the value of a step at a path.

    Raises:
        KeyError: The step has none there.
    """
    name, *inside = _parts(path)
    values = {label: getattr(row.exp_data, label) for label in (*_PAYLOADS, "messages")}
    scalars = {label: getattr(row.exp_data, attribute) for label, attribute in SCALARS.items()}
    value = {**scalars, **values, **row.fields}[name]
    for part in inside:
        value = _item(value, part)
    return value


def root_of(path: str) -> str:
    """Return the field or payload that a path is in."""
    return _parts(path)[0]


def _parts(path: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]


def _item(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        # Keys that are not texts have the path of their text.
        items = [item for key, item in value.items() if safe_text(key) == part]
        if items:
            return items[0]
    if isinstance(value, (list, tuple)) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    raise KeyError(part)


def _escaped(key: Any) -> str:
    return safe_text(key).replace("~", "~0").replace("/", "~1")


def array_of(value: Any) -> NDArray[Any] | None:
    """Return a value as an array of numbers; None: it is not one."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return array if array.dtype.kind in "biuf" else None
    if isinstance(value, (bool, int, float)):
        return np.asarray(_real(value))
    if isinstance(value, (list, tuple)) and value and _are_numbers(value):
        array = np.asarray([_real(item) for item in value])
        return array if array.dtype.kind in "biuf" else None
    return None


def is_image(array: NDArray[Any]) -> bool:
    """Return True if an array is an image: uint8, H x W, or H x W x C with C of 1, 3 or 4.

    C x H x W with C of 1 or 3 is one as well. Sides have eight pixels or more: less is a table.
    """
    return image_of(array) is not None


def image_of(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Return an image as H x W or H x W x C with C of 3 or 4; None: it is not an image."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        return None
    if array.ndim == 3:
        if array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3):
            array = np.moveaxis(array, 0, 2)
        if array.shape[2] not in (1, 3, 4):
            return None
        if array.shape[2] == 1:
            array = array[:, :, 0]
    return array if min(array.shape[:2]) >= 8 else None


def _inside(path: str, value: Any, depth: int) -> Iterator[tuple[str, NDArray[Any]]]:
    array = array_of(value)
    if array is not None:
        yield path, array
    elif isinstance(value, dict) and depth < MOST_DEPTH:
        for number, (key, item) in enumerate(value.items()):
            if number == MOST_VALUES:
                return
            yield from _inside(f"{path}/{_escaped(key)}", item, depth + 1)


def _are_numbers(values: Any) -> bool:
    return len(values) <= MOST_ITEMS and all(isinstance(v, (bool, int, float)) for v in values)


def _real(value: float) -> float:
    """Return a number that an array takes: integers beyond 64 bits become floats."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def image_fields(specs: Mapping[str, Any]) -> list[str]:
    """Return the typed fields that are images, by what the buffer declares."""
    return [
        name
        for name, spec in specs.items()
        if np.dtype(spec.dtype) == np.uint8
        and all(side > 0 for side in spec.shape)
        and is_image(np.broadcast_to(np.uint8(0), spec.shape))
    ]


# Longer sides are shown in fewer pixels.
MOST_SIDE, THUMBNAIL_SIDE = 4_096, 128
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}


def png_of(array: NDArray[Any], most_side: int = MOST_SIDE) -> bytes | None:
    """Return an image as PNG; None: the array is not an image (see `is_image`).

    Args:
        array: H x W or H x W x C, uint8.
        most_side: An image with a longer side is shown by every second pixel, every third, and so
            on.

    Example:
        >>> png_of(np.zeros((8, 8, 3), np.uint8))[:4]
        b'\\x89PNG'
    """
    image = image_of(array)
    if image is None:
        return None
    stride = ceil(max(image.shape[:2]) / most_side)
    image = image[::stride, ::stride]
    height, width = image.shape[:2]
    channels = 1 if image.ndim == 2 else image.shape[2]
    # Before each line: the filter, none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = image.reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 3)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


MOST_POINTS = 1_000
# Arrays of more numbers are drawn by their least, mean and greatest one.
MOST_COMPONENTS = 8


@dataclass(frozen=True)
class LineSummary:
    """The values of a line of a curve in short; None where it has no finite ones."""

    label: str
    least: float | None
    mean: float | None
    greatest: float | None
    last: float | None


@dataclass(frozen=True)
class FieldCurve:
    """The values of a field over steps.

    Attributes:
        name: The field.
        x: The steps.
        lines: Values at these steps, by the name of the line; NaN if there is none.
        n_values: Number of steps that have a value.
    """

    name: str
    x: NDArray[np.float64]
    lines: dict[str, NDArray[np.float64]]
    n_values: int

    @property
    def summary(self) -> list[LineSummary]:
        """Each line in short."""
        return [_summary(label, values) for label, values in self.lines.items()]

    def json_text(self) -> str:
        """Return `as_json` as text."""
        return json.dumps(self.as_json(), separators=(",", ":"))

    def as_json(self) -> dict[str, Any]:
        """Return the data of a chart: lists of numbers, null for a missing number."""
        return {
            "title": self.name,
            "x": _listed(self.x),
            "series": [
                {"label": label, "values": _listed(values)} for label, values in self.lines.items()
            ],
        }


def curve_of(name: str, x: Sequence[float], values: Sequence[NDArray[Any] | None]) -> FieldCurve:
    """Return the curve of a field.

    Args:
        name: The field.
        x: The step of each value, in ascending order.
        values: The value of each step; None: it has none. Arrays of one size of at most 8 numbers
            are drawn one line a number, others by their least, mean and greatest number.

    Example:
        >>> curve_of("reward", [0, 1], [np.asarray(0.5), None]).as_json()["series"]
        [{'label': 'reward', 'values': [0.5, None]}]
    """
    sizes = {value.size for value in values if value is not None}
    steps = np.asarray(x, np.float64)
    if len(sizes) <= 1 and max(sizes, default=1) <= MOST_COMPONENTS:
        lines = _components(name, values, max(sizes, default=1))
    else:
        lines = _summaries(values)
    thin_x, thin = _thinned(steps, lines)
    return FieldCurve(name, thin_x, thin, sum(value is not None for value in values))


def _components(
    name: str, values: Sequence[NDArray[Any] | None], size: int
) -> dict[str, NDArray[np.float64]]:
    table = np.full((len(values), size), np.nan)
    for i, value in enumerate(values):
        if value is not None:
            table[i] = value.reshape(-1)
    labels = [name] if size == 1 else [f"[{i}]" for i in range(size)]
    return {label: table[:, i] for i, label in enumerate(labels)}


def _summaries(values: Sequence[NDArray[Any] | None]) -> dict[str, NDArray[np.float64]]:
    table = np.full((len(values), 3), np.nan)
    for i, value in enumerate(values):
        if value is None:
            continue
        numbers = value.reshape(-1).astype(np.float64)
        if numbers.size and not np.isnan(numbers).all():
            table[i] = np.nanmin(numbers), np.nanmean(numbers), np.nanmax(numbers)
    return {"min": table[:, 0], "mean": table[:, 1], "max": table[:, 2]}


def _thinned(
    x: NDArray[np.float64], lines: dict[str, NDArray[np.float64]]
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return at most `MOST_POINTS` points: of each stretch the least and the greatest value."""
    if len(x) <= MOST_POINTS:
        return x, lines
    edges = np.linspace(0, len(x), MOST_POINTS // 2 + 1).astype(int)
    starts = edges[:-1]
    thin_x = np.repeat(x[starts], 2)
    thinned = {}
    for label, values in lines.items():
        thin = np.empty(len(thin_x))
        thin[0::2] = np.fmin.reduceat(values, starts)
        thin[1::2] = np.fmax.reduceat(values, starts)
        thinned[label] = thin
    return thin_x, thinned


def _summary(label: str, values: NDArray[np.float64]) -> LineSummary:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return LineSummary(label, None, None, None, None)
    least, mean, greatest = (float(f(finite)) for f in (np.min, np.mean, np.max))
    return LineSummary(label, least, mean, greatest, float(finite[-1]))


def _listed(values: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


MOST_CURVES = 24
# Number of steps that are read of a longer rollout, at even distances.
MOST_STEPS_READ = 1_000


def curves_of(rows: "Sequence[tuple[int, DataRow]]") -> list[FieldCurve]:
    """Return a curve for each field of some steps, the reward first; images have none.

    Args:
        rows: (place in the rollout, step), in order.
    """
    arrays = [arrays_of(row) for _, row in rows]
    names = dict.fromkeys(
        name for step_arrays in arrays for name, array in step_arrays.items() if not is_image(array)
    )
    steps = [position for position, _ in rows]
    return [
        curve_of(name, steps, [step_arrays.get(name) for step_arrays in arrays])
        for name in [*names][:MOST_CURVES]
    ]
