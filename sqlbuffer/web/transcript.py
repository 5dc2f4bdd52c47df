"""Conversations on pages: turns, step by step; differences; steps as their templates show them.

Nothing here reads a database. Any value is a message here: a page shows every value, also those
that `sqlbuffer.llm` refuses.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from sqlbuffer.llm.conversations import answer_messages, is_said, normal_message
from sqlbuffer.spaces import Spaces
from sqlbuffer.steps import PAYLOADS
from sqlbuffer.web.rendering import readable
from sqlbuffer.web.step_arrays import SCALARS, arrays_of, is_image, pointer
from sqlbuffer.web.step_values import ShownValue, ValueColumn, columns_of, shown_value

if TYPE_CHECKING:
    from sqlbuffer.steps import DataRow
    from sqlbuffer.storage.browsing.steps import FinalObservation


# A text that is not longer is shown in full.
SHOWN_LINES, SHOWN_CHARS = 24, 1_600
# Number of characters of a longer text that the page contains, folded. The rest has its own URL.
FOLDED_CHARS = 16_000
EXCERPT_CHARS = 160

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class ShownText:
    """A text as a page shows it.

    Attributes:
        head: Part that is shown immediately.
        rest: Lines after the head, shown on a click.
        n_chars: Characters of the whole text.
        n_lines: Lines of the whole text.
        is_cut: True if the text continues after the rest.
    """

    head: str
    rest: str
    n_chars: int
    n_lines: int
    is_cut: bool

    def __bool__(self) -> bool:
        return self.n_chars > 0


def printable(text: str) -> str:
    """Return a text without characters that a page cannot hold, or that would reorder it.

    Control characters become their pictures, and lone surrogates and marks of direction U+FFFD.

    Example:
        >>> printable("a\\0b")
        'a␀b'
    """
    return _UNPRINTABLE.sub(_picture, text)


def shown_text(
    text: str, lines: int = SHOWN_LINES, chars: int = SHOWN_CHARS, folded: int = FOLDED_CHARS
) -> ShownText:
    """Return what is shown of a text.

    Args:
        text: The text.
        lines: Number of lines of a longer text that are shown immediately.
        chars: Number of its characters that are shown immediately.
        folded: Number of its characters that are shown or folded.

    Example:
        >>> shown_text("one\\ntwo").head
        'one\\ntwo'
    """
    end = _head_end(text, lines, chars)
    stop = min(len(text), max(folded, end)) if end < len(text) else end
    return ShownText(
        printable(text[:end]), printable(text[end:stop]), len(text),
        text.count("\n") + 1 if text else 0, stop < len(text),
    )  # fmt: skip


def first_line(text: str, most: int = 120) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text[: 4 * most].split())
    return printable(line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}…")


def last_line(text: str, most: int = 120) -> str:
    """Return the end of a text on one line.

    Example:
        >>> last_line("It is long.\\nSo: 49", 9)
        '… So: 49'
    """
    line = " ".join(text[-4 * most :].split())
    if len(line) <= most and len(text) <= 4 * most:
        return printable(line)
    return printable(f"… {line[-most:].partition(' ')[2] or line[-most:]}")


def excerpts(text: str, sought: str, most: int = 3) -> list[str]:
    """Return the surroundings of the first places where a text has another, in any case."""
    parts = []
    for match in re.finditer(re.escape(sought), text, re.IGNORECASE):
        start, stop = max(match.start() - EXCERPT_CHARS, 0), match.end() + EXCERPT_CHARS
        parts.append(printable(text[start:stop]))
        if len(parts) == most:
            break
    return parts


def has_text(text: str, sought: str) -> bool:
    """Return True if a text has another, in any case."""
    return re.search(re.escape(sought), text, re.IGNORECASE) is not None


def pieces(text: str, *sought: str) -> list[tuple[str, bool]]:
    """Return a text in pieces, and which of them are what is looked for.

    Example:
        >>> pieces("To be", "be")
        [('To ', False), ('be', True)]
    """
    wanted = sorted(map(re.escape, filter(None, sought)), key=len, reverse=True)
    if not wanted:
        return [(text, False)]
    parts = re.split(f"({'|'.join(wanted)})", text, flags=re.IGNORECASE)
    return [(part, i % 2 == 1) for i, part in enumerate(parts) if part]


def _head_end(text: str, lines: int, chars: int) -> int:
    """Return the end of the part that is shown immediately; a few extra lines are shown too."""
    if len(text) <= chars * 5 // 4 and text.count("\n") < lines * 5 // 4:
        return len(text)
    end = 0
    for _ in range(lines):
        newline = text.find("\n", end, chars)
        if newline < 0:
            break
        end = newline + 1
    else:
        return end
    return chars if len(text) > chars else len(text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


# Longer arguments are shown as they are stored.
MOST_FORMATTED = 200_000
# A larger image would make a page slow.
MOST_IMAGE_CHARS = 1_000_000
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
_THOUGHT = re.compile(r"\s*<think(?:ing)?>(.*?)</think(?:ing)?>\s*", re.DOTALL)
_NAME = re.compile(r"[^\W\d][\w.:-]*")
_THINKING = {"thinking": "thinking", "reasoning": "text", "redacted_thinking": "data"}


@dataclass(frozen=True)
class ToolCall:
    """A tool call.

    Attributes:
        id: Id that its result names; None if it has none.
        name: Name of the tool.
        arguments: The arguments, as JSON with indents where they are JSON.
    """

    id: str | None
    name: str
    arguments: str


@dataclass(frozen=True)
class Said:
    """One message.

    Attributes:
        role: Role of the author.
        text: The text.
        name: Name of the author.
        reasoning: Reasoning before the text.
        calls: Tool calls.
        answers: The id of the call whose result it is.
        is_answer: True if it is the agent's action in the step, not its context.
        images: Images in it, as `data:` addresses.
        has_failed: It is marked as the result of a failure.
    """

    role: str
    text: str
    name: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None
    is_answer: bool = False
    images: tuple[str, ...] = ()
    has_failed: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """All that can be read of it."""
        called = (part for call in self.calls for part in (call.name, call.arguments))
        return (self.text, self.reasoning, self.name, *called)


def said_in_step(messages: Any, actions: Any, state: Any = None) -> list[Said]:
    """Return the messages of a step, followed by the agent's action.

    Args:
        messages: The messages of the step.
        actions: Actions of the step. Numbers and similar values are left out, unless there are
            messages.
        state: State of the step. A text counts as a message of the user if there are no messages.

    Example:
        >>> [said.role for said in said_in_step(["2 + 2?"], ["4"])]
        ['user', 'assistant']
    """
    if messages is None and isinstance(state, str):
        messages = state
    listed = messages if isinstance(messages, (list, tuple)) else [messages]
    spoken = [said for message in listed if message is not None for said in said_of(message)]
    if names_action(messages, actions):
        return spoken
    if spoken or is_said(actions):
        spoken += _answers(actions)
    return spoken


def names_action(messages: Any, actions: Any) -> bool:
    """Return True if the actions only name what the last message, of the assistant, did.

    Example:
        >>> names_action(["2 + 2?", {"role": "assistant", "content": "4"}], ["answer"])
        True
    """
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    values = actions if isinstance(actions, (list, tuple)) else [actions]
    return (
        _role(last) == "assistant"
        and bool(values)
        and all(isinstance(value, str) and _NAME.fullmatch(value) for value in values)
    )


def said_of(message: Any, *, is_answer: bool = False) -> Iterator[Said]:
    """Yield the parts of a message; results of tools inside it one by one."""
    role, parts = _role(message), _parts(message)
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    rest: list[Any] = []
    images: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _THINKING:
            thoughts.append(_text(part.get(_THINKING[kind])))
        elif kind == "tool_use":
            calls.append(_call(part.get("id"), part.get("name"), part.get("input")))
        elif kind == "tool_result":
            text, shown = _with_images(part.get("content"))
            answers, failed = _id(part.get("tool_use_id")), _is_failed(part)
            yield Said("tool", text, answers=answers, images=shown, has_failed=failed)
        elif image := _image(part):
            images.append(image)
        else:
            rest.append(part)
    if parts and not (rest or thoughts or calls or images):
        return
    if parts and len(rest) < len(parts):
        message = {**message, "content": rest}
    said = _said(role, message, thoughts, calls, is_answer)
    if images or _is_failed(message):
        said = replace(said, images=tuple(images), has_failed=_is_failed(message))
    yield said


def _said(
    role: str, message: Any, thoughts: list[str], calls: list[ToolCall], is_answer: bool
) -> Said:
    try:
        normal = normal_message(message)
    except (ValueError, TypeError, RecursionError):
        return Said(role, readable(message), is_answer=is_answer)
    text = normal["content"]
    thoughts += [normal[key] for key in ("reasoning_content", "thinking") if normal.get(key)]
    if role == "assistant" and (thought := _THOUGHT.match(text)):
        thoughts.append(thought[1].strip())
        text = text[thought.end() :]
    for call in normal.get("tool_calls", ()):
        function = call["function"]
        calls.append(_call(call["id"], function["name"], function["arguments"]))
    return Said(
        role, text, normal.get("name", ""), "\n\n".join(thoughts), tuple(calls),
        normal.get("tool_call_id"), is_answer,
    )  # fmt: skip


def _answers(actions: Any) -> list[Said]:
    try:
        answers: list[Any] = answer_messages(actions)
    except (ValueError, TypeError, KeyError, RecursionError):
        answers = [{"role": "assistant", "content": readable(actions)}]
    return [said for answer in answers for said in said_of(answer, is_answer=True)]


def _role(message: Any) -> str:
    if isinstance(message, str):
        return "user"
    role = message.get("role") if isinstance(message, dict) else None
    return role if isinstance(role, str) and role else "?"


def _is_failed(message: Any) -> bool:
    """Return True if the result of a tool is marked as failed."""
    return isinstance(message, dict) and (
        message.get("is_error") is True or message.get("status") == "error"
    )


def _parts(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    return list(content) if isinstance(content, (list, tuple)) else []


def _text(content: Any) -> str:
    """Return the text of a part; parts of texts are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(str(text) for text in texts)
    return readable(content)


def _with_images(content: Any) -> tuple[str, tuple[str, ...]]:
    """Return the text of the result of a tool, and its images."""
    parts = content if isinstance(content, (list, tuple)) else ()
    images = tuple(image for image in map(_image, parts) if image)
    if images:
        content = [part for part in parts if not _image(part)]
    return _text(content), images


def _image(part: Any) -> str | None:
    """Return the address of an image that a part contains; None if it has none to show."""
    if not isinstance(part, dict):
        return None
    kind, url = part.get("type"), None
    if kind in ("image_url", "input_image"):
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
    elif kind == "image" and isinstance(source := part.get("source"), dict):
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    if not isinstance(url, str) or len(url) > MOST_IMAGE_CHARS:
        return None
    return url if _IMAGE.fullmatch(url) else None


def _id(value: Any) -> str | None:
    return None if value is None else str(value)


def _call(identity: Any, name: Any, arguments: Any) -> ToolCall:
    if isinstance(arguments, str):
        arguments = _formatted(arguments)
    elif arguments is not None:
        arguments = readable(arguments)
    return ToolCall(_id(identity), "" if name is None else str(name), arguments or "")


def _formatted(text: str) -> str:
    if len(text) > MOST_FORMATTED:
        return text
    try:
        return readable(json.loads(text)) if text[:1] in "[{" else text
    except (ValueError, RecursionError):
        return text


_Token = tuple[str, int, int]


def n_repeated(conversation: Sequence[Said], new: Sequence[Said]) -> tuple[int, int]:
    """Return the number of messages at the beginning of a step that repeat the conversation so far.

    A step may contain the whole context up to it, a window of it, or only new messages. In a
    repeated context, the assistant's texts may differ from its answers, for example without its
    reasoning. The time is linear in the number of messages.

    Args:
        conversation: Messages before the step.
        new: Messages of the step.

    Returns:
        The number of repeated messages, and the number of these at the end of the conversation.
        They differ by one if a window begins with the system message.

    Example:
        >>> said = [Said("user", "2 + 2?"), Said("assistant", "4")]
        >>> n_repeated(said, [*said, Said("user", "Sure?")])
        (2, 2)
    """
    if not conversation or not new:
        return 0, 0
    ours, theirs = [*map(_token, conversation)], [*map(_token, new)]
    n = _overlap(ours, theirs)
    if n < len(ours) and theirs[0] == ours[0] and ours[0][0] == "system":
        n_behind = _overlap(ours, theirs[1:])
        if n_behind + 1 > n:
            return n_behind + 1, n_behind
    return n, n


def n_same(one: Sequence[Said], other: Sequence[Said]) -> int:
    """Return how many messages at the beginning of two lists are the same."""
    pairs = enumerate(zip(map(_token, one), map(_token, other), strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def is_among(answers: Sequence[Said], context: Sequence[Said]) -> bool:
    """Return True if the messages of a step already contain its action, in the same order."""
    tokens = iter([_token(said) for said in context if said.role == "assistant"])
    return bool(answers) and all(_token(said) in tokens for said in answers)


def _token(said: Said) -> _Token:
    # A tool call may look different in an agent's answer and in its context.
    return said.role, len(said.text), hash(said.text)


def _overlap(ours: Sequence[_Token], theirs: Sequence[_Token]) -> int:
    """Return how many messages at the end of a conversation are those that new ones begin with."""
    alike = _border([*map(_without_answers, theirs)], [*map(_without_answers, ours)])
    # Answers may differ, next to a question that is the same.
    if any(token[0] != "assistant" for token in theirs[:alike]):
        return alike
    return _border(theirs, ours)


def _without_answers(token: _Token) -> _Token:
    return ("assistant", 0, 0) if token[0] == "assistant" else token


def _border(head: Sequence[_Token], tail: Sequence[_Token]) -> int:
    """Return the length of the longest beginning of one list that is an end of the other (the
    prefix function of Knuth, Morris and Pratt).
    """
    text: list[_Token | None] = [*head, None, *tail[-len(head) :]] if head else []
    lengths = [0] * len(text)
    for i in range(1, len(text)):
        n = lengths[i - 1]
        while n and text[i] != text[n]:
            n = lengths[n - 1]
        lengths[i] = n + (text[i] == text[n])
    return lengths[-1] if lengths else 0


RESULT_ROLES = ("tool", "function")
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
        added: All its turns.
    """

    turns: list[Turn]
    n_folded: int
    added: list[Turn] = field(default_factory=list)


class Transcript:
    """Reads the steps of an episode in order, and returns the new messages of each.

    Args:
        sought: Text to search for; empty: none.

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

    def __init__(self, sought: str = "") -> None:
        self._sought = sought
        self._said: list[Said] = []
        self._context: list[Said] = []
        self._turns: list[Turn | None] = []
        self._open_calls: list[ShownCall] = []
        self.matches: list[Turn] = []

    def context(self, messages: Any, actions: Any, state: Any = None) -> None:
        """Take a step that comes before those that are shown."""
        said = said_in_step(messages, actions, state)
        self._said, self._turns = said, [None] * len(said)
        self._context = [message for message in said if not message.is_answer]

    def step(self, seq: int, messages: Any, actions: Any, state: Any = None) -> StepTurns:
        """Return the new messages of a step.

        Args:
            seq: Number of the step.
            messages: Messages of the step.
            actions: Actions of the step.
            state: State of the step, if it is a text.
        """
        said, n_before = said_in_step(messages, actions, state), len(self._turns)
        context = [message for message in said if not message.is_answer]
        n_context, n_aligned = n_repeated(self._said, context)
        # The agent's action may be written differently in its context, or be missing there.
        if (n_begun := n_same(self._context, context)) > n_context:
            n_context, n_aligned = n_begun, 0
        self._context = context
        self._enrich(context[n_context - n_aligned : n_context])
        turns = self._added(seq, n_context, context[n_context:])
        answers = said[len(context) :]
        n_answers, _ = n_repeated(self._said, answers)
        if is_among(answers, context[n_context:]):
            n_answers = len(answers)
        turns += self._added(seq, len(context) + n_answers, answers[n_answers:])
        added = [turn for turn in self._turns[n_before:] if turn is not None]
        return StepTurns(turns, n_context + n_answers, added)

    def _added(self, seq: int, place: int, said: Iterable[Said]) -> list[Turn]:
        shown = []
        for number, message in enumerate(said, place):
            turn = self._turn(seq, number, message)
            self._said.append(message)
            self._turns.append(turn)
            if turn.is_match:
                self.matches.append(turn)
            if not self._is_result(turn):
                shown.append(turn)
        return shown

    def _turn(self, seq: int, place: int, said: Said) -> Turn:
        calls = self._calls(said.calls)
        turn = Turn(seq, place, said, shown_text(said.text), shown_text(said.reasoning), calls)
        if self._sought and any(has_text(text, self._sought) for text in said.texts):
            turn.is_match = True
            if not has_text(turn.text.head + turn.reasoning.head, self._sought):
                hidden = (said.text[len(turn.text.head) :], said.reasoning)
                turn.excerpts = [
                    excerpt for text in hidden for excerpt in excerpts(text, self._sought)
                ][:3]
        return turn

    def _calls(self, calls: Iterable[ToolCall]) -> list[ShownCall]:
        shown_calls = [
            ShownCall(call.name, shown_text(call.arguments), [], call.id) for call in calls
        ]
        self._open_calls = [*self._open_calls, *shown_calls][-_OPEN_CALLS:]
        return shown_calls

    def _is_result(self, turn: Turn) -> bool:
        """Return True if a turn is the result of a call that is shown, and stands with it now."""
        if turn.said.role not in RESULT_ROLES:
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


# More than this many turns of a side are compared one by one from the beginning.
MOST_COMPARED_TURNS = 2_000
# Lines of a turn that are compared, and lines that are compared in all.
MOST_LINES, MOST_LINES_IN_ALL = 1_000, 10_000
DIFFERENCE_LINES = 400
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

    @property
    def sides(self) -> tuple[list[Line], list[Line]]:
        """The lines of the left and of the right turn; lines of both are in each."""
        if self.kind in ("left", "right"):
            return (self.lines, []) if self.kind == "left" else ([], self.lines)
        left = [line for line in self.lines if line.kind != "right"]
        right = [line for line in self.lines if line.kind != "left"]
        return left, right


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
        lines: list[Line] = []
        for is_same, a, b in _runs(ours, theirs, most):
            if is_same:
                lines += _context([ours[i] for i in a])
            else:
                lines += [Line("left", ours[i]) for i in a]
                lines += [Line("right", theirs[i]) for i in b]
        return self._shown(lines)

    def _shown(self, lines: list[Line]) -> list[Line]:
        if len(lines) > DIFFERENCE_LINES:
            self._is_cut = True
            left_out = len(lines) - DIFFERENCE_LINES
            lines = [*lines[:DIFFERENCE_LINES], Line("skip", f"{left_out:,} more lines")]
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
# Keys of a dict that are columns of their own.
MOST_KEYS = 12


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
        columns: The values, for a table of steps that say nothing.
        is_cut: Steps that were read do not fit.
        n_more_columns: Number of values that have no column.
        final: The observation after the last step, without a row; None: it is not on this page.
    """

    steps: list[StepView]
    matches: list[Turn]
    is_conversation: bool
    columns: list[ValueColumn]
    is_cut: bool
    n_more_columns: int = 0
    final: StepView | None = None

    @property
    def column_of(self) -> dict[str, ValueColumn]:
        """The columns by their paths."""
        return {column.path: column for column in self.columns}

    @property
    def has_bars(self) -> bool:
        """Any value has bars."""
        return any(value.has_bars for step in self.shown for value in step.values)

    @property
    def shown(self) -> list[StepView]:
        """The steps, and the final observation behind them."""
        return [*self.steps, *([] if self.final is None else [self.final])]

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

    def numbers_of(self, attribute: str) -> list[float | None]:
        """Return the reward, value or advantage of each step; None if it has none."""
        return [
            None if step.row is None else getattr(step.row.exp_data, attribute)
            for step in self.steps
        ]

    @property
    def strips(self) -> list[str]:
        """The paths of values that are images."""
        return [*dict.fromkeys(value.path for step in self.shown for value in step.images)]


def steps_page(
    steps: Iterable[Any],
    notes: Mapping[int, Any],
    *,
    sought: str = "",
    before: "DataRow | None" = None,
    first_turn: int = 0,
    images: Sequence[str] = (),
    final: "FinalObservation | None" = None,
    spaces: Spaces | None = None,
) -> StepsPage:
    """Return the view of a page of steps.

    Args:
        steps: `BrowsedStep`s, in order.
        notes: Other data of the steps, by their numbers.
        sought: Text to search for; empty: none.
        before: Step before them, whose conversation they may repeat.
        first_turn: Number of the first turn to show of the first step.
        images: Typed fields that are images and were not read.
        final: The observation after the last step of the page, which is that of the rollout.
        spaces: The spaces of the buffer.
    """
    transcript = Transcript(sought)
    if before is not None:
        transcript.context(*_conversation_values(before))
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
    matched = {id(turn) for view in views for turn in with_results(view.turns)}
    is_whole = not is_cut and (not views or views[-1].next_turn is None)
    last = _final_view(final) if final is not None and is_whole else None
    shown_views = [*views, *([] if last is None else [last])]
    columns, n_more = columns_of((v for view in shown_views for v in view.values), spaces)
    return StepsPage(
        views,
        [turn for turn in transcript.matches if id(turn) in matched],
        any(view.turns or view.n_folded for view in views),
        columns,
        is_cut,
        n_more,
        last,
    )


def _final_view(final: "FinalObservation") -> StepView:
    """Return the view of a final observation."""
    view = StepView(0, -1, None, printable(final.trouble or ""))
    view.values = [
        shown_value(pointer(name), value, printable) for name, value in final.values.items()
    ]
    return view


def _view(step: Any, transcript: Transcript, images: Sequence[str]) -> StepView:
    seq, position, row = step.key.seq, step.key.position, step.row
    if row is None:
        return StepView(seq, position, None, trouble=printable(step.trouble))
    said = transcript.step(seq, *_conversation_values(row))
    view = StepView(seq, position, row, None, said.turns, said.n_folded)
    view.priority = step.initial_priority
    view.values = [ShownValue(pointer(name), "image", True) for name in images]
    view.values += _values(row, is_conversation=bool(said.turns or said.n_folded))
    return view


def _values(row: "DataRow", *, is_conversation: bool) -> list[ShownValue]:
    """Return the values of a step that are not turns: numbers one by one, others as a whole."""
    data = row.exp_data
    values = [shown_value(pointer(name), value, printable) for name, value in row.fields.items()]
    for name in PAYLOADS:
        value = getattr(data, name)
        is_said = name in ("actions", "messages") or isinstance(value, str)
        if name == "actions" and names_action(data.messages, value):
            is_said = False
        if value is None or (is_conversation and (is_said or value == {})):
            continue
        if isinstance(value, dict) and 0 < len(value) <= MOST_KEYS:
            values += [
                shown_value(pointer(name, key), item, printable) for key, item in value.items()
            ]
        else:
            values.append(shown_value(name, value, printable))
    inside = [
        ShownValue(path, "image", True)
        for path, array in arrays_of(row).items()
        if is_image(array) and path not in {value.path for value in values}
    ]
    return values + inside


def _conversation_values(row: "DataRow") -> tuple[Any, Any, Any]:
    return row.exp_data.messages, row.exp_data.actions, row.exp_data.state


def with_results(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns, each followed by the results of its calls."""
    for turn in turns:
        yield turn
        for call in turn.calls:
            yield from call.results


def _n_chars(turn: Turn) -> int:
    texts = (turn.text, turn.reasoning, *(call.arguments for call in turn.calls))
    results = (result.text for call in turn.calls for result in call.results)
    return sum(len(text.head) + len(text.rest) for text in (*texts, *results))
