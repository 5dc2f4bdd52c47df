"""Read a buffer with Ray Data; see `docs/how-to/read-with-ray.md`."""

from sqlbuffer.errors import MissingExtraError

try:
    import ray.data  # noqa: F401
except ImportError:
    raise MissingExtraError(
        "sqlbuffer.integrations.ray needs Ray Data: `pip install sqlbuffer[ray]`"
    ) from None

from sqlbuffer.integrations.ray.buffer_datasource import read_buffer

__all__ = ["read_buffer"]
