"""The turns of a conversation, step by step. Nothing here reads a database.

Any value is a message here: a page shows every value, also those that `sqlbuffer.llm` refuses.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlbuffer.llm import answer_messages, is_said, normal_message
from sqlbuffer.web.rendering import readable

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


def shown_text(text: str) -> ShownText:
    """Return what is shown of a text.

    Example:
        >>> shown_text("one\\ntwo").head
        'one\\ntwo'
    """
    end = _head_end(text)
    stop = min(len(text), FOLDED_CHARS) if end < len(text) else end
    return ShownText(
        printable(text[:end]), printable(text[end:stop]), len(text),
        text.count("\n") + 1 if text else 0, stop < len(text),
    )  # fmt: skip


def first_line(text: str, most: int = 120) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text[: 4 * most].split())
    return printable(line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}…")


def excerpts(text: str, wanted: str, most: int = 3) -> list[str]:
    """Return the surroundings of the first places where a text has another, in any case."""
    found = []
    for match in re.finditer(re.escape(wanted), text, re.IGNORECASE):
        start, stop = max(match.start() - EXCERPT_CHARS, 0), match.end() + EXCERPT_CHARS
        found.append(printable(text[start:stop]))
        if len(found) == most:
            break
    return found


def has_text(text: str, wanted: str) -> bool:
    """Return True if a text has another, in any case."""
    return re.search(re.escape(wanted), text, re.IGNORECASE) is not None


def pieces(text: str, wanted: str) -> list[tuple[str, bool]]:
    """Return a text in pieces, and which of them are what is looked for.

    Example:
        >>> pieces("To be", "be")
        [('To ', False), ('be', True)]
    """
    if not wanted:
        return [(text, False)]
    parts = re.split(f"({re.escape(wanted)})", text, flags=re.IGNORECASE)
    return [(part, i % 2 == 1) for i, part in enumerate(parts) if part]


def _head_end(text: str) -> int:
    """Return the end of the part that is shown immediately; a few extra lines are shown too."""
    if len(text) <= SHOWN_CHARS * 5 // 4 and text.count("\n") < SHOWN_LINES * 5 // 4:
        return len(text)
    end = 0
    for _ in range(SHOWN_LINES):
        found = text.find("\n", end, SHOWN_CHARS)
        if found < 0:
            break
        end = found + 1
    else:
        return end
    return SHOWN_CHARS if len(text) > SHOWN_CHARS else len(text)


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
    """

    role: str
    text: str
    name: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None
    is_answer: bool = False
    images: tuple[str, ...] = ()

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
    found = [said for message in listed if message is not None for said in said_of(message)]
    if found or is_said(actions):
        found += _answers(actions)
    return found


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
            yield Said("tool", text, answers=_id(part.get("tool_use_id")), images=shown)
        elif image := _image(part):
            images.append(image)
        else:
            rest.append(part)
    if parts and not (rest or thoughts or calls or images):
        return
    if parts and len(rest) < len(parts):
        message = {**message, "content": rest}
    said = _said(role, message, thoughts, calls, is_answer)
    yield replace(said, images=tuple(images)) if images else said


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
    kind, found = part.get("type"), None
    if kind in ("image_url", "input_image"):
        found = part.get("image_url")
        found = found.get("url") if isinstance(found, dict) else found
    elif kind == "image" and isinstance(source := part.get("source"), dict):
        found = f"data:{source.get('media_type')};base64,{source.get('data')}"
    if not isinstance(found, str) or len(found) > MOST_IMAGE_CHARS:
        return None
    return found if _IMAGE.fullmatch(found) else None


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


def is_among(answers: Sequence[Said], given: Sequence[Said]) -> bool:
    """Return True if the messages of a step already contain its action, in the same order."""
    tokens = iter([_token(said) for said in given if said.role == "assistant"])
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
