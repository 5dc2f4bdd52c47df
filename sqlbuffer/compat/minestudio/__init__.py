"""The calls of MineStudio's `minestudio.online.rollout.replay_buffer` on a SQL database.

Change `from minestudio.online.rollout.replay_buffer import ReplayBufferInterface` to `from
sqlbuffer.compat.minestudio import ReplayBufferInterface`. It does not need Ray, and works inside
Ray's actors. The contents of the buffer survive restarts, and its rules hold exactly, with any
number of processes.
"""

from typing import Any

from sqlbuffer.compat.minestudio.alternatives import ALTERNATIVES
from sqlbuffer.compat.minestudio.config import Config, DatabaseConfig
from sqlbuffer.compat.minestudio.datatypes import (
    FragmentDataDict,
    FragmentIndex,
    FragmentMetadata,
    SampleFragment,
    StepRecord,
)
from sqlbuffer.compat.minestudio.errors import (
    FetchTimeoutError,
    FragmentAssertionError,
    FragmentError,
    FragmentNotFoundError,
    FragmentTypeError,
)
from sqlbuffer.compat.minestudio.fragment_store import FragmentStore
from sqlbuffer.compat.minestudio.interface import ReplayBufferInterface

__all__ = [
    "Config",
    "DatabaseConfig",
    "FetchTimeoutError",
    "FragmentAssertionError",
    "FragmentDataDict",
    "FragmentError",
    "FragmentIndex",
    "FragmentMetadata",
    "FragmentNotFoundError",
    "FragmentStore",
    "FragmentTypeError",
    "ReplayBufferInterface",
    "SampleFragment",
    "StepRecord",
]


def __getattr__(name: str) -> Any:
    """Raise for the names of MineStudio that this package does not have."""
    raise ALTERNATIVES.missing(__name__, name)
