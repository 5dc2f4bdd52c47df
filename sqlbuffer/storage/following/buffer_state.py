"""The state of a buffer that a follower reads, and the rows that are new in it."""

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
        has_replaced: Values of steps may have been replaced in place.
        created_at: Time when the buffer was made: another buffer of its name has another time.
        position: Position in the change log; see `changes.follower`.
        revision: The revision of the database's schema.
    """

    low: int
    high: int
    clock: int | None
    session: int | None
    has_labels: bool
    has_quarantine: bool
    has_deleted: bool
    has_replaced: bool
    created_at: str
    position: str
    revision: str


class ChunkRow(NamedTuple):
    """A chunk as its tables hold it; see `chunks.tables`.

    Attributes:
        terminated_nulls: Steps whose `terminated` is null: None for no step; empty for all steps;
            otherwise JSON with the flags.
        truncated_nulls: The same for `truncated`.
        adv_t: Their advantages, a list or its JSON; None for none.
        v_t: Their values in the same form.
        priorities: Priorities that the steps began with; None for 1.0.
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
    adv_t: Any
    v_t: Any
    priorities: Reals | None


class ChunkSpan(NamedTuple):
    """The range of the steps of a chunk."""

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
    """An entry of the change log: the changed steps, and the kind of change."""

    kind: str
    origin: str | None
    seqs: Sequence[int] | None
