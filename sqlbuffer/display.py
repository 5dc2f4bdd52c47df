"""Display of values and objects: in short, as JSON and CSV, and as HTML for notebooks."""

import base64
import datetime as dt
import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from html import escape
from itertools import islice
from typing import Any

import numpy as np
import orjson
from pydantic_core import to_jsonable_python


def html_table(
    heads: Iterable[str], rows: Iterable[Iterable[object]], title: str | None = None
) -> str:
    """Return a table, with a line above it if there is a title.

    Args:
        heads: Names of the columns.
        rows: The cells of each row, which are shown as text.
        title: The line.
    """
    above = "" if title is None else f"<p>{escape(title)}</p>"
    body = "".join(_row("td", cells) for cells in rows)
    return f"{above}<table>{_row('th', heads)}{body}</table>"


def html_code(text: str) -> str:
    """Return a line of code."""
    return f"<code>{escape(text)}</code>"


def _row(tag: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"


LONGEST_INT_BITS = 10_000
LARGEST_EXPONENT = 308  # of a float
# orjson passes these to `jsonable`, so that each has one form.
_FAST = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def jsonable(value: Any) -> Any:
    """Return a value as JSON has it.

    NaN and infinities become null, bytes become base64 text, and times become ISO 8601 text (in UTC
    if the zone is known). Arrays, tuples and sets become lists, and keys of dicts become text. A
    value without a form in JSON becomes Python's text of it.
    """
    if isinstance(value, dict):
        return {safe_text(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    simpler = _simpler(value)
    if simpler is value:
        return to_jsonable_python(value, inf_nan_mode="null", fallback=safe_text)
    return jsonable(simpler)


def _simpler(value: Any) -> Any:
    """Return a simpler value for types whose form is not pydantic's; other values as they are."""
    if isinstance(value, int):
        # Python refuses to write longer ones as decimal digits.
        return value if value.bit_length() < LONGEST_INT_BITS else hex(value)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dt.datetime):
        return iso_time(value)
    if isinstance(value, (dt.time, dt.timedelta, complex)):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value  # a numpy array or scalar


def _number(value: Decimal) -> int | float | str | None:
    if not value.is_finite():
        return None
    if value.adjusted() > LARGEST_EXPONENT:
        return str(value)
    return int(value) if value == value.to_integral_value() else float(value)


def safe_text(value: Any) -> str:
    """Return Python's text of a value, or its type where it has none."""
    try:
        return str(value)
    except ValueError:  # an integer of too many digits inside
        return f"<{type(value).__name__}>"


def iso_time(time: dt.datetime) -> str:
    """Return a time as ISO 8601 text, in UTC if its zone is known."""
    if time.tzinfo is None:
        return time.isoformat()
    try:
        return time.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:  # within a day of the first or last that Python has
        return time.isoformat()


def dumps(value: Any, *, ascii_only: bool = False) -> str:
    """Return the JSON text of a value, on one line."""
    if not ascii_only:
        try:
            return orjson.dumps(value, jsonable, _FAST).decode()
        except TypeError:  # keys that are not text, integers beyond 64 bits, lone surrogates
            pass
    separators = (",", ":")
    return json.dumps(
        jsonable(value), ensure_ascii=ascii_only, allow_nan=False, separators=separators
    )


def csv_field(value: Any) -> Any:
    """Return a value as a field of CSV: None is empty, values inside values are JSON."""
    if value is None or type(value) in (str, int):
        return value
    if isinstance(value, float):
        return repr(value)  # nan and inf have a form here
    if isinstance(value, bool):
        return str(value).lower()
    plain = jsonable(value)
    return dumps(plain) if isinstance(plain, (list, dict)) else plain


SHOWN_ITEMS = 8
SHOWN_CHARACTERS = 100


def described_array(array: Any, shown: Callable[[Any], str]) -> str:
    """Return an array in one line: short vectors in full, larger arrays by dtype, shape and what
    their numbers are like.

    Args:
        array: The array.
        shown: Returns a number, a text or another item in short.
    """
    array = np.asarray(array)
    first = islice(array.flat, SHOWN_ITEMS)
    items = [shown(item.item() if hasattr(item, "item") else item) for item in first]
    if array.ndim == 0:
        return items[0]
    kind = f"{array.dtype}{tuple(array.shape)}"
    if array.ndim == 1 and array.size <= SHOWN_ITEMS:
        return f"{kind} [{' '.join(items)}]"
    if array.dtype.kind not in "biuf" or not array.size:
        dots = ["..."] if array.size > SHOWN_ITEMS else []
        return f"{kind} [{' '.join([*items, *dots])}]"
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return f"{kind} no finite number"
    with np.errstate(over="ignore"):  # in the sum of the largest numbers
        least, mean, most = (shown(float(f(finite))) for f in (np.min, np.mean, np.max))
    odd = f" {array.size - finite.size:,} not finite" if finite.size < array.size else ""
    return f"{kind} min {least} mean {mean} max {most}{odd}"


class _ShortRepr(reprlib.Repr):
    """Calls `repr_<name of the type>` for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = SHOWN_ITEMS
        self.maxstring = self.maxother = 80

    # Cut before they are written.
    repr_bytes = repr_bytearray = reprlib.Repr.repr_str

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > LONGEST_INT_BITS:
            return f"an integer of {value.bit_length():,} bits"
        return super().repr_int(value, level)

    def repr_ndarray(self, array: Any, level: int) -> str:
        return described_array(array, lambda item: _short_number(item, self))

    def repr_Tensor(self, tensor: Any, level: int) -> str:
        return f"tensor of {tensor.dtype}{tuple(tensor.shape)}"

    def repr_instance(self, value: Any, level: int) -> str:
        if isinstance(value, np.generic):
            return _short_number(value.item(), self)
        return super().repr_instance(value, level)

    def repr_dict(self, values: Mapping[Any, Any], level: int) -> str:
        """Return a dict in its own order."""
        if values and level <= 0:
            return "{...}"
        pairs = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(values.items(), self.maxdict)
        ]
        more = ["..."] if len(values) > self.maxdict else []
        return "{" + ", ".join([*pairs, *more]) + "}"


def _short_number(value: Any, shortener: reprlib.Repr) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shortener.repr(value)


short = _ShortRepr().repr


def shown(value: Any, most: int = SHOWN_CHARACTERS) -> str:
    """Return any value as the text that an error message quotes: one line, cut where it is long.

    Args:
        value: The value.
        most: Number of characters.

    Example:
        >>> shown("a" * 10, most=6)
        "'aaaaa..."
    """
    try:
        text = " ".join(map(str.strip, short(value).splitlines()))
    except Exception:  # a value whose class, or that of a part of it, has no text
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[:most]}..."


BRIEF_ITEMS = 8
BRIEF_TEXT = 60
BRIEF_DEPTH = 3


def brief(value: Any, depth: int = 0) -> str:
    """Return a value in one short line: short vectors in full, larger arrays by dtype, shape and
    what their numbers are like.
    """
    if isinstance(value, str):
        return _cut(value) if depth == 0 else json.dumps(_cut(value), ensure_ascii=False)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dt.datetime):
        return iso_time(value)
    if isinstance(value, dict):
        pairs = [
            f"{_cut(safe_text(key))}: {_inner(item, depth)}" for key, item in _first(value.items())
        ]
        return "{" + ", ".join([*pairs, *_rest(value)]) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_inner(item, depth) for item in _first(value)]
        return "[" + ", ".join([*items, *_rest(value)]) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return _cut(str(jsonable(value)) if isinstance(value, int) else safe_text(value))


def _inner(value: Any, depth: int) -> str:
    return "..." if depth >= BRIEF_DEPTH else brief(value, depth + 1)


def _first(items: Any) -> list[Any]:
    return [item for _, item in zip(range(BRIEF_ITEMS), items, strict=False)]


def _rest(items: Any) -> list[str]:
    more = len(items) - BRIEF_ITEMS
    return [f"... {more} more"] if more > 0 else []


def _cut(text: str) -> str:
    line = " ".join(text.splitlines())
    return line if len(line) <= BRIEF_TEXT else f"{line[:BRIEF_TEXT]}... ({len(text):,} characters)"


def _array(value: Any) -> str:

    return described_array(value, lambda item: brief(item, 1))


def shown_age(seconds: float) -> str:
    """Return a number of seconds in the largest unit of which it is a whole number.

    Example:
        >>> shown_age(7 * 86_400), shown_age(5_400), shown_age(0.5)
        ('7 d', '90 min', '0.5 s')
    """
    for unit, n_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds and seconds % n_seconds == 0:
            return f"{seconds / n_seconds:,.0f} {unit}"
    return f"{seconds:,g} s"


def shown_size(n_bytes: float) -> str:
    """Return a number of bytes in the unit that fits it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"
