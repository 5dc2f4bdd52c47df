"""Steps of a rollout in their order, with what each one says for the first time."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlbuffer.storage.browsing.rollouts import Rollout
from sqlbuffer.storage.browsing.steps import BrowsedStep, StepKey, key_page, read_steps
from sqlbuffer.web.transcript import Transcript, Turn

MOST_SECONDS = 1.0
STEPS_AT_ONCE = 100

# Returns the id of the element of a step, or of one of its new turns, that is looked for.
Finder = Callable[[BrowsedStep, Sequence[Turn]], str | None]


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        key: Step that was looked for; None if no searched step is one.
        anchor: Id of the element in it.
        n_searched: Number of steps that were searched.
        reached: Last searched step; None if the search reached the end.
    """

    key: StepKey | None
    anchor: str | None
    n_searched: int
    reached: StepKey | None


def steps_ahead(
    connection: Any, buffer: Any, rollout: Rollout, after: StepKey | None, sought: str = ""
) -> Iterator[tuple[BrowsedStep, list[Turn]]]:
    """Yield the steps of a rollout, each with the turns that are new in it.

    Args:
        connection: A transaction.
        buffer: The buffer.
        rollout: The rollout.
        after: Only steps behind this one.
        sought: Turns that contain this text are marked.
    """
    transcript = Transcript(sought)
    if after is not None:
        before = StepKey(after.position, after.seq + 1)
        earlier = key_page(connection, buffer, rollout, 1, before=before).keys
        for step in read_steps(connection, buffer, earlier)[0]:
            if step.row is not None:
                data = step.row.exp_data
                transcript.context(data.messages, data.actions, data.state)
    while True:
        keys = key_page(connection, buffer, rollout, STEPS_AT_ONCE, after=after)
        steps, n_taken = read_steps(connection, buffer, keys.keys)
        for step in steps:
            turns: list[Turn] = []
            if step.row is not None:
                data = step.row.exp_data
                said = transcript.step(step.key.seq, data.messages, data.actions, data.state)
                turns = said.added
            yield step, turns
        if n_taken == len(keys.keys) and not keys.has_more:
            return
        after = keys.keys[n_taken - 1]


def found_ahead(
    connection: Any,
    buffer: Any,
    rollout: Rollout,
    after: StepKey | None,
    find: Finder,
    sought: str = "",
) -> SearchResult:
    """Return the next step of a rollout that is looked for.

    The search ends after a second; the next call continues where it ended.

    Args:
        connection: A transaction.
        buffer: The buffer.
        rollout: The rollout.
        after: Only steps behind this one.
        find: Finds it.
        sought: Turns that contain this text are marked.
    """
    deadline, n = time.monotonic() + MOST_SECONDS, 0
    for step, turns in steps_ahead(connection, buffer, rollout, after, sought):
        n += 1
        if (anchor := find(step, turns)) is not None:
            return SearchResult(step.key, anchor, n, step.key)
        if time.monotonic() > deadline:
            return SearchResult(None, None, n, step.key)
    return SearchResult(None, None, n, None)
