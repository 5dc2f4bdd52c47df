"""Read a buffer with Ray Data; see `docs/how-to/read-with-ray.md`."""

from sqlbuffer.errors import MissingExtraError, install

try:
    import ray.data  # noqa: F401
except ImportError:
    raise MissingExtraError(
        f"sqlbuffer.integrations.ray needs Ray Data; run {install('ray')}"
    ) from None

from sqlbuffer.integrations.ray.buffer_datasource import read_buffer

__all__ = ["read_buffer"]
