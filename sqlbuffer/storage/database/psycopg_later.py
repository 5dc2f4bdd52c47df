"""psycopg, imported at its first use: whoever opens a file does not wait for it.

`from sqlbuffer.storage.database.psycopg_later import psycopg` is the package to a reader and to a
type checker. Annotations with it are quoted.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg as psycopg
else:

    class _Later:
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("psycopg"), name)
            setattr(self, name, value)
            return value

    psycopg = _Later()
