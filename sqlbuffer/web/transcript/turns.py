"""The turns of a conversation, step by step."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlbuffer.web.transcript.repeats import is_among, n_repeated, n_same
from sqlbuffer.web.transcript.said_parts import Said, ToolCall, said_in_step
from sqlbuffer.web.transcript.shown_texts import ShownText, excerpts, has_text, shown_text

_RESULT_ROLES = ("tool", "function")
# Calls without a result that are looked at for the one that a result belongs to.
_OPEN_CALLS = 1_000


@dataclass(eq=False)
class ShownCall:
    """A tool call in a turn, with its results.

    Attributes:
        name: Name of the tool.
        arguments: Arguments of the call.
        results: Turns of the results.
        id: Id that its results name.
    """

    name: str
    arguments: ShownText
    results: list["Turn"]
    id: str | None = None


@dataclass(eq=False)
class Turn:
    """One message as a page shows it.

    Attributes:
        seq: Step that contains it.
        place: Position among the messages of that step, from 0; folded ones count.
        said: The message.
        text: Text of the message.
        reasoning: Reasoning before it.
        calls: Tool calls of the message.
        is_match: True if it contains the searched text.
        excerpts: Surroundings of matches after the shown part.
    """

    seq: int
    place: int
    said: Said
    text: ShownText
    reasoning: ShownText
    calls: list[ShownCall]
    is_match: bool = False
    excerpts: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """The id of its element in the page."""
        return f"m{self.seq}-{self.place}"


@dataclass
class StepTurns:
    """The new messages of a step.

    Attributes:
        turns: Its turns, without results that stand with their call.
        n_folded: Number of messages that repeat the conversation before.
    """

    turns: list[Turn]
    n_folded: int


class Transcript:
    """Reads the steps of an episode in order, and returns the new messages of each.

    Args:
        wanted: Text to search for; empty: none.

    Attributes:
        matches: Turns that contain it, in order.

    Example:
        >>> transcript = Transcript()
        >>> transcript.step(1, ["2 + 2?"], ["4"]).n_folded
        0
        >>> answer = {"role": "assistant", "content": "4"}
        >>> step = transcript.step(2, ["2 + 2?", answer, "Sure?"], ["Yes."])
        >>> step.n_folded, [turn.text.head for turn in step.turns]
        (2, ['Sure?', 'Yes.'])
    """

    def __init__(self, wanted: str = "") -> None:
        self._wanted = wanted
        self._said: list[Said] = []
        self._given: list[Said] = []
        self._turns: list[Turn | None] = []
        self._open_calls: list[ShownCall] = []
        self.matches: list[Turn] = []

    def context(self, messages: Any, actions: Any, state: Any = None) -> None:
        """Take a step that comes before those that are shown."""
        said = said_in_step(messages, actions, state)
        self._said, self._turns = said, [None] * len(said)
        self._given = [each for each in said if not each.is_answer]

    def step(self, seq: int, messages: Any, actions: Any, state: Any = None) -> StepTurns:
        """Return the new messages of a step.

        Args:
            seq: Number of the step.
            messages: Messages of the step.
            actions: Actions of the step.
            state: State of the step, if it is a text.
        """
        said = said_in_step(messages, actions, state)
        given = [each for each in said if not each.is_answer]
        n_context, n_aligned = n_repeated(self._said, given)
        # The agent's action may be written differently in its context, or be missing there.
        if (n_begun := n_same(self._given, given)) > n_context:
            n_context, n_aligned = n_begun, 0
        self._given = given
        self._enrich(given[n_context - n_aligned : n_context])
        turns = self._added(seq, n_context, given[n_context:])
        answers = said[len(given) :]
        n_answers, _ = n_repeated(self._said, answers)
        if is_among(answers, given[n_context:]):
            n_answers = len(answers)
        turns += self._added(seq, len(given) + n_answers, answers[n_answers:])
        return StepTurns(turns, n_context + n_answers)

    def _added(self, seq: int, place: int, said: Iterable[Said]) -> list[Turn]:
        shown = []
        for number, each in enumerate(said, place):
            turn = self._turn(seq, number, each)
            self._said.append(each)
            self._turns.append(turn)
            if turn.is_match:
                self.matches.append(turn)
            if not self._is_result(turn):
                shown.append(turn)
        return shown

    def _turn(self, seq: int, place: int, said: Said) -> Turn:
        calls = self._calls(said.calls)
        turn = Turn(seq, place, said, shown_text(said.text), shown_text(said.reasoning), calls)
        if self._wanted and any(has_text(text, self._wanted) for text in said.texts):
            turn.is_match = True
            if not has_text(turn.text.head + turn.reasoning.head, self._wanted):
                hidden = (said.text[len(turn.text.head) :], said.reasoning)
                turn.excerpts = [
                    found for text in hidden for found in excerpts(text, self._wanted)
                ][:3]
        return turn

    def _calls(self, calls: Iterable[ToolCall]) -> list[ShownCall]:
        made = [ShownCall(call.name, shown_text(call.arguments), [], call.id) for call in calls]
        self._open_calls = [*self._open_calls, *made][-_OPEN_CALLS:]
        return made

    def _is_result(self, turn: Turn) -> bool:
        """Return True if a turn is the result of a call that is shown, and stands with it now."""
        if turn.said.role not in _RESULT_ROLES:
            return False
        call = self._call_of(turn.said)
        if call is None:
            return False
        call.results.append(turn)
        self._open_calls.remove(call)
        return True

    def _call_of(self, said: Said) -> ShownCall | None:
        if said.answers is not None:
            return next((call for call in self._open_calls if call.id == said.answers), None)
        # Without an id: the next call of that tool, or the next one.
        named = (call for call in self._open_calls if said.name and call.name == said.name)
        return next(named, self._open_calls[0] if self._open_calls and not said.name else None)

    def _enrich(self, repeated: list[Said]) -> None:
        """Give turns the calls that only their context has of them."""
        first = len(self._said) - len(repeated)
        for i, said in enumerate(repeated, first):
            turn = self._turns[i]
            if said.calls and turn is not None and not turn.calls:
                turn.calls = self._calls(said.calls)
                turn.said = self._said[i] = replace(turn.said, calls=said.calls)


def whole_conversation(steps: Iterable[tuple[int, Any, Any, Any]]) -> list[Turn]:
    """Return the turns of a conversation, results of tools among them.

    Args:
        steps: `seq`, `messages`, `actions` and `state` of each step, in order.
    """
    transcript = Transcript()
    for step in steps:
        transcript.step(*step)
    return [turn for turn in transcript._turns if turn is not None]
