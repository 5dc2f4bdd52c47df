"""Trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor, from and to episodes.

ATIF v1.7: https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md
"""

import base64
import binascii
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_flag, checked_path
from sqlbuffer.codec.decoder import decode
from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.display import shown, shown_size
from sqlbuffer.errors import ArgumentError, FieldError, FileImportError, InsufficientDataError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
from sqlbuffer.interchange.output import (
    MANIFEST,
    ImportCounts,
    ImportIds,
    ImportReport,
    OutputFolder,
    counted,
)
from sqlbuffer.interchange.streams import BufferStream
from sqlbuffer.llm.conversations import Message, grown_conversations
from sqlbuffer.steps import DataRow
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.scratch_lists import ScratchLists

VERSION = "ATIF-v1.7"
Document = dict[str, Any]
# Lists of metrics that have a field of their own where the buffer declares it.
TOKEN_FIELDS = {
    "prompt_token_ids": "prompt_ids",
    "completion_token_ids": "completion_ids",
    "logprobs": "logprobs",
}
_SOURCES = ("system", "user", "agent")
_MOST_KEY_BYTES = 200  # of a name: ids of sub-agents have those of their parents before
_OWN = "sqlbuffer"  # key in `extra` of a document that `export_atif` made
_FORMAT = 1
_MOST_VALUES = 65_536  # of a field in one step; larger arrays are left out
# Keys in `extra` of a step, for values that no field holds.
_METRICS, _FIELDS = "atif_metrics", "atif_fields"


@dataclass
class Step:
    """A step of an episode, as `ReplayBuffer.store_episode` takes it in columns."""

    messages: list[Message] | None = None
    actions: Any = None
    extra: dict[str, Any] | None = None
    state: Any = None
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    model_version: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: DataRow) -> "Step":
        """Return the step of a row."""
        data = row.exp_data
        return cls(
            data.messages, data.actions, data.extra, data.state, data.reward_t, data.terminated,
            data.truncated, row.exp_meta.model_version, row.fields,
        )  # fmt: skip


@dataclass
class Trajectory:
    """An episode that was or becomes a document of ATIF."""

    episode_id: str
    agent_id: str
    steps: list[Step]
    meta: dict[str, Any] = field(default_factory=dict)
    task_id: str | None = None
    group_id: str | None = None
    parent_id: str | None = None
    reward: float | None = None
    session_id: str | None = None
    children: "list[Trajectory]" = field(default_factory=list)
    # Another id, where the first one belongs to another trajectory of the same run.
    other_id: str | None = None


# Documents to episodes


def checked_document(document: Any, place: str = "") -> None:
    """Raise FileImportError unless a document is a trajectory; the message names the place.

    Keys that ATIF does not have are kept, and so are values that no part of an episode needs.
    """
    _expect(isinstance(document, dict), place, "a JSON object with a trajectory", document)
    version = document.get("schema_version")
    is_known = isinstance(version, str) and version.startswith("ATIF-v1.")
    _expect(is_known, f"{place}schema_version", f"a version such as {VERSION!r}", version)
    agent = document.get("agent")
    _expect(isinstance(agent, dict), f"{place}agent", "an object with a name", agent)
    _expect(isinstance(agent.get("name"), str), f"{place}agent.name", "text", agent.get("name"))
    for name in ("session_id", "trajectory_id"):
        value = document.get(name)
        _expect(value is None or isinstance(value, str), f"{place}{name}", "text", value)
    steps = document.get("steps")
    is_list = isinstance(steps, list) and bool(steps)
    _expect(is_list, f"{place}steps", "a list of at least one step", steps)
    for i, step in enumerate(steps):
        _check_step(step, f"{place}steps[{i}]")
    children = _checked_list(document, "subagent_trajectories", f"{place}subagent_trajectories")
    for i, child in enumerate(children):
        checked_document(child, f"{place}subagent_trajectories[{i}].")


def _expect(is_right: bool, place: str, what: str, value: Any) -> None:
    if not is_right:
        name = place.rstrip(".") or "the document"
        raise FileImportError(f"{name}: expected {what}, got {shown(value)}")


def _checked_list(tree: Document, name: str, place: str) -> list[Any]:
    value = tree.get(name)
    _expect(value is None or isinstance(value, list), place, "a list", value)
    return value or []


def _check_step(step: Any, place: str) -> None:
    _expect(isinstance(step, dict), place, "an object", step)
    source, said = step.get("source"), step.get("message")
    _expect(source in _SOURCES, f"{place}.source", f"one of {', '.join(_SOURCES)}", source)
    is_said = isinstance(said, (str, list))
    _expect(is_said, f"{place}.message", "text or a list of parts", said)
    for j, call in enumerate(_checked_list(step, "tool_calls", f"{place}.tool_calls")):
        here = f"{place}.tool_calls[{j}]"
        _expect(isinstance(call, dict), here, "an object", call)
        for name in ("tool_call_id", "function_name"):
            _expect(isinstance(call.get(name), str), f"{here}.{name}", "text", call.get(name))
        given = call.get("arguments")
        _expect(isinstance(given, dict), f"{here}.arguments", "an object", given)
    seen = step.get("observation")
    _expect(seen is None or isinstance(seen, dict), f"{place}.observation", "an object", seen)
    here = f"{place}.observation.results"
    for j, result in enumerate(_checked_list(seen or {}, "results", here)):
        _expect(isinstance(result, dict), f"{here}[{j}]", "an object", result)


def trajectory_of(document: Document, fields: Iterable[str] = ()) -> Trajectory:
    """Return the episode of a document, with those of its sub-agents.

    Args:
        document: It passes `checked_document`.
        fields: Typed fields that the buffer declares.
    """
    declared = set(fields)
    names = {key: name for key, name in TOKEN_FIELDS.items() if name in declared}
    own = _own_of(document)
    trajectory = None
    if own is not None:
        trajectory = _restored(document, own, names, declared)
        if trajectory is not None and _native(trajectory) != document:
            trajectory = None  # it was edited since
    return trajectory or _foreign(document, names)


def _foreign(
    document: Document,
    names: Mapping[str, str],
    parent: Trajectory | None = None,
    index: int = 0,
) -> Trajectory:
    kept = {k: v for k, v in document.items() if k not in ("steps", "subagent_trajectories")}
    meta: dict[str, Any] = {}
    agent = document["agent"]
    if isinstance(agent.get("tool_definitions"), list):
        meta["tools"] = agent["tool_definitions"]
        kept["agent"] = {k: v for k, v in agent.items() if k != "tool_definitions"}
    atif: dict[str, Any] = {"root": kept}
    if parent is not None:
        atif["index"] = index
    if "subagent_trajectories" in document:
        subagents = document["subagent_trajectories"]
        atif["subagents"] = None if subagents is None else len(subagents)
    meta["atif"] = atif
    digest = hashlib.sha256(
        json.dumps(document, sort_keys=True, ensure_ascii=False, default=str).encode(
            "utf-8", "surrogatepass"
        )
    ).hexdigest()
    # Names of sub-agents hold within their parent, and a run may have several trajectories.
    name, run = (_key(document.get(key)) for key in ("trajectory_id", "session_id"))
    if parent is not None:
        run = str(index)
    made = f"atif-{digest[:16]}"
    trajectory = Trajectory(
        name or run or made, _key(agent["name"]) or "default",
        _steps_of(document["steps"], names), meta,
        other_id=None if name and parent is None else f"{name or run}-{digest[:16]}",
    )  # fmt: skip
    for i, child in enumerate(document.get("subagent_trajectories") or ()):
        trajectory.children.append(_foreign(child, names, trajectory, i))
    if _document([*trajectory.steps], meta, trajectory.children) != document:
        # A document of an odd form is kept whole.
        atif["document"] = document
    return trajectory


def _key(text: str | None) -> str | None:
    """Return a text that can be a key of a buffer; None: it cannot."""
    if not text or not is_storable_text(text) or len(text.encode()) > _MOST_KEY_BYTES:
        return None
    return text


def _steps_of(steps: Sequence[Document], names: Mapping[str, str]) -> list[Step]:
    """Return a step for each of the agent, with the messages since the one before.

    What a message does not have is in `extra["atif"]`: of the answer, of its calls and of the
    messages.
    """
    made: list[Step] = []
    messages: list[Message] = []
    rests: list[Document] = []
    for number, step in enumerate(steps, 1):
        rest = {k: v for k, v in step.items() if k not in ("source", "message")}
        if "step_id" not in rest:
            rest["-"] = True
        elif type(rest["step_id"]) is int and rest["step_id"] == number:
            del rest["step_id"]
        if step["source"] != "agent":
            messages.append({"role": step["source"], "content": step["message"]})
            rests.append(rest)
            continue
        answer, calls = _answer_of(step, rest)
        results = _taken_results(rest)
        fields = _tokens(rest, names)
        atif = {"agent": rest, "calls": calls, "messages": rests if any(rests) else None}
        made.append(_step_of(messages, [answer], atif, fields))
        messages, rests = [], []
        for result in results:
            message, other = _tool_message(result)
            messages.append(message)
            rests.append(other)
    if messages:
        atif = {"messages": rests if any(rests) else None}
        made.append(_step_of(messages, None, atif, {name: [] for name in names.values()}))
    return made


def _step_of(
    messages: list[Message],
    actions: list[Message] | None,
    atif: Document,
    fields: dict[str, Any],
) -> Step:
    kept = {name: value for name, value in atif.items() if value}
    return Step(messages or None, actions, {"atif": kept} if kept else None, fields=fields)


def _answer_of(step: Document, rest: Document) -> tuple[Message, list[Document]]:
    """Return the answer of the agent, and what its calls do not have; both leave the rest."""
    answer: Message = {"role": "assistant", "content": step["message"]}
    if isinstance(rest.get("reasoning_content"), str):
        answer["reasoning_content"] = rest.pop("reasoning_content")
    calls = rest.pop("tool_calls") if rest.get("tool_calls") else []
    if calls:
        answer["tool_calls"] = [
            {
                "id": call["tool_call_id"],
                "type": "function",
                "function": {"name": call["function_name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    known = ("tool_call_id", "function_name", "arguments")
    others = [{k: v for k, v in call.items() if k not in known} for call in calls]
    return answer, others if any(others) else []


def _taken_results(rest: Document) -> list[Document]:
    """Return the results of an observation, which leave the rest."""
    results: list[Document] = (rest.get("observation") or {}).get("results") or []
    if results:
        others = {k: v for k, v in rest.pop("observation").items() if k != "results"}
        if others:
            rest["observation"] = others
    return results


def _tool_message(result: Document) -> tuple[Message, Document]:
    message: Message = {"role": "tool"}
    for key, name in _RESULT_KEYS.items():
        if key in result:
            message[name] = result[key]
    return message, {k: v for k, v in result.items() if k not in _RESULT_KEYS}


_RESULT_KEYS = {"source_call_id": "tool_call_id", "content": "content"}


def _tokens(rest: Document, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of typed fields, and leave in the metrics what they do not hold."""
    metrics = rest.get("metrics")
    values: dict[str, Any] = {name: [] for name in names.values()}
    if not isinstance(metrics, dict):
        return values
    metrics = dict(metrics)
    for key, name in names.items():
        given = metrics.get(key)
        if not isinstance(given, list) or not given:
            continue
        kinds = (int, float) if name == "logprobs" else (int,)
        if all(type(value) in kinds for value in given):
            values[name] = given
            if _listed(name, given) == given:
                del metrics[key]
    rest["metrics"] = metrics
    return values


def _listed(name: str, values: Any) -> list[Any]:
    """Return the values of a field as a document has them."""
    if name != "logprobs":
        return [int(value) for value in values]
    # The shortest text of a float32, such as -0.1.
    return [float(str(value)) for value in np.asarray(values, np.float32)]


# Episodes to documents


def document_of(trajectory: Trajectory) -> Document | None:
    """Return the document of an episode; None if it has no messages.

    Args:
        trajectory: The episode, with the sub-agents that were imported with it.

    Raises:
        ValueError: A step holds something that is not a message, or a medium such as a sound.
    """
    atif = trajectory.meta.get("atif")
    if isinstance(atif, dict) and isinstance(atif.get("root"), dict):
        if "document" in atif:
            return dict(atif["document"])
        return _document(trajectory.steps, trajectory.meta, trajectory.children)
    return _native(trajectory)


def _document(
    steps: Sequence[Step], meta: Mapping[str, Any], children: Sequence[Trajectory]
) -> Document:
    """Return the document that steps were imported from."""
    atif = meta["atif"]
    document = dict(atif["root"])
    if "tools" in meta:
        document["agent"] = {**document["agent"], "tool_definitions": meta["tools"]}
    document["steps"] = list(_atif_steps(steps))
    if "subagents" in atif:
        made = [document_of(child) for child in children]
        document["subagent_trajectories"] = None if atif["subagents"] is None else made
    return document


def _atif_steps(steps: Sequence[Step]) -> Iterator[Document]:
    """Yield the steps of a document; see `_steps_of`."""
    number, before = 0, None
    for step in steps:
        atif = (step.extra or {}).get("atif", {})
        messages = step.messages or []
        rests = atif.get("messages") or [{}] * len(messages)
        made: list[Document] = []
        for message, rest in zip(messages, rests, strict=True):
            if message["role"] == "tool" and before is not None:
                names = ((key, name) for key, name in _RESULT_KEYS.items() if name in message)
                result = {key: message[name] for key, name in names} | rest
                seen = dict(before.get("observation") or {})
                before["observation"] = {**seen, "results": [*seen.get("results", []), result]}
            else:
                number += 1
                made.append(_with_rest(number, message["role"], message["content"], rest))
        for answer in step.actions or ():
            number += 1
            made.append(_agent_step(number, answer, step, atif))
        for one in made:
            if before is not None:
                yield before
            before = one
    if before is not None:
        yield before


def _agent_step(number: int, answer: Message, step: Step, atif: Document) -> Document:
    rest = dict(atif.get("agent", {}))
    metrics = {
        key: _listed(name, step.fields[name])
        for key, name in TOKEN_FIELDS.items()
        if len(step.fields.get(name, ()))
    }
    if metrics:
        rest["metrics"] = {**metrics, **(rest.get("metrics") or {})}
    made = _with_rest(number, "agent", answer["content"], rest)
    if "reasoning_content" in answer:
        made["reasoning_content"] = answer["reasoning_content"]
    calls = answer.get("tool_calls", [])
    others = atif.get("calls") or [{}] * len(calls)
    if calls:
        made["tool_calls"] = [
            {
                "tool_call_id": call["id"],
                "function_name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                **other,
            }
            for call, other in zip(calls, others, strict=True)
        ]
    return made


def _with_rest(number: int, source: str, said: Any, rest: Mapping[str, Any]) -> Document:
    step: Document = {"step_id": number, "source": source, "message": said, **rest}
    if step.pop("-", False):
        del step["step_id"]
    return step


# Episodes of other programs: their conversation, and what ATIF has no place for in `extra`.


def _native(trajectory: Trajectory) -> Document | None:
    messages: list[Message] = []
    facts: list[Document] = []
    said = ((_said(step), step.actions) for step in trajectory.steps)
    for step, (n_asked, messages) in zip(trajectory.steps, grown_conversations(said), strict=True):
        facts.append(_facts(step, n_asked, len(messages)))
    if not messages:
        return None
    own: Document = {
        "format": _FORMAT,
        **_given(trajectory, "task_id", "group_id", "parent_id", "session_id", "reward"),
        "steps": facts,
    }
    meta = {name: value for name, value in trajectory.meta.items() if name != "tools"}
    tools = trajectory.meta.get("tools")
    agent: Document = {"name": trajectory.agent_id, "version": "unknown"}
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        agent["tool_definitions"] = tools
    elif "tools" in trajectory.meta:
        meta["tools"] = tools
    if meta:
        own["meta"] = meta
    steps = list(_said_steps(messages))
    places = _agent_steps(steps, facts)
    for place, fact, step in zip(places, facts, trajectory.steps, strict=True):
        metrics = _metrics_of(step)
        if metrics:
            (fact if place is None else steps[place])["metrics"] = metrics
    return {
        "schema_version": VERSION,
        "trajectory_id": trajectory.episode_id,
        "agent": agent,
        "steps": steps,
        "final_metrics": {"total_steps": len(steps)},
        "extra": {_OWN: own},
    }


def _said(step: Step) -> Any:
    return step.state if step.messages is None and isinstance(step.state, str) else step.messages


def _facts(step: Step, n_asked: int, n_messages: int) -> Document:
    """Return what a step has beside messages, and how many these are up to its actions and end."""
    facts: Document = {"asked": n_asked, "said": n_messages}
    for name in ("reward", "model_version"):
        if getattr(step, name) is not None:
            facts[name] = getattr(step, name)
    facts |= {name: True for name in ("terminated", "truncated") if getattr(step, name)}
    own = (_METRICS, _FIELDS)
    extra = {name: value for name, value in (step.extra or {}).items() if name not in own}
    if extra:
        facts["extra"] = extra
    if step.state is not None and not isinstance(step.state, str):
        facts["state"] = step.state
    others = dict((step.extra or {}).get(_FIELDS, {}))
    others |= {
        name: np.asarray(value).tolist()
        for name, value in step.fields.items()
        if _is_kept(name, value)
    }
    if others:
        facts["fields"] = others
    return facts


def _is_kept(name: str, value: Any) -> bool:
    """Return True for the value of a field that only this package reads: not of `metrics`."""
    array = np.asarray(value)
    is_finite = array.dtype.kind in "biuU" or (
        array.dtype.kind == "f" and bool(np.isfinite(array).all())
    )
    return name not in TOKEN_FIELDS.values() and is_finite and 0 < array.size <= _MOST_VALUES


def _metrics_of(step: Step) -> Document:
    """Return the token ids and log probabilities of a step."""
    metrics = dict((step.extra or {}).get(_METRICS, {}))
    for key, name in TOKEN_FIELDS.items():
        if len(step.fields.get(name, ())):
            metrics.setdefault(key, _listed(name, step.fields[name]))
    return metrics


def _given(trajectory: Trajectory, *names: str) -> Document:
    return {
        name: getattr(trajectory, name) for name in names if getattr(trajectory, name) is not None
    }


def _said_steps(messages: Sequence[Message]) -> Iterator[Document]:
    """Yield the steps of a conversation: one of each message, but results of tools are in the step
    that called them.
    """
    number, before = 0, None
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result and before is not None and before["source"] == "agent":
            results = before.setdefault("observation", {}).setdefault("results", [])
            results.append(_said_result(message))
            continue
        if before is not None:
            yield before
        number += 1
        before = _said_step(number, message)
    if before is not None:
        yield before


def _said_result(message: Message) -> Document:
    result: Document = {"content": _atif_content(message["content"])}
    if "tool_call_id" in message:
        result["source_call_id"] = message["tool_call_id"]
    if _message_of_result(result) != message:
        result["extra"] = {_OWN: message}
    return result


def _said_step(number: int, message: Message) -> Document:
    source = {"assistant": "agent", "user": "user"}.get(message["role"], "system")
    content = _atif_content(message["content"])
    step: Document = {"step_id": number, "source": source, "message": content}
    if source == "agent":
        if "reasoning_content" in message:
            step["reasoning_content"] = message["reasoning_content"]
        if "tool_calls" in message:
            calls = enumerate(message["tool_calls"])
            step["tool_calls"] = [_atif_call(call, place) for place, call in calls]
    if _message_of_step(step) != message:
        step["extra"] = {_OWN: message}
    return step


def _atif_call(call: Mapping[str, Any], place: int) -> Document:
    arguments = call["function"]["arguments"]
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    return {
        "tool_call_id": f"call_{place}" if call["id"] is None else call["id"],
        "function_name": call["function"]["name"],
        "arguments": given if isinstance(given, dict) else {"arguments": arguments},
    }


_TYPES = {b"\xff\xd8": "image/jpeg", b"GI": "image/gif", b"RI": "image/webp"}


def _atif_content(content: Any) -> Any:
    """Return a content as ATIF has it: images as parts with a data URL."""
    if isinstance(content, str):
        return content
    return [part if part["type"] == "text" else _atif_image(part["base64"]) for part in content]


def _atif_image(text: str) -> Document:
    kind = _TYPES.get(base64.b64decode(text[:8])[:2], "image/png")
    source = {"media_type": kind, "path": f"data:{kind};base64,{text}"}
    return {"type": "image", "source": source}


def _content_of(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if part.get("type") == "image":
            address = part["source"]["path"]
            parts.append({"type": "image", "base64": address.partition(";base64,")[2]})
        else:
            parts.append(part)
    return parts


def _message_of_step(step: Document) -> Message:
    whole: Message | None = (step.get("extra") or {}).get(_OWN)
    if whole is not None:
        return whole
    role = {"agent": "assistant"}.get(step["source"], step["source"])
    message: Message = {"role": role, "content": _content_of(step["message"])}
    if "reasoning_content" in step:
        message["reasoning_content"] = step["reasoning_content"]
    if "tool_calls" in step:
        message["tool_calls"] = [
            {
                "id": call["tool_call_id"],
                "type": "function",
                "function": {
                    "name": call["function_name"],
                    "arguments": json.dumps(call["arguments"], ensure_ascii=False),
                },
            }
            for call in step["tool_calls"]
        ]
    return message


def _message_of_result(result: Document) -> Message:
    whole: Message | None = (result.get("extra") or {}).get(_OWN)
    if whole is not None:
        return whole
    message: Message = {"role": "tool", "content": _content_of(result["content"])}
    if "source_call_id" in result:
        message["tool_call_id"] = result["source_call_id"]
    return message


def _agent_steps(steps: Sequence[Document], facts: Sequence[Document]) -> list[int | None]:
    """Return the place of the first answer of each step of an episode among those of a document."""
    places: list[int | None] = []
    of_message: list[int] = []
    for i, step in enumerate(steps):
        n_results = len((step.get("observation") or {}).get("results") or ())
        of_message += [i] * (1 + n_results)
    for fact in facts:
        is_answer = fact["said"] > fact["asked"]
        place = of_message[fact["asked"]] if is_answer else None
        is_agent = place is not None and steps[place]["source"] == "agent"
        places.append(place if is_agent else None)
    return places


def _own_of(document: Document) -> Document | None:
    extra = document.get("extra")
    own = extra.get(_OWN) if isinstance(extra, dict) else None
    return own if isinstance(own, dict) and own.get("format") == _FORMAT else None


def _restored(
    document: Document, own: Document, names: Mapping[str, str], declared: Collection[str]
) -> Trajectory | None:
    """Return the episode that a document was made of; None if the document was changed."""
    try:
        messages: list[Message] = []
        for step in document["steps"]:
            messages.append(_message_of_step(step))
            messages += map(
                _message_of_result, (step.get("observation") or {}).get("results") or ()
            )
        steps, begin = [], 0
        for fact in own["steps"]:
            asked, said = fact["asked"], fact["said"]
            steps.append(
                Step(
                    messages[begin:asked] or None, messages[asked:said] or None, fact.get("extra"),
                    fact.get("state"), fact.get("reward"), fact.get("terminated"),
                    fact.get("truncated"), fact.get("model_version"),
                )
            )  # fmt: skip
            begin = said
        places = _agent_steps(document["steps"], own["steps"])
        for place, fact, step in zip(places, own["steps"], steps, strict=True):
            rest = dict(fact if place is None else document["steps"][place])
            given = fact.get("fields", {})
            step.fields = {name: given[name] for name in given if name in declared}
            step.fields |= _tokens(rest, names)
            if unknown := {name: given[name] for name in given if name not in declared}:
                step.extra = {**(step.extra or {}), _FIELDS: unknown}
            if rest.get("metrics"):
                step.extra = {**(step.extra or {}), _METRICS: rest["metrics"]}
        agent = document["agent"]
        meta = dict(own.get("meta", {}))
        if "tool_definitions" in agent:
            meta["tools"] = agent["tool_definitions"]
        return Trajectory(
            document["trajectory_id"], agent["name"], steps, meta, own.get("task_id"),
            own.get("group_id"), own.get("parent_id"), own.get("reward"), own.get("session_id"),
        )  # fmt: skip
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, binascii.Error):
        return None


# Files


def import_atif(
    source: Any,
    url: Database = None,
    name: str = "default",
    *,
    task_id: str | None = None,
    prefix: str = "",
    on_conflict: Literal["error", "skip"] = "error",
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> ImportReport:
    """Store trajectories of ATIF as episodes of a buffer; a missing buffer is made.

    A trajectory becomes an episode, with a step for each step of the agent: `messages` are those
    since the step before, and `actions` its answer with its tool calls. What has no place of its
    own is in `extra["atif"]` of the step and `meta["atif"]` of the episode, so `export_atif`
    returns an equal document. `tool_definitions` become `tools` of the meta. A sub-agent is an
    episode whose `parent_id` is that of the trajectory that has it. Token ids and log probabilities
    go to the fields `prompt_ids`, `completion_ids` and `logprobs`, as far as the buffer declares
    them.

    The id of an episode is the `trajectory_id`, or else the `session_id`. An import that is called
    again stores nothing twice. All files are checked before the first episode is stored.

    Args:
        source: A file with a trajectory, or with one in each line (`.jsonl`); a folder, of which
            all trajectories in `.json` files are read; a trajectory as a dict, or an iterable of
            these, which is checked one after the other.
        url: The database; see `ReplayBuffer`.
        name: The buffer.
        task_id: Task of all episodes; the id of the outermost episode if omitted.
        prefix: Text that is put before the ids of episodes, such as `run1/`.
        on_conflict: For other episodes of the buffer that have the ids: `error`, or `skip` to leave
            those of the source out.
        on_progress: Function that is called after each trajectory with the number of steps so far,
            that number again, and the range of these.
        **settings: Settings of a new buffer; see `ReplayBuffer`.

    Raises:
        ArgumentError: An argument is invalid.
        BufferConfigError: A setting is wrong.
        EpisodeExistsError: An episode with an id is open, or was aborted.
        FieldError: The buffer has fields that a step does not give.
        FileImportError: A file cannot be read, or is not a trajectory; the message names the file
            and the place. The buffer has other episodes with its ids.
        InsufficientDataError: There is no trajectory.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> steps = [
        ...     {"step_id": 1, "source": "user", "message": "2 + 2?"},
        ...     {"step_id": 2, "source": "agent", "message": "4"},
        ... ]
        >>> agent = {"name": "solver", "version": "1"}
        >>> document = {"schema_version": "ATIF-v1.7", "agent": agent, "steps": steps}
        >>> import_atif(document, "sqlite://").n_stored
        1
    """
    began_at = time.monotonic()
    on_progress = checked_progress(on_progress)
    ids = ImportIds.checked(prefix, on_conflict)
    if isinstance(source, Mapping):
        source = [source]
    is_path = isinstance(source, (str, os.PathLike))
    label = str(source) if is_path else "trajectories"
    if is_path:
        checked_path(source, "source", "the path of a file or folder, or trajectories as dicts")
        for place, document in _documents(source):
            with _named(place):
                checked_document(document)
    elif not isinstance(source, Iterable):
        raise ArgumentError(
            f"source is the path of a file or folder, a trajectory as a dict, or an iterable of "
            f"them, got {shown(source)}"
        )
    counts = ImportCounts()
    with ExitStack() as stack:
        found = found_buffer(url, name)
        if found is not None and settings:
            found.close()
            found = stack.enter_context(ReplayBuffer(url, name, **settings))
        target = stack.enter_context(import_target(found, url, name, settings, counts))
        n_documents = 0
        for place, document in _documents(source):
            n_documents += 1
            with _named(place):
                checked_document(document)
                trajectory = trajectory_of(document, target.fields)
                _store(trajectory, target, task_id, ids, counts, place)
            if on_progress is not None:
                on_progress(counts.n_steps, counts.n_steps, range(counts.n_steps))
        if not n_documents:
            raise InsufficientDataError(f"{label} has no trajectory of ATIF")
        where = f"{target.name!r} in {target.url}"
        return counts.report(label, where, time.monotonic() - began_at)


class _named:
    """Put the place of a document before the message of an error about it."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: object) -> None:
        if isinstance(error, FileImportError) and not str(error).startswith(self._place):
            raise FileImportError(f"{self._place}: {error}") from None
        if isinstance(error, FieldError):
            raise FieldError(f"{self._place}: {error}") from error
        if isinstance(error, RecursionError):
            raise FileImportError(f"{self._place}: it is nested too deeply") from None


def _documents(source: Any) -> Iterator[tuple[str, Any]]:
    """Yield the place of each document, and the document."""
    if not isinstance(source, (str, os.PathLike)):
        yield from ((f"trajectory {i}", document) for i, document in enumerate(source))
        return
    path = Path(source)
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            if file.name != MANIFEST and file.is_file():
                document = _read(file, file.read_bytes())
                # Other files of a job, such as its results, are next to its trajectories.
                if isinstance(document, dict) and "schema_version" in document:
                    yield str(file), document
    elif not path.is_file():
        raise FileImportError(f"{path}: there is no such file or folder")
    elif path.suffix in (".jsonl", ".ndjson"):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield place, _read(place, line)
    else:
        yield str(path), _read(path, path.read_bytes())


def _read(place: object, raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:  # wrong Unicode as well
        raise FileImportError(f"{place}: this is not JSON ({error})") from None


def _store(
    trajectory: Trajectory,
    buffer: ReplayBuffer,
    task_id: str | None,
    ids: ImportIds,
    counts: ImportCounts,
    place: str,
    parent: str | None = None,
) -> None:
    """Store an episode and its sub-agents."""
    columns = _columns(trajectory.steps, buffer)
    before = ids.prefix if parent is None else f"{parent}/"
    parent_id = parent
    if parent is None and trajectory.parent_id is not None:
        parent_id = f"{ids.prefix}{trajectory.parent_id}"

    def stored(key: str) -> Any:
        batch = buffer._writer.encoded_episode(
            columns, task_id=task_id or trajectory.task_id or key, group_id=trajectory.group_id,
            parent_id=parent_id, episode_id=key, episode_reward=trajectory.reward,
            keys={"agent_id": trajectory.agent_id, "session_id": trajectory.session_id},
            casting="same_kind", final=None, meta=trajectory.meta,
        )  # fmt: skip
        return buffer._writer.store(batch)

    key = f"{before}{trajectory.episode_id}"
    result = stored(key)
    if result.conflicts and trajectory.other_id is not None:
        key = f"{before}{trajectory.other_id}"
        result = stored(key)
    counts.add(len(trajectory.steps), result, ids, place)
    for child in trajectory.children:
        _store(child, buffer, task_id or trajectory.task_id or key, ids, counts, place, key)


def _columns(steps: Sequence[Step], buffer: ReplayBuffer) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in ("messages", "actions", "extra", "state"):
        values = [getattr(step, name) for step in steps]
        if any(value is not None for value in values):
            columns[name] = values
    rewards = [step.reward for step in steps]
    if any(reward is not None for reward in rewards):
        is_missing = [reward is None for reward in rewards]
        numbers = [0.0 if reward is None else reward for reward in rewards]
        columns["reward"] = np.ma.MaskedArray(np.array(numbers, np.float64), is_missing)
    for name in ("terminated", "truncated"):
        if any(getattr(step, name) for step in steps):
            columns[name] = [bool(getattr(step, name)) for step in steps]
    versions = [step.model_version for step in steps]
    if None not in versions:
        columns["model_version"] = versions
    for name in TOKEN_FIELDS.values():
        if name in buffer.fields:
            columns[name] = [step.fields.get(name, []) for step in steps]
    return columns | _other_columns(steps, buffer.fields)


def _other_columns(
    steps: Sequence[Step], declared: Mapping[str, FieldSpec]
) -> dict[str, list[Any]]:
    """Return the values of other fields than those of tokens, with defaults where there is none."""
    columns: dict[str, list[Any]] = {}
    for name in {name for step in steps for name in step.fields} - {*TOKEN_FIELDS.values()}:
        spec = declared[name]
        default: Any = [] if spec.default is None and spec.is_variable else spec.default_value
        values = [step.fields.get(name, default) for step in steps]
        if all(value is not None for value in values):
            columns[name] = values
    return columns


@dataclass(frozen=True)
class AtifExport:
    """Result of an export of trajectories.

    Attributes:
        path: The folder.
        n_trajectories: Number of files.
        skipped: Number of episodes without a file, by reason. Sub-agents are in the files of their
            parents.
        n_steps: Number of steps that were read.
        n_bytes: Size of the files.
        seconds: Duration of the export.

    Example:
        >>> print(AtifExport("out", 4, {"no messages": 24}, 28, 5_000, 0.1))
        exported to out: 4 trajectories (24 skipped: no messages), from 28 steps, 5 kB, in 0.1 s
    """

    path: str
    n_trajectories: int
    skipped: Mapping[str, int]
    n_steps: int
    n_bytes: int
    seconds: float

    def __str__(self) -> str:
        counts = "; ".join(f"{n:,} skipped: {reason}" for reason, n in self.skipped.items())
        skipped = f" ({counts})" if counts else ""
        noun = "trajectory" if self.n_trajectories == 1 else "trajectories"
        return (
            f"exported to {self.path}: {self.n_trajectories:,} {noun}{skipped}, from "
            f"{counted(self.n_steps, 'step')}, {shown_size(self.n_bytes)}, in {self.seconds:.1f} s"
        )


def export_atif(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    condition: Condition = None,
    *,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> AtifExport:
    """Write the complete episodes of a buffer as trajectories of ATIF v1.7, a file for each.

    An episode of `import_atif` becomes a document that equals the imported one. Its sub-agents are
    in the document as they were. Another episode becomes the steps of its conversation: see
    `sqlbuffer.llm.joined_messages`. Its keys, rewards, flags and extra values are in
    `extra["sqlbuffer"]` of the document, so `import_atif` makes the same episode of it.

    Args:
        buffer: The buffer.
        path: The folder to make, with `trajectory-000000.json` and so on.
        condition: Condition that all steps of an episode must match.
        overwrite: Replace an existing export.
        on_progress: Function that is called after each episode with the number of steps read so
            far, the last `seq` read, and the range of `seq` to read.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: The buffer is one of `sqlbuffer.compat`.
        ExportError: The path exists already or cannot be made, or the disk is full.
        FieldError: A step holds something that is not a message, or a medium such as a sound; the
            message names the episode.

    Example:
        >>> import tempfile
        >>> buffer = ReplayBuffer("sqlite://")
        >>> with buffer.episode("sums") as episode:
        ...     episode.append(messages=["2 + 2?"], actions=["4"], terminated=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_atif(buffer, f"{folder}/out").n_trajectories
        1
    """
    began_at = time.monotonic()
    checked_buffer(buffer)
    target = checked_path(path, "path", "the path of a folder to make")
    overwrite = checked_flag(overwrite, "overwrite")
    on_progress = checked_progress(on_progress)
    with BufferStream(buffer, condition, fields=()) as stream, _Family(buffer, stream) as family:
        family.on_progress = on_progress
        n = 0
        with OutputFolder(target, overwrite=overwrite) as folder:
            for document in family.documents():
                raw = _written(document)
                (folder.work / f"trajectory-{n:06d}.json").write_bytes(raw)
                n += 1
            card = f"# Trajectories of {json.dumps(buffer.name)}\n\nEach file is one of ATIF.\n"
            _, n_bytes = folder.finish(card, {"trajectories": n})
        return AtifExport(
            str(path), n, dict(family.skipped), family.n_steps, n_bytes,
            time.monotonic() - began_at,
        )  # fmt: skip


def _written(document: Document) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, indent=2).encode()
    except UnicodeEncodeError:  # half a character
        return json.dumps(document, indent=2).encode()


class _Family:
    """Episodes of a stream, with the sub-agents that were imported with them.

    One outermost episode with its sub-agents is in memory; the table of the others is in a
    temporary file.
    """

    def __init__(self, buffer: ReplayBuffer, stream: BufferStream) -> None:
        self._buffer, self._stream = buffer, stream
        self._children = ScratchLists(1)
        self.skipped: Counter[str] = Counter()
        self.n_steps = 0
        self.on_progress: OnProgress | None = None

    def __enter__(self) -> "_Family":
        return self

    def __exit__(self, *_: object) -> None:
        self._children.close()

    def documents(self) -> Iterator[Document]:
        """Yield the document of each episode that is not a sub-agent of another one."""
        for facts in self._episodes():
            if _index_of(facts) is not None:
                text = json.dumps({name: facts[name] for name in _FACTS})
                self._children.append((facts["task_id"], facts["parent_id"]), (text,))
            self._children.append((facts["task_id"], facts["key"], True), ("",))
        for facts in self._episodes():
            parent = facts["task_id"], facts["parent_id"], True
            if _index_of(facts) is not None and parent in self._children:
                continue
            yield from self._written(facts)

    def _written(self, facts: dict[str, Any]) -> Iterator[Document]:
        """Yield the document of an episode; if there is none, those of its sub-agents."""
        document = self._document(facts)
        if isinstance(document, dict):
            yield document
            return
        if document is not None:
            self.skipped[document] += 1
        for child in self._children_of(facts):
            yield from self._written(child)

    def _children_of(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the sub-agents that were imported with an episode, in their order."""
        key = facts["task_id"], facts["key"]
        texts = self._children.pop(key)
        for text in texts:
            self._children.append(key, text)
        return sorted((json.loads(text) for (text,) in texts), key=lambda one: _index_of(one) or 0)

    def _episodes(self) -> Iterator[dict[str, Any]]:
        low = self._stream.low
        for page in self._stream.episodes():
            for values in zip(*(page.values[name] for name in _FACTS), strict=True):
                facts = dict(zip(_FACTS, values, strict=True))
                facts["meta"] = decode(facts["meta"], None) or {}
                # The steps of others have left.
                if facts["last_seq"] is None or facts["last_seq"] > low:
                    yield facts

    def _document(self, facts: dict[str, Any]) -> Document | str | None:
        """Return the document of an episode, or why there is none; None: no step is there."""
        trajectory = self._trajectory(facts)
        if not isinstance(trajectory, Trajectory):
            return trajectory
        try:
            return document_of(trajectory) or "no messages"
        except ValueError as error:
            name = f"task {facts['task_id']!r}, episode {facts['key']!r}"
            raise FieldError(f"{name}: {error}") from error

    def _trajectory(self, facts: dict[str, Any]) -> Trajectory | str | None:
        if facts["status"] != "complete":
            return "aborted" if facts["status"] == "aborted" else "open"
        rows = self._rows(facts)
        if not rows:
            return None
        if len(rows) < (facts["length"] or 0):
            return "steps have left, or do not match"
        meta = facts["meta"]
        session = rows[0].exp_meta.session_id
        trajectory = Trajectory(
            facts["key"], facts["agent_id"] or rows[0].exp_meta.agent_id,
            [Step.of(row) for row in rows], meta, facts["task_id"], facts["group_id"],
            facts["parent_id"], facts["reward"], session,
        )  # fmt: skip
        atif = meta.get("atif")
        n_children = atif.get("subagents") if isinstance(atif, dict) else None
        if n_children:
            made = [self._trajectory(child) for child in self._children_of(facts)]
            trajectory.children = [child for child in made if isinstance(child, Trajectory)]
            if len(trajectory.children) != n_children:
                return "sub-agents have left, or do not match"
        return trajectory

    def _rows(self, facts: dict[str, Any]) -> list[DataRow]:
        rows = self._buffer._steps_of(facts["key"], facts["task_id"], self._stream.node)
        rows = [row for row in rows if row.seq is not None and row.seq <= self._stream.high]
        self.n_steps += len(rows)
        if rows and self.on_progress is not None:
            self.on_progress(
                self.n_steps, rows[-1].seq or 0, range(self._stream.low, self._stream.high)
            )
        return rows


_FACTS = (
    "key", "task_id", "agent_id", "group_id", "parent_id", "status", "length", "reward",
    "last_seq", "meta",
)  # fmt: skip


def _index_of(facts: Mapping[str, Any]) -> int | None:
    """Return the place of an episode among the sub-agents of its parent; None: it is none."""
    atif = facts["meta"].get("atif")
    index = atif.get("index") if isinstance(atif, dict) else None
    return index if isinstance(index, int) and facts["parent_id"] is not None else None
