"""Everything that speaks SQL: one module or folder for each capability."""

from importlib import import_module

# The modules with tables, so that the metadata is complete whichever module is imported first.
# Tables of buffers come first: overlays add their flags to them.
_WITH_TABLES = (
    "buffers.tables",
    "agreements",
    "changes",
    "chunks.tables",
    "copies.tables",
    "eligibility",
    "episodes",
    "flow",
    "holds",
    "labels.tables",
    "leases.tables",
    "merging.tables",
    "priorities.blocks",
    "retention.eviction",
    "rollout_stats",
    "rows.payload_parts",
    "sample_log",
    "schema.metadata",
    "work",
)
for _name in _WITH_TABLES:
    import_module(f"{__name__}.{_name}")
