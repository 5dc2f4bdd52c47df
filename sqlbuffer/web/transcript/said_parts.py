"""The parts of one message: its text, its reasoning, its tool calls, or the result of one.

Any value is a message here: a page shows every value, also those that `sqlbuffer.llm` refuses.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlbuffer.llm.messages import answer_messages, is_said, normal_message
from sqlbuffer.web.readable_values import readable

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
