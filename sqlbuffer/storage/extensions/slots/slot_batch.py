"""Steps of episodes in slots, in the form in which they are stored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, text

from sqlbuffer.encoding.column_chunks import PackedStep, pack_steps
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.episodes import EpisodeKey, StepPlace, end
from sqlbuffer.storage.writing.chunks import ChunkBatch

_LEAVE_OUT = text(
    "UPDATE episodes SET next_t = :t "
    "WHERE buffer_id = :buffer_id AND key = :key AND task_id = :key AND next_t < :t"
)


@dataclass(frozen=True)
class Resumption(EpisodeStart):
    """An episode that continues behind steps that were left out.

    Attributes:
        first_t: Its next step.
    """

    first_t: int = 0


@dataclass(frozen=True)
class SlotPart:
    """Steps that are inserted together.

    Attributes:
        batch: The steps.
        behind: The episode that continues with them behind steps that were left out, if there is
            one.
    """

    batch: ChunkBatch
    behind: Resumption | None = None


@dataclass(frozen=True)
class SlotBatch:
    """Steps of episodes, and the ends of episodes, that are stored in one transaction.

    Attributes:
        parts: The steps, in the order in which they are inserted.
        keys: The episodes that have steps among them.
        places: Places of the steps by episode and t, for episodes that end with them.
        endings: Ends of the episodes.
    """

    parts: Sequence[SlotPart]
    keys: Sequence[str] = ()
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)
    endings: Sequence[EpisodeEnd] = ()

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return sum(part.batch.n_steps for part in self.parts)

    @property
    def n_bytes(self) -> int:
        """Size of their fields in bytes."""
        return sum(part.batch.n_bytes for part in self.parts)

    def insert(
        self,
        connection: Connection,
        buffer_id: int,
        insert: Callable[[ChunkBatch], StoreResult],
    ) -> StoreResult:
        """Insert all parts in a transaction; return the results of the steps, in their order."""
        written = []
        for part in self.parts:
            if part.behind is not None:
                values = {"buffer_id": buffer_id, "key": part.behind.key, "t": part.behind.first_t}
                connection.execute(_LEAVE_OUT, values)
            written.append(insert(part.batch))
        seqs = np.concatenate([result.seqs for result in written] or [np.empty(0, np.int64)])
        end(connection, buffer_id, self.endings, self._numbers(seqs))
        return StoreResult(
            sum(result.inserted for result in written),
            sum(result.duplicates for result in written),
            sum(result.conflicts for result in written),
            tuple(id_ for result in written for id_ in result.conflicting_ids),
            seqs,
        )

    def _numbers(self, seqs: NDArray[np.int64]) -> dict[StepPlace, int]:
        return {(key, key, t): int(seqs[i]) for (key, t), i in self.places.items() if seqs[i] >= 0}


def slot_batch(
    layout: Layout,
    steps: Sequence[PackedStep],
    endings: Sequence[EpisodeEnd],
    metas: Mapping[EpisodeKey, str],
) -> SlotBatch:
    """Return steps, in their order, as a batch.

    Args:
        layout: The fields of the buffer.
        steps: The steps; the first one after steps that were left out begins with a `Resumption`.
        endings: Ends of the episodes that end with them.
        metas: The user's JSON of episodes that begin with them.
    """
    starts = [0, *(i for i, step in enumerate(steps) if _resumed(step) is not None)]
    parts = []
    for start, stop in pairwise([*starts, len(steps)]):
        if start < stop:
            packed = pack_steps(layout, steps[start:stop])
            batch = ChunkBatch(packed.chunks, packed.order, (), metas)
            parts.append(SlotPart(batch, _resumed(steps[start])))
    ended = {ending.key for ending in endings}
    places = {
        (step.of.key, step.t): i
        for i, step in enumerate(steps if ended else ())
        if step.of.key in ended
    }
    keys = dict.fromkeys(step.of.key for step in steps if step.of.key is not None)
    return SlotBatch(parts, list(keys), places, endings)


def _resumed(step: PackedStep) -> Resumption | None:
    """Return the `Resumption` of a step that follows steps which were left out."""
    of = step.of
    return of if isinstance(of, Resumption) and of.first_t == step.t else None
