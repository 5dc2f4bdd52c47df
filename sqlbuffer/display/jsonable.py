"""Values for other programs, as JSON and CSV. Pydantic chooses the form of most types."""

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import orjson
from pydantic_core import to_jsonable_python

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
    made = jsonable(value)
    return dumps(made) if isinstance(made, (list, dict)) else made
