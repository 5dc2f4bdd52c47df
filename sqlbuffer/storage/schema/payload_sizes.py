"""The bytes of stored payloads, in SQL: what `size_bytes`, `max_bytes` and copies count.

On SQLite JSON is text, of which `length` counts characters. On PostgreSQL the size in the table
counts, which is known without reading the value.
"""

from collections.abc import Sequence

# Columns of `experiences` and of `chunk_data` with JSON, and with bytes.
ROW_JSON = ("state", "actions", "messages", "extra", "fields")
CHUNK_JSON, CHUNK_BYTES = ("payloads",), ("records", "payload_arrays")
# Bytes of arrays that are stored in parts are noted in the row.
_ROW_ARRAYS = {
    "sqlite": "coalesce(payload_bytes, length(arrays), 0)",
    "postgresql": "coalesce(payload_bytes, octet_length(arrays), 0)",
}
_JSON = {"sqlite": "length(CAST({} AS BLOB))", "postgresql": "pg_column_size({})"}
_BYTES = {"sqlite": "length({})", "postgresql": "octet_length({})"}


def _sum(sizes: Sequence[str]) -> str:
    return " + ".join(f"coalesce({size}, 0)" for size in sizes)


def row_size(dialect: str) -> str:
    """Return the expression for the bytes of a row of `experiences`.

    Args:
        dialect: `sqlite` or `postgresql`.
    """
    json = _sum([_JSON[dialect].format(name) for name in ROW_JSON])
    return f"{_ROW_ARRAYS[dialect]} + {json}"


def chunk_size(dialect: str) -> str:
    """Return the expression for the bytes of a row of `chunk_data`; see `row_size`."""
    json = [_JSON[dialect].format(name) for name in CHUNK_JSON]
    return _sum([*json, *(_BYTES[dialect].format(name) for name in CHUNK_BYTES)])


def message_size(dialect: str) -> str:
    """Return the expression for the bytes of a row of `messages`; see `row_size`."""
    return _JSON[dialect].format("content")
