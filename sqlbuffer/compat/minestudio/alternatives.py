"""Names of MineStudio that this package does not have."""

from sqlbuffer.compat.alternatives import Alternatives

_INSTEAD_OF_RECORDS = (
    "chunks and prepared lists are documents of the buffer, which v_documents shows; "
    "ReplayBufferInterface.stats() returns their numbers"
)
_INSTEAD = {
    "ReplayBufferActor": "ReplayBufferInterface does in the database what the actor did, and every "
    "process makes its own",
    "actor": "ReplayBufferInterface does in the database what the actor did, and every process "
    "makes its own",
    "ChunkRecord": _INSTEAD_OF_RECORDS,
    "FragmentRecord": _INSTEAD_OF_RECORDS,
    "FragmentManager": "payloads leave with their chunks, when no prepared list holds them",
    "LocalFragmentStoreImpl": "FragmentStore reads and writes from any machine",
    "RemoteFragmentStoreImpl": "FragmentStore reads and writes from any machine",
}
ALTERNATIVES = Alternatives("MineStudio", _INSTEAD)
