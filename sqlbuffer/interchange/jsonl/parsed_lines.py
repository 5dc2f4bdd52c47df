"""A line of JSON, as this library or `json.dumps` writes it."""

import json
import math
import re
from typing import Any

import orjson

from sqlbuffer.errors import FileImportError

# orjson rounds integers above 64 bits. Digits of a fraction do not count. A line is looked through
# for any 19 digits first, which takes a fifth of the time.
_LONG_INTEGER = re.compile(rb"(?<![.0-9])[0-9]{19}")
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_NINETEEN = b"0" * 19
_REMEDY = 'write null, or {"$float": "inf"}'


def parsed_line(line: bytes) -> Any:
    """Return the value of a line: integers exactly, and `NaN` and `Infinity` as numbers.

    Raises:
        FileImportError: The line is not JSON, or has a number that is out of the range of floats.

    Example:
        >>> parsed_line(b'[123456789012345678901, NaN, 1.5]')
        [123456789012345678901, nan, 1.5]
    """
    try:
        if _NINETEEN in line.translate(_DIGITS) and _LONG_INTEGER.search(line):
            return json.loads(line, parse_float=_finite)
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            if b"NaN" not in line and b"Infinity" not in line:
                raise
            return json.loads(line, parse_float=_finite)
    except orjson.JSONDecodeError as error:  # which is json.JSONDecodeError
        remedy = f"; {_REMEDY}" if "is infinity" in str(error) else ""
        raise FileImportError(f"no JSON ({error}){remedy}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise FileImportError(f"no JSON ({error})") from None
    except FileImportError:
        raise
    except ValueError as error:  # more digits than Python reads
        raise FileImportError(f"a number cannot be read ({error})") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise FileImportError(f"no float holds the number {digits[:40]}; {_REMEDY}")
    return number
