"""Why a draw finds too few rows, in words for people."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from sqlbuffer.batches.forms import Form, TransitionForm
from sqlbuffer.errors import InsufficientDataError, StorageError
from sqlbuffer.query.tree import Node
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.storage.store import BufferStore

_IN_NO_EPISODE = (
    "in no episode (store_episode or episode() stores steps in one; or declare the field next_obs)"
)


class Shortage(NamedTuple):
    """Why too few rows are drawn, as parts of a message.

    Attributes:
        buffer: Name of the buffer.
        why_none: Why no row matches, as text behind the name; "" if some match.
        causes: End of the message: the rows that match and are not drawn; "" if all can be drawn.
    """

    buffer: str
    why_none: str = ""
    causes: str = ""

    @property
    def reason(self) -> str:
        """Text behind the number of rows."""
        return f": buffer {self.buffer!r} {self.why_none}" if self.why_none else ""


def check_sufficient(
    n_found: int, n_wanted: int, strict: bool, why: Callable[[], Shortage]
) -> None:
    """Raise if fewer items were found than needed.

    Args:
        n_found: Number of items that were found.
        n_wanted: Number of items that were wanted.
        strict: Whether fewer items are an error.
        why: Function that returns the reason; see `shortage`.
    """
    if strict and n_found < n_wanted:
        of = why()
        raise InsufficientDataError(
            f"asked for {n_wanted}, and {n_found} match{of.reason}; wait for more data or lower "
            f"the batch size{of.causes}"
        )


def shortage(
    store: BufferStore,
    node: Node,
    sampler: Sampler | TaskSampler | None,
    form: Form | None = None,
) -> Shortage:
    """Return why too few rows are drawn.

    Args:
        store: The buffer.
        node: Condition of the draw.
        sampler: Sampler that chose the rows.
        form: Form of the arrays that are made of them; None: they are returned as rows.
    """
    from sqlbuffer.storage.inspect.undrawn_rows import undrawn_rows

    limits, causes = store.info.config.sampling, []
    # The draw was too small; raise that error even if the other rows cannot be counted.
    with suppress(StorageError):
        of_episodes = form is not None and form.needs_episodes
        rows = undrawn_rows(store.source, node, of_episodes=of_episodes)
        if rows.why_none:
            return Shortage(store.info.name, rows.why_none)
        for n, cause in (
            (rows.in_no_episode, _IN_NO_EPISODE),
            (rows.in_quarantine, "in quarantine"),
            (rows.stale, f"more than {limits.max_staleness} behind the clock (max_staleness)"),
            (rows.of_other_sessions, "of another session (current_session_only)"),
            (rows.used_up, f"sampled {limits.max_use} times (max_use)"),
        ):
            if n:
                causes.append(f"{n} {cause}")
        if isinstance(sampler, Sampler) and sampler.reads_priorities:
            causes.append("those that have the priority 0")
        if isinstance(form, TransitionForm) and form.relabel is not None:
            causes.append("those of episodes that have not ended (relabel)")
    text = f"; of the rows that match these are not drawn: {', '.join(causes)}" if causes else ""
    return Shortage(store.info.name, causes=text)
