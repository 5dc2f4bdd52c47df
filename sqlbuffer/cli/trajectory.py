"""Print a task step by step, for a person to read."""

import datetime as dt
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlbuffer.cli.output import ending, shown, total_reward
from sqlbuffer.display import brief, dumps

if TYPE_CHECKING:
    from rich.console import Console

    from sqlbuffer import DataRow

_INDENT = "  "


def print_trajectory(out: "Console", buffer: str, rows: "Sequence[DataRow]") -> None:
    """Print a header and every step.

    Args:
        out: Where to.
        buffer: Name of the buffer.
        rows: All rows of a task, in order.
    """
    _Printer(out).print_all(buffer, rows)


class _Printer:
    def __init__(self, out: "Console") -> None:
        self._out = out
        # The conversation so far, by agent and episode: each step of an LLM agent repeats it.
        self._said: dict[tuple[str, str | None], list[Any]] = {}

    def print_all(self, buffer: str, rows: "Sequence[DataRow]") -> None:
        for name, value in _header(buffer, rows):
            self._field(name.ljust(8), value)
        episode: str | None = None
        for row in rows:
            if row.exp_meta.episode_id != episode:
                episode = row.exp_meta.episode_id
                self._line(f"\nepisode {episode}", style="bold")
            self._step(row)

    def _step(self, row: "DataRow") -> None:
        meta, data = row.exp_meta, row.exp_data
        facts = {
            "agent": meta.agent_id,
            "after": meta.pre_agent,
            "reward": data.reward_t,
            "advantage": data.adv_t,
            "value": data.v_t,
            "model": meta.model_version,
        }
        words = [f"{name} {shown(value)}" for name, value in facts.items() if value is not None]
        words += [word for word in (ending(row),) if word]
        self._line(f"\nstep {meta.step}  " + "  ".join(words), style="bold")
        for name, value in row.fields.items():
            self._field(f"{_INDENT}{name.ljust(8)}", brief(value))
        for name in ("state", "actions", "extra"):
            value = getattr(data, name)
            if value is not None:
                self._field(f"{_INDENT}{name.ljust(8)}", brief(value))
        if data.messages is not None:
            self._messages(data.messages, (meta.agent_id, meta.episode_id))

    def _messages(self, messages: Any, speaker: tuple[str, str | None]) -> None:
        if not isinstance(messages, (list, tuple)):
            self._field(f"{_INDENT}messages", brief(messages))
            return
        known = _common(self._said.get(speaker, []), messages)
        self._said[speaker] = list(messages)
        self._line(f"{_INDENT}messages", style="dim")
        if known:
            self._line(f"{_INDENT * 2}({known} messages as before)", style="dim")
        for message in messages[known:]:
            for role, text in _spoken(message):
                indented = shown(text).replace("\n", f"\n{_INDENT * 3}")
                self._field(f"{_INDENT * 2}{role}:", indented)

    def _field(self, name: str, value: str) -> None:
        from rich.text import Text

        self._print(Text.assemble((shown(name), "dim"), " ", shown(value)))

    def _line(self, text: str, style: str) -> None:
        from rich.text import Text

        self._print(Text(shown(text), style=style))

    def _print(self, text: Any) -> None:
        # The terminal wraps: what is copied from it then holds no line breaks of ours.
        self._out.print(text, soft_wrap=True)


def _header(buffer: str, rows: "Sequence[DataRow]") -> list[tuple[str, str]]:
    first = rows[0].exp_meta
    name = "" if first.task_name is None else f"  ({first.task_name})"
    agents = dict.fromkeys(row.exp_meta.agent_id for row in rows)
    # Plain SQL may leave it out.
    stored: list[float | None] = [row.exp_meta.execute_time for row in rows]
    times = [time for time in stored if time is not None and math.isfinite(time)]
    return [
        ("task", f"{first.task_id}{name}"),
        ("buffer", buffer),
        ("agents", ", ".join(agents)),
        ("steps", f"{len(rows):,}"),
        ("reward", f"{shown(total_reward(rows))} in total"),
        ("time", f"{_time(min(times))} to {_time(max(times))}" if times else shown(None)),
    ]


def _time(seconds: float) -> str:
    try:
        time = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.15g} s after 1970"
    return time.strftime("%Y-%m-%d %H:%M:%SZ")


def _common(earlier: Sequence[Any], now: Sequence[Any]) -> int:
    """Return how many messages at the beginning are the same."""
    for number, (one, other) in enumerate(zip(earlier, now, strict=False)):
        if dumps(one) != dumps(other):
            return number
    return min(len(earlier), len(now))


def _spoken(message: Any) -> list[tuple[str, str]]:
    """Return the role and the text of the content of a message, and of each call of a tool."""
    if not isinstance(message, dict):
        return [("-", brief(message))]
    role = str(message.get("role", "-"))
    content, calls = message.get("content"), message.get("tool_calls")
    said = [] if content is None or content == "" else [(role, _content(content))]
    if isinstance(calls, (list, tuple)):
        said += [(f"{role} calls", _call(call)) for call in calls]
    return said or [(role, brief({key: value for key, value in message.items() if key != "role"}))]


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        return "\n".join(
            part["text"]
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else brief(part)
            for part in content
        )
    return brief(content)


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or "name" not in function:
        return brief(call)
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return f"{function['name']}({text})"
