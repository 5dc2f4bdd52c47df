"""Rollouts of language models as conversations."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import orjson

from sqlbuffer.checks import checked_iterable, refused
from sqlbuffer.codec.decoder import decode
from sqlbuffer.errors import FieldError
from sqlbuffer.llm.images import image_text, is_image
from sqlbuffer.steps import DataRow, Experience, ExpMeta
from sqlbuffer.storage.scratch_lists import ScratchLists

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
    return _message(value, _text)


def _message(value: Any, content_of: Callable[[Any], Any]) -> Message:
    if isinstance(value, str):
        return {"role": "user", "content": value}
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ValueError(
            f"a message is a dict with a 'role', or a text, and not {_short_json(value)}"
        )
    message: Message = {"role": value["role"], "content": content_of(value.get("content"))}
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
    return _answers(actions, _text)


def _answers(actions: Any, content_of: Callable[[Any], Any]) -> list[Message]:
    values = actions if isinstance(actions, (list, tuple)) else [actions]
    values = [value for value in values if value is not None]
    if values and all(isinstance(value, dict) and "policy_info" in value for value in values):
        return [_aworld_answer(values)]
    answers: list[Message] = []
    said: list[str] = []
    calls: list[Any] = []
    for value in values:
        if _is_message(value):
            answers.append(_message(value, content_of))
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
    of the assistant, such as one without its reasoning, does not replace what it said. The content
    of a message with images is a list of parts: `{"type": "text", "text": ..}`, and
    `{"type": "image", "base64": ..}` with the file.

    Args:
        steps: `messages` and `actions` of each step, in the order of the steps.

    Raises:
        FieldError: The steps are no list of pairs.
        ValueError: A value is not a message, or has a sound, a video, an array or an image without
            its data, which would become a text that a trainer learns.

    Example:
        >>> joined_messages([(["2 + 2?"], ["4"]), (["2 + 2?", "Sure?"], ["Yes."])])[-1]["content"]
        'Yes.'
    """
    what = "a list of messages and actions of each step"
    listed = list(checked_iterable(steps, "steps", what, error=FieldError))
    if not all(isinstance(step, (list, tuple)) and len(step) == 2 for step in listed):
        raise refused(steps, "steps", what, FieldError)
    whole: list[Message] = []
    for _, conversation in grown_conversations(listed):
        whole = conversation
    return whole


def grown_conversations(steps: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, list[Message]]]:
    """Yield the conversation after each step, and how many messages it had before the actions.

    Args:
        steps: See `joined_messages`.

    Raises:
        ValueError: See `joined_messages`.
    """
    conversation: list[Message] = []
    for messages, actions in steps:
        new = [_message(message, _parts) for message in _listed(messages)]
        conversation = _extended(conversation, new)
        n_asked = len(conversation)
        # Numbers and other values of an agent without messages are not a conversation.
        if conversation or is_said(actions):
            for action in _listed(actions):
                _check_said(action)
            answers = _answers(actions, _parts)
            conversation += answers[_overlap(conversation, answers) :]
        yield n_asked, conversation


def prompt_length(messages: Sequence[Message]) -> int | None:
    """Return how many messages come before the first one of the assistant; None: it says nothing.

    Example:
        >>> prompt_length([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])
        1
    """
    roles = [message["role"] for message in messages]
    return roles.index("assistant") if "assistant" in roles else None


def _parts(content: Any) -> str | list[dict[str, str]]:
    """Return a content with images as parts, and any other as text."""
    parts = content if isinstance(content, (list, tuple)) else [content]
    are_images = [is_image(part) for part in parts]
    for part, is_one in zip(parts, are_images, strict=True):
        if not is_one:
            _check_medium(part, is_text=isinstance(content, str))
    if not any(are_images):
        return _text(content)
    return [
        {"type": "image", "base64": image_text(part)}
        if is_one
        else {"type": "text", "text": _text([part])}
        for part, is_one in zip(parts, are_images, strict=True)
    ]


def _check_said(value: Any) -> None:
    """Raise ValueError if an action has a medium that cannot be written as text."""
    is_call = isinstance(value, dict) and (
        "policy_info" in value or {"name", "arguments"} <= set(value)
    )
    # The agent has written all of a tool call. Messages are checked when they are made.
    if not is_call and not _is_message(value):
        _check_medium(value, is_text=isinstance(value, str))


def _check_medium(value: Any, *, is_text: bool) -> None:
    medium = None if is_text else _medium_in(value)
    if medium is not None:
        raise ValueError(
            f"{medium} in a message would become text, and a trainer would learn that text; choose "
            f"episodes without it by a condition, or export the steps with export_parquet"
        )


def _medium_in(content: Any) -> str | None:
    """Return a description of the first part of a content that is not text; None if all is."""
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


def _repeats(said: list[Message], messages: list[Message]) -> bool:
    if all(map(_is_same, said, messages)):
        return True
    # Answers may differ, next to a question that is the same.
    is_asked = any(message["role"] != "assistant" for message in said)
    return is_asked and all(map(_is_alike, said, messages))


def _is_same(one: Message, other: Message) -> bool:
    # A tool call may look different in an agent's answer and in its context.
    return (one["role"], one["content"]) == (other["role"], other["content"])


def _is_alike(one: Message, other: Message) -> bool:
    return _is_same(one, other) or one["role"] == other["role"] == "assistant"


def _richer(said: Message, message: Message) -> Message:
    """Return a message of an agent, with the tool calls that only its repetition has."""
    if "tool_calls" in message and "tool_calls" not in said:
        return {**said, "tool_calls": message["tool_calls"]}
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


# Task and episode of a step, or task and agent where there is no episode.
EpisodeKey = tuple[str, str | None, str | None]
_N_KEYS = 10
# Length of a step in the form of `packed`.
N_PACKED = 7


class RolloutStep(NamedTuple):
    """A step of a rollout: its keys, reward and flags, JSON texts, and the bytes of their arrays.

    Example:
        >>> step = RolloutStep("sums", "a", None, 0, None, None, 1, messages='["?"]')
        >>> RolloutStep.unpacked(step.packed()).row().exp_data.messages
        ['?']
    """

    task_id: str
    agent_id: str
    episode_id: str | None
    step: int
    model_version: int | None
    session_id: str | None
    seq: int | None
    t: int | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    reward: float | None = None
    state: str | None = None
    actions: str | None = None
    messages: str | None = None
    extra: str | None = None
    arrays: bytes | None = None

    @property
    def key(self) -> EpisodeKey:
        """The episode that it belongs to."""
        return key_of(self.task_id, self.agent_id, self.episode_id)

    def row(self) -> DataRow:
        """Return it with its values decoded, without typed fields."""
        meta = ExpMeta(
            self.task_id, agent_id=self.agent_id, step=self.step, episode_id=self.episode_id,
            model_version=self.model_version, session_id=self.session_id,
        )  # fmt: skip
        data = Experience(
            state=decode(self.state, self.arrays), actions=decode(self.actions, self.arrays),
            messages=decode(self.messages, self.arrays), extra=decode(self.extra, self.arrays),
            reward_t=self.reward, terminated=self.terminated, truncated=self.truncated,
        )  # fmt: skip
        return DataRow(meta, data, id="", seq=self.seq)

    def packed(self) -> tuple[Any, ...]:
        """Return it as values of `ScratchLists`."""
        reward = str(self.reward) if self.reward is not None else None  # it may be NaN
        return (orjson.dumps(self[:_N_KEYS]), reward, *self[_N_KEYS + 1 :])

    @classmethod
    def unpacked(cls, values: Sequence[Any]) -> "RolloutStep":
        """Return the step that was packed."""
        keys, reward, *others = values
        number = None if reward is None else float(reward)
        return cls._make((*orjson.loads(keys), number, *others))


def key_of(task_id: str, agent_id: str, episode_id: str | None) -> EpisodeKey:
    """Return the key of an episode, or of the steps of an agent in a task without episodes."""
    return (task_id, agent_id, None) if episode_id is None else (task_id, None, episode_id)


@dataclass(frozen=True)
class Conversation:
    """An episode of a language model.

    Attributes:
        task_id: Task of the episode.
        agent_id: Agent of the first step.
        episode_id: Id of the episode; None for steps of a task and agent without an episode.
        messages: Messages of the episode; see `sqlbuffer.llm.joined_messages`.
        reward: The episode's own reward, or else the sum of its steps' rewards; None if there is
            neither.
        status: `complete`, `aborted`, or `open`: the episode has not ended.
        stop_reason: `stop_reason` or `finish_reason` of the last step's `extra`, or else
            `terminated` or `truncated`, or else the status.
        n_steps: Number of steps.
        model_version: Version of the model that acted in its first step.
        session_id: Training session of its first step.
        group_id: Group of the episode.
        parent_id: Id of the episode that it came from.
        tools: `tools` of the episode's meta as JSON text; None if it has none.
        values: Further values; see `conversation`.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> data = Experience(messages=["2 + 2?"], actions=["4"], reward_t=1.0, terminated=True)
        >>> conversation([DataRow(ExpMeta("sums"), data)]).stop_reason
        'terminated'
    """

    task_id: str
    agent_id: str
    episode_id: str | None
    messages: list[Message]
    reward: float | None
    status: str
    stop_reason: str
    n_steps: int
    model_version: int | None
    session_id: str | None
    group_id: str | None = None
    parent_id: str | None = None
    tools: str | None = None
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def has_images(self) -> bool:
        """Whether a message has an image."""
        return any(map(has_images, self.messages))


def has_images(message: Message) -> bool:
    """Return True if a message of a conversation has an image."""
    return not isinstance(message["content"], str)


def conversation(
    rows: Sequence[DataRow],
    episode_reward: float | None = None,
    status: str = "open",
    *,
    meta: Mapping[str, Any] | None = None,
    group_id: str | None = None,
    parent_id: str | None = None,
    sources: Iterable[str] = (),
) -> Conversation:
    """Return the conversation of an episode.

    Args:
        rows: Its steps in their order, at least one.
        episode_reward: The episode's own reward.
        status: Status of the episode.
        meta: The episode's meta.
        group_id: Group of the episode.
        parent_id: Id of the episode that it came from.
        sources: Paths of further values: `meta`, `meta.key`, `extra` and `extra.key` (of the last
            step), with more keys after further dots.

    Raises:
        FieldError: A step holds something that is not a message; the text names the episode.
    """
    keys, last = rows[0].exp_meta, rows[-1].exp_data
    rewards = [row.exp_data.reward_t for row in rows if row.exp_data.reward_t is not None]
    total = float(sum(rewards)) if rewards else None
    roots = {"meta": meta, "extra": last.extra}
    return Conversation(
        keys.task_id, keys.agent_id, keys.episode_id, messages_of(rows, keep_images=True),
        total if episode_reward is None else episode_reward, status, _stop_reason(last, status),
        len(rows), keys.model_version, keys.session_id, group_id, parent_id,
        _tools(meta),
        {path: _plain(_value_at(roots, path.split("."))) for path in sources},
    )  # fmt: skip


def _tools(meta: Mapping[str, Any] | None) -> str | None:
    """Return the tools of an episode as the JSON text of a list."""
    tools = (meta or {}).get("tools")
    if isinstance(tools, str):
        try:
            tools = orjson.loads(tools)
        except orjson.JSONDecodeError:
            tools = [tools]
    if not tools:
        return None
    return _json(tools if isinstance(tools, list) else [tools])


def _value_at(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _plain(value: Any) -> Any:
    """Return a value of JSON: arrays as lists, and others as text."""
    if isinstance(value, float | int | str | bool | None):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode has ended.

    Attributes:
        reward: Its own reward, if it has one.
        last_seq: Number of its last step; None if it has not ended.
        status: See `Conversation`.
        meta: Its meta.
        group_id: Its group.
        parent_id: Id of the episode that it came from.
    """

    reward: float | None
    last_seq: int | None
    status: str
    meta: dict[str, Any] | None = None
    group_id: str | None = None
    parent_id: str | None = None


@dataclass
class _Open:
    """A conversation that has begun: steps of the current batch, and whether there are others."""

    end: EpisodeOutcome | None
    last_step: int | None = None
    is_parked: bool = False
    steps: list[RolloutStep] = field(default_factory=list)


class ConversationAssembler:
    """Collects steps that come in insert order until their episodes have ended.

    The steps of an episode are put in its order. Until its last one has come they wait in a
    temporary file, which is removed when the `with` block ends. Steps without an episode are one
    until a flag ends it, or until the number of the step does not rise.

    Args:
        end_of: Function that returns how an episode has ended; None for an open one.
        sources: See `conversation`.

    Example:
        >>> keys = ("sums", "a", None, 0, None, None, 1)
        >>> step = RolloutStep(*keys, reward=0.5, terminated=True, messages='["?"]')
        >>> with ConversationAssembler() as assembler:
        ...     [done.n_steps for done in assembler.add([step])]
        [1]
    """

    def __init__(
        self,
        end_of: Callable[[EpisodeKey], EpisodeOutcome | None] = lambda _: None,
        sources: Iterable[str] = (),
    ) -> None:
        self._end_of, self._sources = end_of, tuple(sources)
        self._open: dict[EpisodeKey, _Open] = {}
        self._parked = ScratchLists(N_PACKED)

    def __enter__(self) -> "ConversationAssembler":
        return self

    def __exit__(self, *_: object) -> None:
        self._parked.close()

    def add(self, steps: Iterable[RolloutStep]) -> Iterator[Conversation]:
        """Take steps; yield the conversations that they end."""
        for step in steps:
            key = step.key
            known = self._opened(key)
            if key[2] is None and known.last_step is not None and step.step <= known.last_step:
                yield self._done(key, "complete")
                known = self._opened(key)
            known.steps.append(step)
            known.last_step = step.step
            if key[2] is None and (step.terminated or step.truncated):
                yield self._done(key, "complete")
            elif known.end is not None and known.end.last_seq == step.seq is not None:
                yield self._done(key, known.end.status)
        for key, known in self._open.items():
            for step in known.steps:
                self._parked.append(key, step.packed())
        self._open.clear()

    def rest(self) -> Iterator[Conversation]:
        """Yield the conversations that have not ended, in the order in which they began."""
        for parked_key in self._parked:
            key = cast(EpisodeKey, parked_key)
            opened = self._open[key] = _Open(self._end_of(key), is_parked=True)
            status = "open" if opened.end is None else opened.end.status
            yield self._done(key, "complete" if key[2] is None else status)

    def _opened(self, key: EpisodeKey) -> _Open:
        if key not in self._open:
            opened = self._open[key] = _Open(self._end_of(key))
            last = self._parked.last(key)
            if last is not None:
                opened.is_parked, opened.last_step = True, RolloutStep.unpacked(last).step
        return self._open[key]

    def _done(self, key: EpisodeKey, status: str) -> Conversation:
        opened = self._open.pop(key)
        parked = self._parked.pop(key) if opened.is_parked else []
        steps = [*map(RolloutStep.unpacked, parked), *opened.steps]
        if key[2] is not None:
            steps.sort(key=lambda step: -1 if step.t is None else step.t)
        end = opened.end or EpisodeOutcome(None, None, status)
        return conversation(
            [step.row() for step in steps], end.reward, status, meta=end.meta,
            group_id=end.group_id, parent_id=end.parent_id, sources=self._sources,
        )  # fmt: skip


def messages_of(rows: Sequence[DataRow], *, keep_images: bool = False) -> list[Message]:
    """Return the messages of the steps of an episode, as one conversation.

    Args:
        rows: The steps.
        keep_images: The content of a message may be parts with images; see `joined_messages`.
            False: an image is an error.

    Raises:
        FieldError: A step holds something that is not a message; the text names the episode.
    """
    with _naming(rows[0]):
        said = joined_messages([(_asked_in(row), row.exp_data.actions) for row in rows])
        if not keep_images and any(map(has_images, said)):
            raise ValueError(
                "an image in a message would become text, and a trainer would learn that text; "
                "choose episodes without it by a condition"
            )
        return said


class Answer(NamedTuple):
    """What an agent said in a step, and the messages that it was given before.

    Attributes:
        place: Place of the step.
        asked: The whole context.
        said: Messages of the assistant.
    """

    place: int
    asked: list[Message]
    said: list[Message]


def answers_of(rows: Sequence[DataRow]) -> list[Answer]:
    """Return what the agents said in the steps of an episode, each in its own context.

    A step may hold the whole context of its agent, or only the messages since the agent's step
    before. One that begins with a system message again, and then goes on otherwise, is a whole
    context too: it was compacted. What a step has as its actions is said there. Without actions,
    each of its messages of the assistant is said.

    Raises:
        FieldError: A step holds something that is not a message; the text names the episode.
    """
    answers: list[Answer] = []
    known: dict[str, list[Message]] = {}  # of each agent
    for place, row in enumerate(rows):
        agent_id = row.exp_meta.agent_id
        with _naming(row):
            context, n_before = _context(known.get(agent_id, []), row)
            said = answer_messages(row.exp_data.actions) if is_said(row.exp_data.actions) else []
        if said:
            n_asked = len(context) - _overlap(context, said)
            answers.append(Answer(place, context[:n_asked], said))
            context = context[:n_asked] + said
        else:
            answers += [
                Answer(place, context[:i], context[i : i + 1])
                for i in range(n_before, len(context))
                if context[i]["role"] == "assistant"
            ]
        known[agent_id] = context
    return answers


def _context(before: list[Message], row: DataRow) -> tuple[list[Message], int]:
    """Return the context of a step, and how many of its messages are known from steps before."""
    new = [normal_message(message) for message in _listed(_asked_in(row))]
    repeats = len(new) >= len(before) and _repeats(before, new[: len(before)])
    if before and new and new[0]["role"] == "system" and not repeats:
        return new, 0
    return _extended(before, new), len(before)


@contextmanager
def _naming(row: DataRow) -> Iterator[None]:
    """Name the episode of a step in the error of a value that is not a message."""
    try:
        yield
    except ValueError as error:
        meta = row.exp_meta
        raise FieldError(f"task {meta.task_id!r}, episode {meta.episode_id!r}: {error}") from error


def _asked_in(row: DataRow) -> Any:
    """Return the messages of a step; a text as its state is a message of the user."""
    data = row.exp_data
    if data.messages is None and isinstance(data.state, str):
        return data.state
    return data.messages


def _stop_reason(last: Experience, status: str) -> str:
    extra = last.extra or {}
    for key in ("stop_reason", "finish_reason"):
        if extra.get(key) is not None:
            return str(extra[key])
    if last.terminated:
        return "terminated"
    return "truncated" if last.truncated else status


def messages_row(conversation: Conversation) -> dict[str, Any] | str:
    """Return a row of a language modelling data set: `messages` and `tools`.

    Returns:
        The row, or else why there is none.

    Example:
        >>> row = Conversation("t", "a", None, [], 1.0, "complete", "terminated", 1, None, None)
        >>> messages_row(row)
        'no messages'
    """
    messages = conversation.messages
    return {"messages": messages, "tools": conversation.tools} if messages else "no messages"


def prompt_completion_row(conversation: Conversation) -> dict[str, Any] | str:
    """Return a row of a prompt-completion data set: `prompt`, `completion` and `tools`.

    The prompt is what comes before the first message of the assistant.

    Returns:
        The row, or else why there is none.
    """
    messages = conversation.messages
    if not messages:
        return "no messages"
    n_prompt = prompt_length(messages)
    if n_prompt is None:
        return "no answer of the assistant"
    if n_prompt == 0:
        return "no prompt"
    return {
        "prompt": messages[:n_prompt],
        "completion": messages[n_prompt:],
        "tools": conversation.tools,
    }


def preference_row(chosen: Conversation, rejected: Conversation) -> dict[str, Any] | str:
    """Return a row of a preference data set: `prompt`, `chosen`, `rejected`, rewards and `tools`.

    Returns:
        The row, or else why there is none.
    """
    better, worse = prompt_completion_row(chosen), prompt_completion_row(rejected)
    if isinstance(better, str):
        return better
    if isinstance(worse, str):
        return worse
    if better["prompt"] != worse["prompt"]:
        return "prompts differ"
    if better["tools"] != worse["tools"]:
        return "tools differ"
    if better["completion"] == worse["completion"]:
        return "answers are equal"
    # A column `images` has those of both: the ones of the prompt.
    if any(map(has_images, [*better["completion"], *worse["completion"]])):
        return "an image after the prompt"
    return {
        "prompt": better["prompt"],
        "chosen": better["completion"],
        "rejected": worse["completion"],
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
        "tools": better["tools"],
    }


class PreferencePairs:
    """Pairs the best with the worst rollout of each task.

    Only tasks with two rewards that differ by more than `min_margin` have a pair. Among equal best
    or worst rollouts, the first counts. The choice, and conversations that wait for the other one
    of their pair, are in temporary files, which are removed when the `with` block ends.

    Args:
        rollouts: Number, task and reward of each; NaN for one that may not be in a pair.
        min_margin: Rewards of a pair differ by more than this.

    Attributes:
        n_pairs: Number of pairs.
        skipped: Number of tasks without a row, by reason.

    Example:
        >>> with PreferencePairs([(0, "t", 0.0), (1, "t", 1.0), (2, "t", 0.5)]) as pairs:
        ...     pairs.n_pairs
        1
    """

    def __init__(self, rollouts: Iterable[tuple[int, str, float]], min_margin: float = 0.0) -> None:
        self.n_pairs = 0
        self.skipped: Counter[str] = Counter()
        # By its number: the other rollout of a pair, and whether this one is the best.
        self._partners, self._waiting = ScratchLists(2), ScratchLists(1)
        with ScratchLists(4) as chosen:
            for number, task, reward in rollouts:
                _choose(chosen, number, task, reward)
            for key in chosen:
                ((best, most, worst, least),) = chosen.pop(key)
                if best < 0:
                    self.skipped["no ended episode with a reward"] += 1
                elif most - least > min_margin:
                    self.n_pairs += 1
                    self._partners.append((best,), (worst, True))
                    self._partners.append((worst,), (best, False))
                else:
                    self.skipped["rewards do not differ enough"] += 1

    def __enter__(self) -> "PreferencePairs":
        return self

    def __exit__(self, *_: object) -> None:
        self._partners.close()
        self._waiting.close()

    def rows(
        self, conversations: Iterable[Conversation]
    ) -> Iterator[tuple[dict[str, Any], Conversation, Conversation]]:
        """Yield the row of each pair as soon as both conversations are there, and the two.

        Pairs that `preference_row` makes no row of are counted in `skipped`.

        Args:
            conversations: Those of all rollouts, in the order of their numbers.
        """
        for number, conversation in enumerate(conversations):
            pair = self._partners.last((number,))
            if pair is None:
                continue
            partner, is_best = pair
            waiting = self._waiting.pop((partner,))
            if not waiting:
                self._waiting.append((number,), (json.dumps(vars(conversation)),))
                continue
            partner_conversation = Conversation(**json.loads(waiting[0][0]))
            both = (conversation, partner_conversation)
            chosen, rejected = both if is_best else both[::-1]
            row = preference_row(chosen, rejected)
            if isinstance(row, str):
                self.skipped[row] += 1
            else:
                yield row, chosen, rejected


def _choose(chosen: ScratchLists, number: int, task: str, reward: float) -> None:
    """Note a rollout if it is the best or the worst of its task so far."""
    known = chosen.last((task,))
    if math.isnan(reward):
        if known is None:
            chosen.append((task,), (-1, 0.0, -1, 0.0))
        return
    rest = known if known is not None and known[0] >= 0 else (number, reward, number, reward)
    best, most, worst, least = rest
    if reward > most:
        best, most = number, reward
    if reward < least:
        worst, least = number, reward
    choice = (best, most, worst, least)
    if choice != known:
        chosen.pop((task,))
        chosen.append((task,), choice)
