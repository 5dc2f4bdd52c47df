"""The steps of a page as its template shows them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlbuffer.display.brief_values import brief
from sqlbuffer.web.step_arrays.step_values import SCALARS, arrays_of, is_image, pointer
from sqlbuffer.web.transcript.shown_texts import printable
from sqlbuffer.web.transcript.turns import Transcript, Turn

if TYPE_CHECKING:
    from sqlbuffer.steps.data_rows import DataRow

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
