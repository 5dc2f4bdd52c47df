"""The cursor of the library's connections to PostgreSQL."""

from typing import Any

import psycopg


class BinaryCursor(psycopg.Cursor[Any]):
    """Receives results in binary: half the bytes for arrays and numbers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.format = psycopg.pq.Format.BINARY
