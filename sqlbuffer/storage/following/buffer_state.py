"""What a follower reads of a buffer: its state, and what is new in it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


class BufferState(NamedTuple):
    """A committed state of a buffer.

    Attributes:
        low: Steps up to this number have left.
        high: The newest step.
        clock: The buffer's clock; None before it was set.
        session: Number of the current session; None before any was started.
        has_labels: Steps may have annotated values.
        has_quarantine: Steps may be in quarantine.
        has_deleted: Steps of chunks may have been deleted.
        created_at: When the buffer was made: another buffer of its name has another time.
        position: What of the change log belongs to the state; see `changes.follower`.
        revision: The revision of the database's schema.
    """

    low: int
    high: int
    clock: int | None
    session: int | None
    has_labels: bool
    has_quarantine: bool
    has_deleted: bool
    created_at: str
    position: str
    revision: str


class ChunkRow(NamedTuple):
    """A chunk as its tables hold it; see `chunks.tables`.

    Attributes:
        terminated_nulls: Where `terminated` is null: None: at no step; empty: at all; else JSON
            with the flags, if it is at some.
        truncated_nulls: Likewise.
        priorities: Those that the steps began with; None: 1.0.
    """

    first_seq: int
    n_steps: int
    id: str
    task_id: str
    agent_id: str
    step: int
    steps: Any
    episode_id: int | None
    t: int | None
    session_id: int | None
    model_version: int | None
    rewards: bytes | None
    ends: bytes | None
    terminated_nulls: str | None
    truncated_nulls: str | None
    block_steps: int
    offsets: Any
    records: bytes
    priorities: Reals | None


class ChunkSpan(NamedTuple):
    """Which steps a chunk has."""

    first_seq: int
    n_steps: int
    episode_id: int | None
    id: str


class EpisodeState(NamedTuple):
    """An episode as its table holds it; see `episodes.tables`."""

    id: int
    key: str
    status: str
    length: int | None
    final_arrays: bytes | None
    return_: float | None
    reward: float | None


class ChangeEntry(NamedTuple):
    """An entry of the change log: which steps were changed, and what about them."""

    kind: str
    origin: str | None
    seqs: Sequence[int] | None
