"""The formats that `sqlbuffer import` knows."""

from pathlib import Path

FORMATS = ("parquet", "jsonl", "minari")


def format_of(source: str) -> str:
    """Return the format of the files to import.

    Args:
        source: A file or folder.

    Example:
        >>> format_of("steps.jsonl"), format_of("out")
        ('jsonl', 'parquet')
    """
    if source.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    return "minari" if (Path(source) / "data" / "metadata.json").is_file() else "parquet"
