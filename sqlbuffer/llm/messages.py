"""Bring messages of any origin into one form, and join those of the steps of an episode."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

Message = dict[str, Any]

# Keys that a message keeps. Every message has the first two.
TEXT_KEYS = ("name", "tool_call_id", "reasoning_content", "thinking")
MESSAGE_KEYS = ("role", "content", *TEXT_KEYS, "tool_calls")
# Types of parts of content that are no text, in the APIs of OpenAI and Anthropic and in TRL.
_MEDIA = frozenset(
    f"{before}{medium}{after}"
    for medium in ("image", "audio", "video")
    for before in ("", "input_")
    for after in ("", "_url")
)
_ADDRESS = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w=.+-]+)*;base64,")
_MIME_KEYS = ("media_type", "mime_type", "mimeType")


def normal_message(value: Any) -> Message:
    """Return a message with a text as its content and the keys of `MESSAGE_KEYS` that it has.

    A text is a message of the user. Content that is not a text, such as a list of parts, becomes
    JSON, but parts that are all texts are joined by line breaks. Tool calls have the form of
    OpenAI's API, their arguments as JSON text; a `function_call` becomes one of them.

    Args:
        value: A dict with a `role`, or a text.

    Raises:
        ValueError: It is neither.

    Example:
        >>> normal_message({"role": "assistant", "content": [{"type": "text", "text": "Hi"}]})
        {'role': 'assistant', 'content': 'Hi'}
    """
    if isinstance(value, str):
        return {"role": "user", "content": value}
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ValueError(
            f"a message is a dict with a 'role', or a text, and not {_short_json(value)}"
        )
    message: Message = {"role": value["role"], "content": _text(value.get("content"))}
    for key in TEXT_KEYS:
        if value.get(key) is not None:
            message[key] = str(value[key])
    calls = list(value.get("tool_calls") or ())
    if not calls and value.get("function_call"):
        calls = [{"function": value["function_call"]}]
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    return message


def answer_messages(actions: Any) -> list[Message]:
    """Return the messages that an agent's actions stand for.

    Texts are joined to one message of the assistant. A message does not change. A dict with `name`
    and `arguments` is a tool call, and so are AWorld's actions (`policy_info`, `tool_name`,
    `action_name`, `params`). Any other value becomes JSON text.

    Args:
        actions: The actions of a step: None, a value, or a list of values.

    Example:
        >>> answer_messages(["42"])
        [{'role': 'assistant', 'content': '42'}]
    """
    values = actions if isinstance(actions, (list, tuple)) else [actions]
    values = [value for value in values if value is not None]
    if values and all(isinstance(value, dict) and "policy_info" in value for value in values):
        return [_aworld_answer(values)]
    answers: list[Message] = []
    said: list[str] = []
    calls: list[Any] = []
    for value in values:
        if _is_message(value):
            answers.append(normal_message(value))
        elif isinstance(value, dict) and {"name", "arguments"} <= value.keys():
            calls.append(_tool_call({"id": value.get("id"), "function": value}))
        else:
            said.append(_said(value))
    if said or calls:
        answer: Message = {"role": "assistant", "content": "\n".join(said)}
        answers.append({**answer, "tool_calls": calls} if calls else answer)
    return answers


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("text", "content"):
            if isinstance(value.get(key), str):
                return str(value[key])
    return _json(value)


def joined_messages(steps: Iterable[tuple[Any, Any]]) -> list[Message]:
    """Join the messages of the steps of an episode to one conversation.

    A step may hold the whole context up to it, or only the messages since the step before. Messages
    that the conversation has already are not repeated: those that it begins with, a system message
    that is its first, and those that it ends with. In a context that is given again, another text
    of the assistant, such as one without its reasoning, does not replace what it said.

    Args:
        steps: `messages` and `actions` of each step, in the order of the steps.

    Raises:
        ValueError: A value is not a message, or has an image, a sound, a video or an array, which
            would become a text that a trainer learns.

    Example:
        >>> joined_messages([(["2 + 2?"], ["4"]), (["2 + 2?", "Sure?"], ["Yes."])])[-1]["content"]
        'Yes.'
    """
    conversation: list[Message] = []
    for messages, actions in steps:
        new = [normal_message(message) for message in _listed(messages)]
        conversation = _extended(conversation, new)
        for message in _listed(messages):
            _check_said(message)
        # Numbers and other values of an agent without messages are not a conversation.
        if conversation or is_said(actions):
            for action in _listed(actions):
                _check_said(action)
            answers = answer_messages(actions)
            conversation += answers[_overlap(conversation, answers) :]
    return conversation


def prompt_length(messages: Sequence[Message]) -> int | None:
    """Return how many messages come before the first one of the assistant; None: it says nothing.

    Example:
        >>> prompt_length([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])
        1
    """
    roles = [message["role"] for message in messages]
    return roles.index("assistant") if "assistant" in roles else None


def _check_said(value: Any) -> None:
    """Raise ValueError if a message or an action has a medium that cannot be written as text."""
    if _is_message(value):
        value = value.get("content")
    elif isinstance(value, dict) and (
        "policy_info" in value or {"name", "arguments"} <= set(value)
    ):
        return  # a call of a tool: the agent has written all of it
    medium = None if isinstance(value, str) else _medium_in(value)
    if medium is not None:
        raise ValueError(
            f"{medium} in a message would become text, and a trainer would learn that text; choose "
            f"episodes without it by a condition, or export the steps with export_parquet"
        )


def _medium_in(content: Any) -> str | None:
    """Return what content has that is no text; None if it has none."""
    if isinstance(content, str):
        address = _ADDRESS.match(content)
        return f"data of the type {address[1] or 'text/plain'}" if address else None
    if isinstance(content, (bytes, bytearray, memoryview)):
        return "bytes"
    if hasattr(content, "dtype"):
        return f"an array of the shape {content.shape}" if content.shape else None
    if isinstance(content, (list, tuple)):
        return next(filter(None, map(_medium_in, content)), None)
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("type"), str) and content["type"] in _MEDIA:
        return f"a part of the type {content['type']!r}"
    for mime in map(content.get, _MIME_KEYS):
        if isinstance(mime, str) and not mime.startswith("text/") and not mime.endswith("json"):
            return f"data of the type {mime!r}"
    parts = (part for name, part in content.items() if name != "text")
    return next(filter(None, map(_medium_in, parts)), None)


def _listed(messages: Any) -> Sequence[Any]:
    if messages is None:
        return []
    return messages if isinstance(messages, (list, tuple)) else [messages]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def is_said(actions: Any) -> bool:
    """Return True if actions have a text, a message, or an action of AWorld."""
    values = actions if isinstance(actions, (list, tuple)) else [actions]
    return any(
        isinstance(value, str) or _is_message(value) or "policy_info" in value
        for value in values
        if isinstance(value, (str, dict))
    )


def _extended(conversation: list[Message], new: list[Message]) -> list[Message]:
    """Return a conversation with the messages of a step."""
    n = len(conversation)
    if len(new) >= n and _repeats(conversation, new[:n]):
        return [*map(_richer, conversation, new), *new[n:]]
    if conversation and new and new[0]["role"] == "system" and _is_same(new[0], conversation[0]):
        new = new[1:]
    n_known = _overlap(conversation, new)
    return conversation + new[n_known:]


def _overlap(conversation: list[Message], new: list[Message]) -> int:
    """Return how many messages at the end of a conversation are those that new ones begin with."""
    for n in range(min(len(conversation), len(new)), 0, -1):
        if _repeats(conversation[-n:], new[:n]):
            return n
    return 0


def _repeats(said: list[Message], given: list[Message]) -> bool:
    """Return True if given messages repeat earlier ones as context."""
    if all(map(_is_same, said, given)):
        return True
    # Answers may differ, next to a question that is the same.
    is_asked = any(message["role"] != "assistant" for message in said)
    return is_asked and all(map(_is_alike, said, given))


def _is_same(one: Message, other: Message) -> bool:
    # A tool call may look different in an agent's answer and in its context.
    return (one["role"], one["content"]) == (other["role"], other["content"])


def _is_alike(one: Message, other: Message) -> bool:
    return _is_same(one, other) or one["role"] == other["role"] == "assistant"


def _richer(said: Message, given: Message) -> Message:
    """Return what an agent said, with the tool calls that its context has of it."""
    if "tool_calls" in given and "tool_calls" not in said:
        return {**said, "tool_calls": given["tool_calls"]}
    return said


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(str(text) for text in texts)
    return _json(content)


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ValueError(
            f"a tool call is a dict with a 'function' of a name and arguments, and not "
            f"{_short_json(call)}"
        )
    identity = call.get("id")
    return {
        "id": None if identity is None else str(identity),
        "type": str(call.get("type", "function")),
        "function": {
            "name": str(function.get("name", "")),
            "arguments": _arguments(function.get("arguments")),
        },
    }


def _arguments(arguments: Any) -> str:
    return (
        arguments if isinstance(arguments, str) else _json({} if arguments is None else arguments)
    )


def _aworld_answer(actions: Sequence[dict[str, Any]]) -> Message:
    said = [str(action["policy_info"]) for action in actions if action["policy_info"]]
    message: Message = {"role": "assistant", "content": "\n".join(said)}
    calls = [action for action in actions if action.get("tool_name")]
    if calls:
        message["tool_calls"] = [
            {
                "id": None if call.get("tool_call_id") is None else str(call["tool_call_id"]),
                "type": "function",
                "function": {
                    "name": "__".join(
                        str(call[key]) for key in ("tool_name", "action_name") if call.get(key)
                    ),
                    "arguments": _arguments(call.get("params")),
                },
            }
            for call in calls
        ]
    return message


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _short_json(value: Any) -> str:
    text = _json(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
