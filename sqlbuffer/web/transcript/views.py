"""The steps of a page as its template shows them, and differences of conversations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from sqlbuffer.display import brief
from sqlbuffer.web.step_arrays import SCALARS, arrays_of, is_image, pointer
from sqlbuffer.web.transcript.turns import Said, Transcript, Turn, first_line, printable

if TYPE_CHECKING:
    from sqlbuffer.steps import DataRow

# More than this many turns of a side are compared one by one from the beginning.
MOST_COMPARED_TURNS = 2_000
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
        if max(len(ours), len(theirs)) > MOST_COMPARED_TURNS:
            self._is_cut = True
        for is_same, a, b in _runs(ours, theirs, MOST_COMPARED_TURNS):
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


# A page ends within a step that has more than that.
MOST_TURNS, MOST_CHARS = 200, 1_000_000
MOST_COLUMNS = 12


@dataclass(frozen=True)
class ShownValue:
    """A value in short.

    Attributes:
        path: Where it is in the step; see `arrays_of`.
        text: The value in one line.
        is_image: An image of it can be shown.
    """

    path: str
    text: str
    is_image: bool = False


@dataclass
class StepView:
    """A step as a page shows it.

    Attributes:
        seq: Number of the step in the buffer.
        position: Position in the rollout.
        row: The step; None if it cannot be rebuilt.
        trouble: Reason why it cannot.
        turns: New turns of its conversation.
        n_folded: Number of messages that repeat the conversation before.
        values: Other values of the step.
        notes: Other data of the step; see `StepNotes`.
        priority: Priority of the step.
        next_turn: First turn that does not fit on the page; None if all fit.
    """

    seq: int
    position: int
    row: "DataRow | None"
    trouble: str | None = None
    turns: list[Turn] = field(default_factory=list)
    n_folded: int = 0
    values: list[ShownValue] = field(default_factory=list)
    notes: Any = None
    priority: float | None = None
    next_turn: int | None = None

    @property
    def images(self) -> list[ShownValue]:
        """Those of its values that are images."""
        return [value for value in self.values if value.is_image]


@dataclass
class StepsPage:
    """The steps of a page.

    Attributes:
        steps: The steps that fit.
        matches: Turns among them that contain the searched text.
        is_conversation: Any of them says something.
        columns: Paths of values, for a table of steps that say nothing.
        is_cut: Steps that were read do not fit.
    """

    steps: list[StepView]
    matches: list[Turn]
    is_conversation: bool
    columns: list[str]
    is_cut: bool

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """Those of reward, value and advantage that any step has, with their attributes."""
        return [
            (name, attribute)
            for name, attribute in SCALARS.items()
            if any(
                getattr(step.row.exp_data, attribute) is not None
                for step in self.steps
                if step.row is not None
            )
        ]

    @property
    def strips(self) -> list[str]:
        """The paths of values that are images."""
        return [*dict.fromkeys(value.path for step in self.steps for value in step.images)]


def steps_page(
    steps: Iterable[Any],
    notes: Mapping[int, Any],
    *,
    wanted: str = "",
    before: "DataRow | None" = None,
    first_turn: int = 0,
    images: Sequence[str] = (),
) -> StepsPage:
    """Return the view of a page of steps.

    Args:
        steps: `BrowsedStep`s, in order.
        notes: Other data of the steps, by their numbers.
        wanted: Text to search for; empty: none.
        before: Step before them, whose conversation they may repeat.
        first_turn: Number of the first turn to show of the first step.
        images: Typed fields that are images and were not read.
    """
    transcript = Transcript(wanted)
    if before is not None:
        transcript.context(*_said(before))
    views: list[StepView] = []
    room, chars, is_cut = MOST_TURNS, MOST_CHARS, False
    for step in steps:
        if room <= 0 or chars <= 0:
            is_cut = True
            break
        view = _view(step, transcript, images)
        view.notes = notes.get(view.seq)
        if view.notes is not None and view.notes.priority is not None:
            view.priority = view.notes.priority
        skipped = 0 if views else first_turn
        if skipped:
            view.n_folded = 0
        shown = view.turns[skipped : skipped + room]
        if skipped + len(shown) < len(view.turns):
            view.next_turn = skipped + len(shown)
        view.turns = shown
        room -= len(shown)
        chars -= sum(map(_n_chars, shown))
        views.append(view)
    matched = {id(turn) for view in views for turn in _with_results(view.turns)}
    return StepsPage(
        views,
        [turn for turn in transcript.matches if id(turn) in matched],
        any(view.turns or view.n_folded for view in views),
        _columns(views),
        is_cut,
    )


def _view(step: Any, transcript: Transcript, images: Sequence[str]) -> StepView:
    seq, position, row = step.key.seq, step.key.position, step.row
    if row is None:
        return StepView(seq, position, None, trouble=printable(step.trouble))
    said = transcript.step(seq, *_said(row))
    view = StepView(seq, position, row, None, said.turns, said.n_folded)
    view.priority = step.initial_priority
    view.values = [ShownValue(pointer(name), "image", True) for name in images]
    view.values += _values(row, is_conversation=bool(said.turns or said.n_folded))
    return view


def _values(row: "DataRow", *, is_conversation: bool) -> list[ShownValue]:
    """Return the values of a step that are not turns: numbers one by one, others as a whole."""
    data = row.exp_data
    found = [_shown(pointer(name), value) for name, value in row.fields.items()]
    for name in ("state", "actions", "messages", "extra"):
        value = getattr(data, name)
        is_said = name in ("actions", "messages") or isinstance(value, str)
        if value is None or (is_conversation and is_said):
            continue
        if isinstance(value, dict) and 0 < len(value) <= MOST_COLUMNS:
            found += [_shown(pointer(name, key), item) for key, item in value.items()]
        else:
            found.append(_shown(name, value))
    inside = [
        ShownValue(path, "image", True)
        for path, array in arrays_of(row).items()
        if is_image(array) and path not in {value.path for value in found}
    ]
    return found + inside


def _shown(path: str, value: Any) -> ShownValue:
    has_shape = hasattr(value, "dtype") and hasattr(value, "shape")
    try:
        return ShownValue(path, printable(brief(value)), has_shape and is_image(value))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ShownValue(path, f"<{type(value).__name__}>")


def _said(row: "DataRow") -> tuple[Any, Any, Any]:
    return row.exp_data.messages, row.exp_data.actions, row.exp_data.state


def _columns(views: Sequence[StepView]) -> list[str]:
    paths = dict.fromkeys(value.path for view in views for value in view.values)
    return [*paths][:MOST_COLUMNS]


def _with_results(turns: Iterable[Turn]) -> Iterable[Turn]:
    for turn in turns:
        yield turn
        for call in turn.calls:
            yield from call.results


def _n_chars(turn: Turn) -> int:
    texts = (turn.text, turn.reasoning, *(call.arguments for call in turn.calls))
    results = (result.text for call in turn.calls for result in call.results)
    return sum(len(text.head) + len(text.rest) for text in (*texts, *results))
