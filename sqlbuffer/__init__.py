"""A persistent replay buffer in a SQL database."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from sqlbuffer.batches.hindsight import HindsightGoals
    from sqlbuffer.buffer import ReplayBuffer, Snapshot, Transaction
    from sqlbuffer.config import BufferConfig, Connection
    from sqlbuffer.copying import CopyReport
    from sqlbuffer.episode_writer import EpisodeWriter
    from sqlbuffer.fields import FieldSpec
    from sqlbuffer.front.leasing import LeasedBatch
    from sqlbuffer.front.row_batch import LoggedBatch, TaskList
    from sqlbuffer.front.sampling import ColumnsConverter, Converter, DefaultConverter
    from sqlbuffer.front.work import Work, WorkItem
    from sqlbuffer.loading.loader import Loader
    from sqlbuffer.mirror.buffer_mirror import Mirror
    from sqlbuffer.mirror.settings import MirrorLag
    from sqlbuffer.mixture import Mixture, mix
    from sqlbuffer.query.builder import QueryBuilder
    from sqlbuffer.query.query_filter import QueryFilter
    from sqlbuffer.rate_limits import RateLimiter, RatioWindow
    from sqlbuffer.samplers import (
        FifoSampler,
        LatestSampler,
        PrioritizedSampler,
        RandomSampler,
        RandomTaskSample,
        Sampler,
        TaskSampler,
    )
    from sqlbuffer.spaces import fields_from_env
    from sqlbuffer.stats import Removed
    from sqlbuffer.steps import (
        Batch,
        DataRow,
        Experience,
        ExpMeta,
        PriorityUpdate,
        RowList,
        StoreResult,
    )
    from sqlbuffer.storage.documents import Document, Documents
    from sqlbuffer.storage.leases.checkpoints import Checkpoint, Restored
    from sqlbuffer.storage.sampling.candidates import Candidates
    from sqlbuffer.vector_writer import VectorWriter

_HOME = {
    **dict.fromkeys(("ReplayBuffer", "Snapshot", "Transaction"), "buffer"),
    **dict.fromkeys(("BufferConfig", "Connection"), "config"),
    "CopyReport": "copying",
    "EpisodeWriter": "episode_writer",
    "VectorWriter": "vector_writer",
    "FieldSpec": "fields",
    "fields_from_env": "spaces",
    "HindsightGoals": "batches.hindsight",
    "LeasedBatch": "front.leasing",
    **dict.fromkeys(("LoggedBatch", "TaskList"), "front.row_batch"),
    **dict.fromkeys(("ColumnsConverter", "Converter", "DefaultConverter"), "front.sampling"),
    **dict.fromkeys(("Work", "WorkItem"), "front.work"),
    "Loader": "loading.loader",
    "Mirror": "mirror.buffer_mirror",
    "MirrorLag": "mirror.settings",
    **dict.fromkeys(("Mixture", "mix"), "mixture"),
    "QueryBuilder": "query.builder",
    "QueryFilter": "query.query_filter",
    **dict.fromkeys(("RateLimiter", "RatioWindow"), "rate_limits"),
    **dict.fromkeys(
        (
            "FifoSampler",
            "LatestSampler",
            "PrioritizedSampler",
            "RandomSampler",
            "RandomTaskSample",
            "Sampler",
            "TaskSampler",
        ),
        "samplers",
    ),
    "Removed": "stats",
    **dict.fromkeys(
        (
            "Batch",
            "DataRow",
            "ExpMeta",
            "Experience",
            "PriorityUpdate",
            "RowList",
            "StoreResult",
        ),
        "steps",
    ),
    **dict.fromkeys(("Document", "Documents"), "storage.documents"),
    **dict.fromkeys(("Checkpoint", "Restored"), "storage.leases.checkpoints"),
    "Candidates": "storage.sampling.candidates",
}

__all__ = [
    "Batch",
    "BufferConfig",
    "Candidates",
    "Checkpoint",
    "ColumnsConverter",
    "Connection",
    "Converter",
    "CopyReport",
    "DataRow",
    "DefaultConverter",
    "Document",
    "Documents",
    "EpisodeWriter",
    "ExpMeta",
    "Experience",
    "FieldSpec",
    "FifoSampler",
    "HindsightGoals",
    "LatestSampler",
    "LeasedBatch",
    "Loader",
    "LoggedBatch",
    "Mirror",
    "MirrorLag",
    "Mixture",
    "PrioritizedSampler",
    "PriorityUpdate",
    "QueryBuilder",
    "QueryFilter",
    "RandomSampler",
    "RandomTaskSample",
    "RateLimiter",
    "RatioWindow",
    "Removed",
    "ReplayBuffer",
    "Restored",
    "RowList",
    "Sampler",
    "Snapshot",
    "StoreResult",
    "TaskList",
    "TaskSampler",
    "Transaction",
    "VectorWriter",
    "Work",
    "WorkItem",
    "fields_from_env",
    "mix",
]


if not TYPE_CHECKING:  # a type checker would take any misspelled name for one of the package

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: `import sqlbuffer` alone stays quick."""
        if name == "__version__":
            return _version()
        if name not in _HOME:
            raise AttributeError(f"module 'sqlbuffer' has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"sqlbuffer.{_HOME[name]}"), name)
        return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sqlbuffer")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0"


def __dir__() -> list[str]:
    return __all__
