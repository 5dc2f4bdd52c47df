"""A persistent replay buffer in a SQL database."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlbuffer.batches import Batch
    from sqlbuffer.buffer import ReplayBuffer, StoreResult
    from sqlbuffer.converters import ColumnsConverter, Converter, DefaultConverter
    from sqlbuffer.env_fields import fields_from_env
    from sqlbuffer.episode_writer import EpisodeWriter
    from sqlbuffer.flow import RateLimiter, RatioWindow
    from sqlbuffer.front.leasing import LeasedBatch
    from sqlbuffer.front.prioritising import PriorityUpdate
    from sqlbuffer.loading.loader import Loader
    from sqlbuffer.mixture import Mixture, mix
    from sqlbuffer.query import QueryBuilder
    from sqlbuffer.query_filter import QueryFilter
    from sqlbuffer.rows import DataRow, Experience, ExpMeta
    from sqlbuffer.samplers import (
        FifoSampler,
        LatestSampler,
        PrioritizedSampler,
        RandomSampler,
        RandomTaskSample,
        Sampler,
        TaskSampler,
    )
    from sqlbuffer.specs import FieldSpec
    from sqlbuffer.stats import Removed

_HOME = {
    "Batch": "batches",
    "EpisodeWriter": "episode_writer",
    "FieldSpec": "specs",
    "LeasedBatch": "front.leasing",
    "Loader": "loading.loader",
    **dict.fromkeys(("RateLimiter", "RatioWindow"), "flow"),
    **dict.fromkeys(("Mixture", "mix"), "mixture"),
    "fields_from_env": "env_fields",
    "PriorityUpdate": "front.prioritising",
    "Removed": "stats",
    **dict.fromkeys(("ReplayBuffer", "StoreResult"), "buffer"),
    **dict.fromkeys(("ColumnsConverter", "Converter", "DefaultConverter"), "converters"),
    "QueryBuilder": "query",
    "QueryFilter": "query_filter",
    **dict.fromkeys(("DataRow", "ExpMeta", "Experience"), "rows"),
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
}

try:
    __version__ = version("sqlbuffer")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0"

__all__ = [
    "Batch",
    "ColumnsConverter",
    "Converter",
    "DataRow",
    "DefaultConverter",
    "EpisodeWriter",
    "ExpMeta",
    "Experience",
    "FieldSpec",
    "FifoSampler",
    "LatestSampler",
    "LeasedBatch",
    "Loader",
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
    "Sampler",
    "StoreResult",
    "TaskSampler",
    "fields_from_env",
    "mix",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import sqlbuffer` alone stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'sqlbuffer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sqlbuffer.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
