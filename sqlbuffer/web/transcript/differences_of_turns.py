"""The difference between two conversations: turn by turn, and line by line within a turn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal

from sqlbuffer.web.transcript.said_parts import Said
from sqlbuffer.web.transcript.shown_texts import first_line, printable

# More than this many turns of a side are compared one by one from the beginning.
MOST_TURNS = 2_000
# Lines of a turn that are compared, and lines that are compared in all.
MOST_LINES, MOST_LINES_IN_ALL = 1_000, 10_000
SHOWN_LINES = 400
CONTEXT_LINES = 2
LINE_CHARS = 2_000

LineKind = Literal["same", "left", "right", "skip"]


@dataclass(frozen=True)
class Line:
    """A line of a turn: of both sides or of one; `skip` stands for lines that are left out."""

    kind: LineKind
    text: str


@dataclass(frozen=True)
class DifferentTurn:
    """A turn of either conversation or of both.

    Attributes:
        kind: `same`, `changed` (both have one here), `left` or `right`.
        role: Role of the message; both roles if they differ.
        lines: Lines of the turn; for equal turns the beginning of the first one.
    """

    kind: Literal["same", "changed", "left", "right"]
    role: str
    lines: list[Line]


@dataclass(frozen=True)
class Difference:
    """The difference between two conversations.

    Attributes:
        turns: All turns of both, in order.
        n_same: Number of equal turns.
        is_cut: Some lines were left out, or compared as a whole.
    """

    turns: list[DifferentTurn]
    n_same: int
    is_cut: bool


def difference(left: Sequence[Said], right: Sequence[Said]) -> Difference:
    """Return the difference between two conversations.

    The cost is bounded: of long conversations and of long turns only the parts that are the same at
    both ends are found.

    Example:
        >>> found = difference([Said("user", "2 + 2?")], [Said("user", "2 + 3?")])
        >>> [(line.kind, line.text) for line in found.turns[0].lines]
        [('left', '2 + 2?'), ('right', '2 + 3?')]
    """
    return _Comparison().of(left, right)


class _Comparison:
    def __init__(self) -> None:
        self._lines_left = MOST_LINES_IN_ALL
        self._is_cut = False

    def of(self, left: Sequence[Said], right: Sequence[Said]) -> Difference:
        ours, theirs = [*map(_key, left)], [*map(_key, right)]
        turns: list[DifferentTurn] = []
        n_same = 0
        if max(len(ours), len(theirs)) > MOST_TURNS:
            self._is_cut = True
        for is_same, a, b in _runs(ours, theirs, MOST_TURNS):
            if is_same:
                turns += [self._same(left[i]) for i in a]
                n_same += len(a)
            else:
                turns += self._different([left[i] for i in a], [right[i] for i in b])
        return Difference(turns, n_same, self._is_cut)

    def _same(self, said: Said) -> DifferentTurn:
        return DifferentTurn("same", said.role, [Line("same", first_line(said.text))])

    def _different(self, left: Sequence[Said], right: Sequence[Said]) -> Iterator[DifferentTurn]:
        for one, other in zip_longest(left, right):
            if other is None:
                yield DifferentTurn("left", one.role, self._all("left", one))
            elif one is None:
                yield DifferentTurn("right", other.role, self._all("right", other))
            else:
                roles = dict.fromkeys((one.role, other.role))
                yield DifferentTurn("changed", " / ".join(roles), self._changed(one, other))

    def _all(self, kind: LineKind, said: Said) -> list[Line]:
        return self._shown([Line(kind, line) for line in _lines(said)])

    def _changed(self, one: Said, other: Said) -> list[Line]:
        ours, theirs = _lines(one), _lines(other)
        most = min(MOST_LINES, self._lines_left)
        self._lines_left -= min(max(len(ours), len(theirs)), most)
        found: list[Line] = []
        for is_same, a, b in _runs(ours, theirs, most):
            if is_same:
                found += _context([ours[i] for i in a])
            else:
                found += [Line("left", ours[i]) for i in a]
                found += [Line("right", theirs[i]) for i in b]
        return self._shown(found)

    def _shown(self, lines: list[Line]) -> list[Line]:
        if len(lines) > SHOWN_LINES:
            self._is_cut = True
            left_out = len(lines) - SHOWN_LINES
            lines = [*lines[:SHOWN_LINES], Line("skip", f"{left_out:,} more lines")]
        return [Line(line.kind, _cut(line.text)) for line in lines]


def _runs(
    ours: Sequence[object], theirs: Sequence[object], most: int
) -> Iterator[tuple[bool, range, range]]:
    """Yield runs of equal or different items, as ranges of both sides.

    Between the equal items at both ends, at most `most` items are compared.
    """
    n = min(len(ours), len(theirs))
    start = next((i for i in range(n) if ours[i] != theirs[i]), n)
    end = next((i for i in range(n - start) if ours[-1 - i] != theirs[-1 - i]), n - start)
    if start:
        yield True, range(start), range(start)
    a, b = range(start, len(ours) - end), range(start, len(theirs) - end)
    if max(len(a), len(b)) > most:
        yield False, a, b
    elif a or b:
        matcher = SequenceMatcher(None, [ours[i] for i in a], [theirs[i] for i in b], False)
        for tag, i, j, k, m in matcher.get_opcodes():
            yield tag == "equal", a[i:j], b[k:m]
    if end:
        yield True, range(len(ours) - end, len(ours)), range(len(theirs) - end, len(theirs))


def _key(said: Said) -> tuple[object, ...]:
    # Ids of calls differ between any two rollouts.
    return said.role, said.text, said.reasoning, *((c.name, c.arguments) for c in said.calls)


def _lines(said: Said) -> list[str]:
    thought = [f"(thinking) {line}" for line in said.reasoning.splitlines()]
    called = [
        line
        for call in said.calls
        for line in [f"→ {call.name}", *(f"  {line}" for line in call.arguments.splitlines())]
    ]
    return [*thought, *said.text.splitlines(), *called]


def _context(lines: Sequence[str]) -> list[Line]:
    """Return lines that are the same, those far from a difference left out."""
    if len(lines) <= 2 * CONTEXT_LINES + 1:
        return [Line("same", line) for line in lines]
    skipped = len(lines) - 2 * CONTEXT_LINES
    return [
        *(Line("same", line) for line in lines[:CONTEXT_LINES]),
        Line("skip", f"{skipped:,} lines are the same"),
        *(Line("same", line) for line in lines[-CONTEXT_LINES:]),
    ]


def _cut(text: str) -> str:
    more = len(text) - LINE_CHARS
    return printable(text[:LINE_CHARS]) + (f"… {more:,} more characters" if more > 0 else "")
