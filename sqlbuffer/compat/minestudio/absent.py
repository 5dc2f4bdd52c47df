"""What MineStudio has and this package has not, and what to use instead."""

_RECORDS = (
    "the database keeps chunks in the table chunks and prepared lists in prepared_lists; "
    "ReplayBufferInterface.stats() tells their numbers"
)
ALTERNATIVES = {
    "ReplayBufferActor": "ReplayBufferInterface does in the database what the actor did, and every "
    "process makes its own",
    "actor": "ReplayBufferInterface does in the database what the actor did, and every process "
    "makes its own",
    "ChunkRecord": _RECORDS,
    "FragmentRecord": _RECORDS,
    "FragmentManager": "payloads leave with their chunks, when no prepared list holds them",
    "LocalFragmentStoreImpl": "FragmentStore reads and writes from any machine",
    "RemoteFragmentStoreImpl": "FragmentStore reads and writes from any machine",
}


def absent(name: str) -> ImportError:
    """Return the error for importing one of them."""
    return ImportError(f"sqlbuffer has no {name} of MineStudio; instead, {ALTERNATIVES[name]}")
