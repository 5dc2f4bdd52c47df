"""The formats that `sqlbuffer export` knows, by name."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

# Each takes (buffer, path, condition, *, columns, overwrite, on_progress), and returns what it says
# of the result as text.
_EXPORTS = {
    "parquet": ("parquet.parquet_export", "export_parquet"),
    "jsonl": ("jsonl.jsonl_export", "export_jsonl"),
}
FORMATS = tuple(_EXPORTS)


def exporter(name: str) -> Callable[..., Any]:
    """Return the function that exports to a format."""
    module, function = _EXPORTS[name]
    found: Callable[..., Any] = getattr(import_module(f"sqlbuffer.interchange.{module}"), function)
    return found
