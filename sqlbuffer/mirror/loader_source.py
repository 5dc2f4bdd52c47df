"""What a loader draws from a mirror."""

from collections.abc import Callable, Sequence

from sqlbuffer.loading.sufficient_data import undrawn
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.samplers import Sampler
from sqlbuffer.samplers.seeding import restart
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.store import BufferStore


class MirrorSource:
    """Draws the batches of a loader from a mirror.

    Args:
        draw: Draws that many things with a sampler.
        store: The buffer.
    """

    def __init__(self, draw: Callable[[int, Sampler], Batch], store: BufferStore) -> None:
        self._draw, self._store = draw, store

    def draw(self, sampler: Sampler, n: int, path: Sequence[int] | None = None) -> Batch:
        """Return n things drawn by a sampler; see `BatchSource.draw`."""
        if path is not None:
            restart(sampler, path)
        return self._draw(n, sampler)

    def undrawn(self, sampler: Sampler | None = None) -> str:
        """Return which rows are not drawn, as the end of a message."""
        return undrawn(self._store, EVERYTHING, sampler)
