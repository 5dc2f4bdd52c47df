"""Find the numbers and arrays of a step, in its typed fields and in its JSON."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.display.jsonable import safe_text

if TYPE_CHECKING:
    from sqlbuffer.steps.data_rows import DataRow

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
    found: dict[str, NDArray[Any]] = {}
    for name, attribute in SCALARS.items():
        if (value := getattr(row.exp_data, attribute)) is not None:
            found[name] = np.asarray(value, np.float64)
    pairs = ((pointer(name), array_of(value)) for name, value in row.fields.items())
    inside = (pair for name in _PAYLOADS for pair in _inside(name, getattr(row.exp_data, name), 0))
    for name, array in (*pairs, *inside):
        if array is not None and len(found) < MOST_VALUES:
            found.setdefault(name, array)
    return found


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
    values = {each: getattr(row.exp_data, each) for each in (*_PAYLOADS, "messages")}
    scalars = {each: getattr(row.exp_data, attribute) for each, attribute in SCALARS.items()}
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
        found = [item for key, item in value.items() if safe_text(key) == part]
        if found:
            return found[0]
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
