"""Look for a text in the conversation of a rollout, ahead of a step."""

import time
from dataclasses import dataclass
from typing import Any

from sqlbuffer.storage.browsing.found_rollouts import Rollout
from sqlbuffer.storage.browsing.rollout_steps import read_steps
from sqlbuffer.storage.browsing.step_keys import StepKey, key_page
from sqlbuffer.web.transcript.turns import Transcript

MOST_SECONDS = 1.0
STEPS_AT_ONCE = 100


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        key: Step that has the text; None if no searched step has it.
        anchor: Id of the element of the first turn that has it.
        n_searched: Number of steps that were searched.
        reached: Last searched step; None if the search reached the end.
    """

    key: StepKey | None
    anchor: str | None
    n_searched: int
    reached: StepKey | None


def found_ahead(
    connection: Any, buffer: Any, rollout: Rollout, after: StepKey | None, wanted: str
) -> SearchResult:
    """Return the next step of a rollout whose conversation has a text that is new there.

    The search ends after a second; the next call continues where it ended.

    Args:
        connection: A transaction.
        buffer: The buffer.
        rollout: The rollout.
        after: Only steps behind this one.
        wanted: The text.
    """
    deadline = time.monotonic() + MOST_SECONDS
    transcript, n = Transcript(wanted), 0
    if after is not None:
        earlier = key_page(connection, buffer, rollout, 1, before=_next(after)).keys
        for step in read_steps(connection, buffer, earlier)[0]:
            if step.row is not None:
                data = step.row.exp_data
                transcript.context(data.messages, data.actions, data.state)
    while True:
        keys = key_page(connection, buffer, rollout, STEPS_AT_ONCE, after=after)
        steps, n_taken = read_steps(connection, buffer, keys.keys)
        for step in steps:
            if step.row is not None:
                data = step.row.exp_data
                transcript.step(step.key.seq, data.messages, data.actions, data.state)
            n += 1
            if transcript.matches:
                return SearchResult(step.key, transcript.matches[0].anchor, n, step.key)
        if n_taken == len(keys.keys) and not keys.has_more:
            return SearchResult(None, None, n, None)
        after = keys.keys[n_taken - 1]
        if time.monotonic() > deadline:
            return SearchResult(None, None, n, after)


def _next(key: StepKey) -> StepKey:
    return StepKey(key.position, key.seq + 1)
