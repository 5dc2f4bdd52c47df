"""Export the steps of a buffer to files and data sets, and import steps from them.

`export_parquet` writes a folder of Parquet files, and `import_parquet` reads it. `export_jsonl`
writes JSON lines, and `insert_jsonl` reads them. `export_rollouts` writes a folder of
conversations, `export_minari` a Minari data set, and `export_atif` trajectories of ATIF.
`export_arrays` returns or writes flat arrays, the form of D4RL and d3rlpy, and `import_arrays`
reads them; `from_sb3`, `to_sb3`, `from_cpprb` and `to_cpprb` are for replay buffers in memory.
`to_hf` returns a data set that reads a buffer. `BufferStream` reads the steps of a buffer as
columns, under a hold; all exports use it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlbuffer.interchange.arrays.exporting import export_arrays
    from sqlbuffer.interchange.arrays.importing import import_arrays
    from sqlbuffer.interchange.arrays.sb3_and_cpprb import (
        from_cpprb,
        from_sb3,
        to_cpprb,
        to_sb3,
    )
    from sqlbuffer.interchange.atif import AtifExport, export_atif, import_atif
    from sqlbuffer.interchange.hugging_face import (
        RolloutExport,
        RolloutRows,
        export_rollouts,
        to_hf,
    )
    from sqlbuffer.interchange.jsonl import export_jsonl, insert_jsonl
    from sqlbuffer.interchange.minari import export_minari, import_minari
    from sqlbuffer.interchange.output import ExportReport, ImportReport
    from sqlbuffer.interchange.parquet.exporting import export_parquet
    from sqlbuffer.interchange.parquet.importing import import_parquet
    from sqlbuffer.interchange.streams import BufferStream, StreamPiece

_HOME = {
    "export_arrays": "arrays.exporting",
    "import_arrays": "arrays.importing",
    **dict.fromkeys(("from_cpprb", "from_sb3", "to_cpprb", "to_sb3"), "arrays.sb3_and_cpprb"),
    **dict.fromkeys(("AtifExport", "export_atif", "import_atif"), "atif"),
    **dict.fromkeys(("RolloutExport", "RolloutRows", "export_rollouts", "to_hf"), "hugging_face"),
    **dict.fromkeys(("export_jsonl", "insert_jsonl"), "jsonl"),
    **dict.fromkeys(("export_minari", "import_minari"), "minari"),
    **dict.fromkeys(("ExportReport", "ImportReport"), "output"),
    "export_parquet": "parquet.exporting",
    "import_parquet": "parquet.importing",
    **dict.fromkeys(("BufferStream", "StreamPiece"), "streams"),
}

__all__ = [
    "AtifExport",
    "BufferStream",
    "ExportReport",
    "ImportReport",
    "RolloutExport",
    "RolloutRows",
    "StreamPiece",
    "export_arrays",
    "export_atif",
    "export_jsonl",
    "export_minari",
    "export_parquet",
    "export_rollouts",
    "from_cpprb",
    "from_sb3",
    "import_arrays",
    "import_atif",
    "import_minari",
    "import_parquet",
    "insert_jsonl",
    "to_cpprb",
    "to_hf",
    "to_sb3",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module 'sqlbuffer.interchange' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"sqlbuffer.interchange.{_HOME[name]}"), name)
