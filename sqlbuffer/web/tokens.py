"""Tokens of a rollout as a page shows them. Nothing here reads a database."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.llm.tokens import rollouts
from sqlbuffer.web.transcript import printable

if TYPE_CHECKING:
    from sqlbuffer.steps import DataRow

TOKENS_A_PAGE = 2_000
TOKEN_CHARS = 40
COLORS = {"logprob": "log-probability", "mask": "loss mask", "version": "version"}
# Fields without which there is no token to show.
ID_FIELDS = ("prompt_ids", "completion_ids")
# Names in `extra` of the texts of tokens, one for each id.
TEXTS = {"prompt_ids": ("prompt_tokens",), "completion_ids": ("completion_tokens", "tokens")}
# From the least surprising token to the most surprising one.
_BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0)
_MOST_VERSIONS = 6
_WRONG = (FieldError, ValueError, TypeError)


@dataclass(frozen=True)
class ShownToken:
    """A token as a page shows it.

    Attributes:
        place: Place in its sequence, from 0.
        id: Its id, as text.
        text: Its text, or else its id.
        logprob: Log-probability; None where none is stored.
        mask: True if a loss may count it, False if it was masked; None in a prompt.
        version: Version of the model that sampled it.
        tint: Class of its color.
    """

    place: int
    id: str
    text: str
    logprob: float | None
    mask: bool | None
    version: int | None
    tint: str

    @property
    def role(self) -> str:
        """What a loss does with it."""
        return "prompt" if self.mask is None else "in the loss" if self.mask else "masked"

    @property
    def numbers(self) -> str:
        """All numbers of it, in words."""
        parts = [f"place {self.place:,}", f"id {self.id}"]
        if self.logprob is not None:
            parts.append(f"log-probability {self.logprob:.4g}")
        parts.append(self.role)
        if self.version is not None:
            parts.append(f"version {self.version:,}")
        return ", ".join(parts)


@dataclass(frozen=True)
class _Run:
    """Consecutive tokens of a field of a step, and the place of the first one in a sequence."""

    index: int
    row: "DataRow"
    field: str
    start: int
    stop: int
    place: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class ShownRun:
    """Tokens of a prompt or of a completion, as far as they are on a page.

    Attributes:
        sequence: Number of the sequence, from 0.
        index: Number of the step among those of the page, from 0.
        is_sampled: True for a completion.
        n_tokens: Tokens of the whole run.
        tokens: Those on the page.
        has_texts: The tokens have texts; else their ids are shown.
    """

    sequence: int
    index: int
    is_sampled: bool
    n_tokens: int
    tokens: list[ShownToken]
    has_texts: bool


@dataclass(frozen=True)
class SequenceFacts:
    """One sequence in short.

    Attributes:
        number: Its number, from 0.
        indices: Numbers of its steps among those of the page.
        n_tokens: Number of its tokens.
        n_sampled: Number of those that a loss may count.
        mean_logprob: Mean of the log-probabilities of these; None without any.
    """

    number: int
    indices: list[int]
    n_tokens: int
    n_sampled: int
    mean_logprob: float | None


@dataclass(frozen=True)
class TokensPage:
    """A page of tokens.

    Attributes:
        runs: Prompts and completions on the page.
        sequences: All sequences.
        legend: Classes of colors and their meaning.
        notes: Reasons why turns are not put together to sequences.
        earlier: Place where the page before begins; None on the first page.
        later: Place where the next page begins; None on the last page.
    """

    runs: list[ShownRun]
    sequences: list[SequenceFacts]
    legend: list[tuple[str, str]]
    notes: list[str]
    earlier: tuple[int, int] | None
    later: tuple[int, int] | None


def has_tokens(specs: Mapping[str, Any]) -> bool:
    """Return True if steps with these typed fields have token ids."""
    return any(name in specs for name in ID_FIELDS)


def tokens_page(
    rows: Sequence["DataRow"], color: str = "logprob", start: tuple[int, int] = (0, 0)
) -> TokensPage:
    """Return a page of the tokens of steps of one rollout.

    Turns are put together to sequences as `sqlbuffer.llm.Rollout.sequences` does it. A rollout that
    it refuses, such as one without prompts, is shown turn by turn.

    Args:
        rows: The steps, in their order.
        color: What the color shows, one of `COLORS`.
        start: Number of the sequence and place in it of the first token of the page.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> tokens = {"prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.5]}
        >>> page = tokens_page([DataRow(ExpMeta("sums"), Experience(), fields=tokens)])
        >>> [[token.numbers for token in run.tokens] for run in page.runs][1]
        ['place 2, id 3, log-probability -0.5, in the loss']
    """
    sequences, notes = _sequences(rows)
    bins = _version_bins(rows)
    runs: list[ShownRun] = []
    room, later = TOKENS_A_PAGE, None
    for number, sequence in list(enumerate(sequences))[start[0] :]:
        begin = start[1] if number == start[0] else 0
        for run in sequence:
            skipped = min(max(begin - run.place, 0), len(run))
            n = min(len(run) - skipped, room)
            if n:
                runs.append(_shown(run, number, skipped, n, color, bins))
                room -= n
            if skipped + n < len(run) and later is None:
                later = (number, run.place + skipped + n)
    return TokensPage(
        runs,
        [_facts(number, sequence) for number, sequence in enumerate(sequences)],
        list(_legend(color, bins)),
        notes,
        _earlier([sum(map(len, sequence)) for sequence in sequences], start),
        later,
    )


def _earlier(lengths: Sequence[int], start: tuple[int, int]) -> tuple[int, int] | None:
    """Return the place that is a page before another one."""
    number, place = min(start[0], len(lengths)), start[1]
    if number < len(lengths):
        place = min(place, lengths[number])
    elif not (number and sum(lengths)):
        return None
    else:
        place = 0
    if sum(lengths[:number]) + place == 0:
        return None
    back = TOKENS_A_PAGE
    while place < back and number:
        back -= place
        number -= 1
        place = lengths[number]
    return number, max(place - back, 0)


def _sequences(rows: Sequence["DataRow"]) -> tuple[list[list[_Run]], list[str]]:
    """Return the runs of each sequence, and the reasons why turns are on their own."""
    index_of = {id(row): index for index, row in enumerate(rows)}
    sequences: list[list[_Run]] = []
    notes: list[str] = []
    for rollout in rollouts([rows]):
        of_rollout = [(index_of[id(row)], row) for row in rollout.turns]
        try:
            if any(_n_ids(row, "completion_ids") for row in rollout.turns):
                turns = [[of_rollout[place] for place in s.turns] for s in rollout.sequences]
                sequences += [_joined(sequence) for sequence in turns]
                continue
        except _WRONG as error:
            notes.append(str(error).partition(";")[0])
        alone = (_joined([turn]) for turn in of_rollout)
        sequences += [sequence for sequence in alone if sequence]
    return sequences, notes


def _joined(turns: Sequence[tuple[int, "DataRow"]]) -> list[_Run]:
    """Return the runs of turns of which each begins with the one before."""
    runs: list[_Run] = []
    end = 0
    for index, row in turns:
        n_asked, n_sampled = (_n_ids(row, name) for name in ID_FIELDS)
        if n_asked > end:
            runs.append(_Run(index, row, "prompt_ids", end, n_asked, end))
            end = n_asked
        if n_sampled:
            runs.append(_Run(index, row, "completion_ids", 0, n_sampled, end))
            end += n_sampled
    return runs


def _n_ids(row: "DataRow", name: str) -> int:
    return int(_flat(row.fields.get(name)).size)


def _flat(value: Any) -> NDArray[Any]:
    return np.asarray([] if value is None else value).reshape(-1)


def _aligned(run: _Run, name: str) -> NDArray[Any] | None:
    """Return values of the tokens of a completion; None where there are none."""
    values = _flat(run.row.fields.get(name))
    return values if run.field == "completion_ids" and values.size == len(run) else None


def _mask(run: _Run) -> NDArray[np.bool_] | None:
    if run.field != "completion_ids":
        return None
    mask = _aligned(run, "loss_mask")
    return np.ones(len(run), np.bool_) if mask is None else mask.astype(np.bool_)


def _texts(run: _Run) -> list[str] | None:
    """Return the texts of the tokens of the whole field; None if `extra` has none of them."""
    extra = run.row.exp_data.extra
    if not isinstance(extra, dict):
        return None
    n = _n_ids(run.row, run.field)
    for name in TEXTS[run.field]:
        texts: Any = extra.get(name)
        is_listed = isinstance(texts, (list, tuple)) and len(texts) == n
        if is_listed and all(isinstance(text, str) for text in texts):
            return list(texts)
    return None


def _shown(
    run: _Run, number: int, skipped: int, n: int, color: str, bins: Sequence[tuple[int, int]]
) -> ShownRun:
    texts, mask, logprobs = _texts(run), _mask(run), _aligned(run, "logprobs")
    ids, version = _flat(run.row.fields.get(run.field)), run.row.exp_meta.model_version
    tokens = []
    for i in range(skipped, skipped + n):
        logprob = None if logprobs is None else float(logprobs[i])
        logprob = None if logprob is None or np.isnan(logprob) else logprob
        counted = None if mask is None else bool(mask[i])
        sampled_by = version if counted else None
        identity = str(ids[run.start + i])
        text = identity if texts is None else _short(texts[run.start + i])
        tint = _tint(color, logprob, counted, sampled_by, bins)
        place = run.place + i
        tokens.append(ShownToken(place, identity, text, logprob, counted, sampled_by, tint))
    is_sampled = run.field == "completion_ids"
    return ShownRun(number, run.index, is_sampled, len(run), tokens, texts is not None)


def _short(text: str) -> str:
    """Return the text of a token, its line breaks and tabs visible."""
    cut = text if len(text) <= TOKEN_CHARS else f"{text[:TOKEN_CHARS]}…"
    return printable(cut).replace("\n", "↵\n").replace("\t", "⇥\t") or "∅"


def _facts(number: int, runs: Sequence[_Run]) -> SequenceFacts:
    sampled: list[NDArray[Any]] = []
    n_sampled = 0
    for run in runs:
        mask, logprobs = _mask(run), _aligned(run, "logprobs")
        n_sampled += 0 if mask is None else int(mask.sum())
        if mask is not None and logprobs is not None:
            sampled.append(logprobs[mask].astype(np.float64))
    values = np.concatenate(sampled) if sampled else np.empty(0)
    values = values[~np.isnan(values)]
    return SequenceFacts(
        number,
        [*dict.fromkeys(run.index for run in runs)],
        sum(map(len, runs)),
        n_sampled,
        float(values.mean()) if values.size else None,
    )


def _tint(
    color: str,
    logprob: float | None,
    mask: bool | None,
    version: int | None,
    bins: Sequence[tuple[int, int]],
) -> str:
    if color == "mask":
        return "t-none" if mask is None else "t-on" if mask else "t-off"
    if color == "version":
        places = (i for i, (_, last) in enumerate(bins) if version is not None and version <= last)
        place = next(places, None)
        return "t-none" if place is None else f"t-v{place}"
    if logprob is None or mask is None:
        return "t-none"
    return f"t-p{sum(-logprob > bound for bound in _BOUNDS)}"


def _version_bins(rows: Sequence["DataRow"]) -> list[tuple[int, int]]:
    """Return the first and the last version of each color, from the oldest one on."""
    versions = {row.exp_meta.model_version for row in rows}
    known = sorted(version for version in versions if version is not None)
    parts = np.array_split(np.array(known, object), min(len(known), _MOST_VERSIONS) or 1)
    return [(int(part[0]), int(part[-1])) for part in parts if len(part)]


def _legend(color: str, bins: Sequence[tuple[int, int]]) -> Iterator[tuple[str, str]]:
    if color == "mask":
        yield "t-on", "in the loss"
        yield "t-off", "sampled and masked"
        yield "t-none", "prompt"
        return
    if color == "version":
        for place, (first, last) in enumerate(bins):
            yield f"t-v{place}", f"{first:,}" if first == last else f"{first:,} to {last:,}"
        yield "t-none", "not in the loss, or no version"
        return
    edges = [f"-{bound:g}" for bound in _BOUNDS]
    yield "t-p0", f"from {edges[0]} on"
    for place, (upper, lower) in enumerate(pairwise(edges), 1):
        yield f"t-p{place}", f"{lower} to {upper}"
    yield f"t-p{len(_BOUNDS)}", f"below {edges[-1]}"
    yield "t-none", "prompt, or none stored"
