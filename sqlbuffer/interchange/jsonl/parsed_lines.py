"""A line of JSON, as this library or `json.dumps` writes it."""

import json
import math
import re
from typing import Any

import orjson

from sqlbuffer.errors import FileImportError

# What orjson refuses, or rounds: an integer of 64 bits has up to 20 digits.
_ODD = re.compile(rb"[0-9]{19}|NaN|Infinity")
_REMEDY = 'write null, or {"$float": "inf"}'


def parsed_line(line: bytes) -> Any:
    """Return the value of a line: integers exactly, and `NaN` and `Infinity` as numbers.

    Raises:
        FileImportError: It is no JSON, or has a number that no float holds.

    Example:
        >>> parsed_line(b'[123456789012345678901, NaN, 1.5]')
        [123456789012345678901, nan, 1.5]
    """
    try:
        if _ODD.search(line) is None:
            return orjson.loads(line)
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
