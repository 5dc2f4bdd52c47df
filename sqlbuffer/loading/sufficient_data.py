"""Batches that are too small: the error says which rows could not be drawn, and how many."""

from collections.abc import Callable
from contextlib import suppress

from sqlbuffer.errors import InsufficientDataError, StorageError
from sqlbuffer.query.condition_tree import Node
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.storage.inspect.undrawn_rows import undrawn_rows
from sqlbuffer.storage.sampling.readers.base import BatchReader
from sqlbuffer.storage.store import BufferStore

_IN_NO_EPISODE = (
    "in no episode (store_episode or episode() stores steps in one; or declare the field next_obs)"
)


def check_sufficient(found: int, wanted: int, strict: bool, why: Callable[[], str]) -> None:
    """Raise if fewer items were found than needed.

    Args:
        found: Number of items that were found.
        wanted: Number of items that were wanted.
        strict: Whether fewer items are an error.
        why: Function that returns which rows could not be drawn; see `undrawn`.
    """
    if strict and found < wanted:
        raise InsufficientDataError(
            f"asked for {wanted}, and {found} match; wait for more data or lower the batch size"
            f"{why()}"
        )


def undrawn(
    store: BufferStore,
    node: Node,
    sampler: Sampler | TaskSampler | None,
    reader: BatchReader | None = None,
) -> str:
    """Return which rows match but are not drawn, as the end of a message.

    The text is empty if all matching rows can be drawn.

    Args:
        store: The buffer.
        node: Condition of the draw.
        sampler: Sampler that chose the rows.
        reader: Reader that makes arrays of them; None: they are returned as rows.
    """
    limits, causes = store.info.config.sampling, []
    # The draw was too small; raise that error even if the other rows cannot be counted.
    with suppress(StorageError):
        of_episodes = reader is not None and reader.needs_episodes
        rows = undrawn_rows(store.source, node, of_episodes=of_episodes)
        for n, cause in (
            (rows.in_no_episode, _IN_NO_EPISODE),
            (rows.in_quarantine, "in quarantine"),
            (rows.stale, f"more than {limits.max_staleness} behind the clock (max_staleness)"),
            (rows.of_other_sessions, "of another session (current_session_only)"),
            (rows.used_up, f"sampled {limits.max_use} times (max_use)"),
        ):
            if n:
                causes.append(f"{n} {cause}")
        if isinstance(sampler, Sampler) and sampler.reads_priorities and store.rows.count(node):
            causes.append("those that have the priority 0")
    return f"; of the rows that match these are not drawn: {', '.join(causes)}" if causes else ""
