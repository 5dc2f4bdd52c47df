"""The largest payload that a row or a step may have."""

from collections.abc import Mapping

from sqlbuffer.errors import FieldError
from sqlbuffer.sizes import shown_size

MAX_JSON_BYTES = 2**28 - 1  # JSONB holds no more in one value


def check_row_size(texts: Mapping[str, str | None], n_arrays: int, limit: int, where: str) -> None:
    """Raise if a payload is too large to be stored.

    Args:
        texts: Its JSON by name.
        n_arrays: Bytes of its arrays.
        limit: Bytes that a payload may have.
        where: How an error names the row, with a space at its end.

    Raises:
        FieldError: Names the row and its size.
    """
    total = n_arrays
    for name, text in texts.items():
        size = len((text or "").encode())
        total += size
        if size > MAX_JSON_BYTES:
            raise FieldError(
                f"{where}{name}: {shown_size(size)} of JSON, and a database takes "
                f"{shown_size(MAX_JSON_BYTES)}; give long lists of numbers as numpy arrays and "
                f"long text as bytes, or store it in several rows"
            )
    if total > limit:
        raise FieldError(
            f"{where}the payload has {total:,} bytes ({shown_size(n_arrays)} of arrays), and the "
            f"buffer takes {limit:,} (max_row_bytes); store it in several rows, or make a buffer "
            f"with a larger max_row_bytes"
        )
