"""Take the steps of a buffer elsewhere, and bring steps in.

`export_parquet` writes a folder of Parquet files. `BufferStream` reads the steps of a buffer as
columns, under a hold; the other formats are made of it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlbuffer.interchange.buffer_stream import BufferStream, StreamPiece
    from sqlbuffer.interchange.export_report import ExportReport
    from sqlbuffer.interchange.parquet_export import export_parquet

_HOME = {
    "ExportReport": "export_report",
    "BufferStream": "buffer_stream",
    "StreamPiece": "buffer_stream",
    "export_parquet": "parquet_export",
}

__all__ = ["BufferStream", "ExportReport", "StreamPiece", "export_parquet"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module 'sqlbuffer.interchange' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"sqlbuffer.interchange.{_HOME[name]}"), name)
