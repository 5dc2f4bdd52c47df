"""Arrays for PostgreSQL as text. psycopg takes up to ten times as long for lists."""

import re
from collections.abc import Iterable, Sequence

_PLAIN_IDS = re.compile("[0-9A-Za-z_/-]+(,[0-9A-Za-z_/-]+)*")


def number_array(numbers: Iterable[int]) -> str:
    """Return whole numbers as the text of an array."""
    return f"{{{','.join(map(str, numbers))}}}"


def real_array(reals: Sequence[float | None]) -> str:
    """Return numbers as the text of an array."""
    return f"{{{','.join('NULL' if real is None else repr(real) for real in reals)}}}"


def id_array(ids: Sequence[str]) -> str | list[str]:
    """Return ids as the text of an array if none of them needs quotes, otherwise as a list.

    The ids that the library makes need none. In a list psycopg takes 4 us to look at each.
    """
    joined = ",".join(ids)
    if not _PLAIN_IDS.fullmatch(joined) or joined.count(",") >= len(ids):
        return list(ids)
    return list(ids) if "null" in joined.lower() else f"{{{joined}}}"
