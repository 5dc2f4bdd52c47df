"""Batches that a consumer may get, without a claim."""

from collections.abc import Iterator

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer
from sqlbuffer.storage.leases.choosing import ClaimRequest, GroupChoice, Scope, choose_rows


def drawn(buffer: ReplayBuffer, wanted: ClaimRequest, times: int) -> Iterator[list[int]]:
    """Yield the numbers of batches that are chosen, each as if the others had been given back."""
    store = buffer._store
    with translated(store.url), store.leases.claiming() as connection:
        now = store.source.window_answered(answer(connection))
        scope = Scope(store.info.id, now.low, now.high)
        for _ in range(times):
            if wanted.group_by is None:
                yield choose_rows(connection, scope, wanted)
            else:
                groups = GroupChoice(connection, scope, wanted).choose()
                yield [seq for group in groups for seq in group]
