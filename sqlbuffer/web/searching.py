"""Searches in a rollout, and by words in all rollouts of a buffer, both for a bounded time."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlbuffer.display import safe_text
from sqlbuffer.llm.conversations import is_said
from sqlbuffer.storage.browsing.rollouts import (
    ListedRollout,
    Rollout,
    RolloutQuery,
    episode_metas,
    in_order,
    rollout_page,
)
from sqlbuffer.storage.browsing.steps import (
    BrowsedStep,
    StepKey,
    key_page,
    keys_of_episodes,
    read_steps,
)
from sqlbuffer.web.transcript import Transcript, Turn, excerpts, has_text, names_action

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
        # What is typed has no words.
        steps, n_taken = read_steps(connection, buffer, keys.keys, without=[*buffer.layout.specs])
        yield from _with_turns(steps, transcript)
        if n_taken == len(keys.keys) and not keys.has_more:
            return
        after = keys.keys[n_taken - 1]


def _with_turns(
    steps: Sequence[BrowsedStep], transcript: Transcript
) -> Iterator[tuple[BrowsedStep, list[Turn]]]:
    for step in steps:
        turns: list[Turn] = []
        if step.row is not None:
            data = step.row.exp_data
            said = transcript.step(step.key.seq, data.messages, data.actions, data.state)
            turns = said.added
        yield step, turns


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


# A search of a buffer ends after that long, or with that many rollouts that have the words.
SEARCH_SECONDS = 2.0
MOST_FOUND = 20
MOST_HITS = 3
ROLLOUTS_AT_ONCE = 50
# Steps of several rollouts that are read at once, and their size.
STEPS_OF_ROLLOUTS, BYTES_OF_ROLLOUTS = 256, 4 * 2**20


@dataclass(frozen=True)
class Hit:
    """A place that has all words.

    Attributes:
        where: Role of the message, or `state`, `actions`, `extra` or `meta`.
        key: Its step; None for `meta`.
        anchor: Id of its element in the page of the episode.
        excerpts: Its text around the words.
        words: Text to search for in the episode.
    """

    where: str
    key: StepKey | None
    anchor: str
    excerpts: list[str]
    words: str


@dataclass(frozen=True)
class FoundRollout:
    """A rollout with hits.

    Attributes:
        row: The rollout.
        hits: The first hits.
        has_more: The rest of it was not searched.
    """

    row: ListedRollout
    hits: list[Hit]
    has_more: bool


@dataclass
class BufferSearch:
    """The result of a search of a buffer.

    Attributes:
        found: Rollouts that have the words, newest first.
        n_rollouts: Number of rollouts that were searched.
        n_steps: Number of their steps that were searched.
        after: Argument `after` of the next search; None if all rollouts were searched.
        at: Argument `at` of the next search.
        reached: Rollout where the time was over; None if it was not.
    """

    found: list[FoundRollout] = field(default_factory=list)
    n_rollouts: int = 0
    n_steps: int = 0
    after: list[Any] | None = None
    at: StepKey | None = None
    reached: ListedRollout | None = None


def words_of(query: str) -> list[str]:
    """Return the words of a query; those in double quotes are one.

    Example:
        >>> words_of('timeout "no such file"')
        ['timeout', 'no such file']
    """
    pairs = re.findall(r'"([^"]+)"|([^\s"]+)', query)
    return [quoted.strip() or word for quoted, word in pairs if quoted.strip() or word]


def search_buffer(
    connection: Any,
    buffer: Any,
    words: Sequence[str],
    after: Sequence[Any] | None = None,
    at: StepKey | None = None,
) -> BufferSearch:
    """Return the next rollouts that have some words in a message or a value of one step.

    Args:
        connection: A transaction.
        buffer: The buffer.
        words: The words: all of them, in any order and any case.
        after: Place in the order of the rollouts; None: from the newest on.
        at: Last searched step of the first rollout behind that place; None: from its begin.
    """
    deadline = time.monotonic() + SEARCH_SECONDS
    search = BufferSearch()
    while True:
        query = RolloutQuery(after=after)
        listing = rollout_page(connection, buffer.info, query, ROLLOUTS_AT_ONCE)
        metas = episode_metas(connection, [row.number for row in listing.rollouts if row.number])
        with in_order(connection):
            reader = _ShortRollouts(connection, buffer, listing.rollouts)
            for row in listing.rollouts:
                steps = reader.steps(row)
                if steps is None or at is not None:
                    rollout = Rollout(row.task_id, row.number or None)
                    steps = steps_ahead(connection, buffer, rollout, at)
                meta = metas.get(row.number) if at is None else None
                hits, cut_at = _hits(steps if row.is_held else (), meta, words, search, deadline)
                at, search.at = None, cut_at
                # A rollout that was not searched to its end comes again.
                search.after = [row.first_seq, row.first_seq + (cut_at is not None)]
                search.n_rollouts += cut_at is None
                if hits:
                    has_more = cut_at is not None or len(hits) >= MOST_HITS
                    search.found.append(FoundRollout(row, hits, has_more))
                if time.monotonic() > deadline:
                    search.reached = row
                    return search
                if len(search.found) == MOST_FOUND:
                    return search
        if listing.after is None:
            search.after = None
            return search
        after = listing.after


class _ShortRollouts:
    """Reads the steps of the short episodes among some rollouts, many episodes at once."""

    def __init__(self, connection: Any, buffer: Any, rows: Sequence[ListedRollout]) -> None:
        self._connection, self._buffer = connection, buffer
        numbers = [
            row.number for row in rows if row.number and row.is_held and row.length <= STEPS_AT_ONCE
        ]
        keys_by_number = keys_of_episodes(connection, buffer, numbers) if numbers else {}
        self._keys = [key for number in numbers for key in keys_by_number[number]]
        self._place = {key.seq: place for place, key in enumerate(self._keys)}
        self._n_read, self._steps = 0, dict[int, BrowsedStep]()
        self._of_number = keys_by_number

    def steps(self, row: ListedRollout) -> Iterator[tuple[BrowsedStep, list[Turn]]] | None:
        """Return the steps of a rollout, with their new turns; None if it is not a short one."""
        keys = self._of_number.get(row.number)
        return None if keys is None else _with_turns_read(self, keys)

    def read(self, key: StepKey) -> BrowsedStep | None:
        """Return a step; None if it has left. The steps are asked for in their order."""
        while key.seq not in self._steps and self._n_read <= self._place[key.seq]:
            keys = self._keys[self._n_read : self._n_read + STEPS_OF_ROLLOUTS]
            without = [*self._buffer.layout.specs]
            steps, n_taken = read_steps(
                self._connection, self._buffer, keys, without=without, most_bytes=BYTES_OF_ROLLOUTS
            )
            self._steps |= {step.key.seq: step for step in steps}
            self._n_read += n_taken
        return self._steps.pop(key.seq, None)


def _with_turns_read(
    reader: _ShortRollouts, keys: Sequence[StepKey]
) -> Iterator[tuple[BrowsedStep, list[Turn]]]:
    transcript = Transcript()
    for key in keys:
        step = reader.read(key)
        if step is not None:
            yield from _with_turns([step], transcript)


def _hits(
    steps: Iterable[tuple[BrowsedStep, list[Turn]]],
    meta: str | None,
    words: Sequence[str],
    search: BufferSearch,
    deadline: float,
) -> tuple[list[Hit], StepKey | None]:
    """Return the hits of a rollout; and its last searched step, if the time ended before it did."""
    hits = _in_meta(meta, words)
    for step, turns in steps:
        search.n_steps += 1
        for hit in _in_step(step, turns, words):
            if all((hit.where, hit.excerpts) != (one.where, one.excerpts) for one in hits):
                hits.append(hit)
            if len(hits) == MOST_HITS:
                return hits, None
        if time.monotonic() > deadline:
            return hits, step.key
    return hits, None


def _in_meta(meta: str | None, words: Sequence[str]) -> list[Hit]:
    if meta is None or not _has_words(text := text_of(json.loads(meta)), words):
        return []
    return [_hit("meta", None, "episode", text, words)]


def _in_step(step: BrowsedStep, turns: Sequence[Turn], words: Sequence[str]) -> Iterator[Hit]:
    if step.row is None:
        return
    for turn in turns:
        text = "\n".join(filter(None, turn.said.texts))
        if _has_words(text, words):
            yield _hit(turn.said.role, step.key, turn.anchor, text, words)
    data = step.row.exp_data
    is_message = data.messages is None and isinstance(data.state, str)
    values = {"state": None if is_message else data.state, "extra": data.extra}
    is_turn = data.messages is not None or is_message or is_said(data.actions)
    if not is_turn or names_action(data.messages, data.actions):
        values["actions"] = data.actions
    for name, value in values.items():
        if value is not None and _has_words(text := text_of(value), words):
            yield _hit(name, step.key, f"s{step.key.seq}", text, words)


def _hit(where: str, key: StepKey | None, anchor: str, text: str, words: Sequence[str]) -> Hit:
    shown: list[str] = []
    for word in words:
        if not any(has_text(excerpt, word) for excerpt in shown):
            shown += excerpts(text, word, 1)
    together = " ".join(words)
    return Hit(where, key, anchor, shown, together if has_text(text, together) else words[0])


def _has_words(text: str, words: Sequence[str]) -> bool:
    return all(has_text(text, word) for word in words)


def text_of(value: Any) -> str:
    """Return the texts, numbers and keys of a value of JSON, one value a line; no arrays.

    Example:
        >>> print(text_of({"tool": "ls", "tries": [1, {"error": "timeout"}]}))
        tool: ls
        tries: 1
        error: timeout
    """
    lines: list[str] = []
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        key, item = waiting.pop()
        if isinstance(item, dict):
            waiting += [(safe_text(name), item[name]) for name in reversed(item)]
        elif isinstance(item, (list, tuple)):
            waiting += [
                (key if place == 0 else "", item[place]) for place in reversed(range(len(item)))
            ]
        elif isinstance(item, (str, int, float)):
            lines.append(f"{key}: {safe_text(item)}" if key else safe_text(item))
        elif key:
            lines.append(key)
    return "\n".join(lines)
