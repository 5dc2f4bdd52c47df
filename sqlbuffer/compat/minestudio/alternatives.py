"""Names of MineStudio that this package does not have."""

from sqlbuffer.compat.alternatives import Alternatives

_RECORDS = (
    "the database keeps chunks in the table item_groups and prepared lists in participants; "
    "ReplayBufferInterface.stats() returns their numbers"
)
_INSTEAD = {
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
ALTERNATIVES = Alternatives("MineStudio", _INSTEAD)
