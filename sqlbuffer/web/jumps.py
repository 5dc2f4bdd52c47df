"""Places in an episode that a reader goes to: rewards, errors and failures of tools."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlbuffer.web.transcript import RESULT_ROLES, Said, StepsPage, Turn, with_results

# Name of a kind in addresses -> its name on pages.
KINDS = {"reward": "reward", "error": "error", "failure": "tool failure"}
# More rewards than that, in most steps of a page, are no places to go to.
MOST_SPARSE = 8
_ERROR_KEYS = ("error", "exception", "traceback")
_EXIT_CODES = ("exit_code", "returncode", "return_code")
# Longer results are looked at as text only.
_MOST_JSON = 200_000
_ERROR = re.compile(
    r"\s*(?:[\w.]*(?:error|exception)[ \t]*(?:[:!]|$)|failed\b|failure\b)",
    re.IGNORECASE | re.MULTILINE,
)
_TRACEBACK = re.compile(r"^[ \t]*traceback \(most recent call last\)", re.IGNORECASE | re.MULTILINE)
_ERROR_CHARS = 2_000


@dataclass(frozen=True)
class Mark:
    """A place on a page.

    Attributes:
        anchor: Id of its element.
        position: Position of its step in the rollout.
    """

    anchor: str
    position: int


def marks_of(kind: str, seq: int, row: Any, turns: Iterable[Turn]) -> list[str]:
    """Return the ids of the elements of a step, or of its turns, that are of a kind.

    Args:
        kind: One of `KINDS`: `reward`, a reward other than 0; `error`, a step that cannot be shown,
            one whose `extra` or `state` names an error, or a message with one; `failure`, a result
            of a tool that says that it failed.
        seq: Number of the step.
        row: The step; None if it cannot be shown.
        turns: New turns of the step.
    """
    if kind == "failure":
        return [turn.anchor for turn in turns if has_failed(turn.said)]
    if row is None:
        return [f"s{seq}"] if kind == "error" else []
    if kind == "reward":
        return [f"s{seq}"] if row.exp_data.reward_t not in (None, 0) else []
    if any(map(_names_error, (row.exp_data.extra, row.exp_data.state))):
        return [f"s{seq}"]
    return [turn.anchor for turn in turns if is_error(turn.said)]


def marks_on(page: StepsPage) -> dict[str, list[Mark]]:
    """Return the places of each kind on a page, in order; no rewards if most steps have one."""
    marks = {
        kind: [
            Mark(anchor, step.position)
            for step in page.steps
            for anchor in marks_of(kind, step.seq, step.row, with_results(step.turns))
        ]
        for kind in KINDS
    }
    if len(marks["reward"]) > max(MOST_SPARSE, len(page.steps) / 2):
        del marks["reward"]
    return marks


def has_failed(said: Said) -> bool:
    """Return True if a message is the result of a tool that failed.

    Example:
        >>> has_failed(Said("tool", "Error: no such file")), has_failed(Said("tool", "4"))
        (True, False)
    """
    return said.role in RESULT_ROLES and (said.has_failed or _says_error(said.text))


def is_error(said: Said) -> bool:
    """Return True if a message that no agent, no system and no tool wrote is an error.

    Example:
        >>> is_error(Said("user", "ValueError: it is negative"))
        True
    """
    is_other = said.role not in (*RESULT_ROLES, "assistant", "system", "developer")
    return is_other and _says_error(said.text)


def _says_error(text: str) -> bool:
    begin = text[:_ERROR_CHARS]
    if _ERROR.match(begin) or _TRACEBACK.search(begin):
        return True
    if not begin.lstrip().startswith("{") or len(text) > _MOST_JSON:
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return _names_error(value)


def _names_error(value: Any) -> bool:
    """Return True if a dict says that something failed."""
    if not isinstance(value, dict):
        return False
    if any(_is_true(value.get(key)) for key in (*_ERROR_KEYS, "is_error")):
        return True
    if value.get("success") is False or value.get("ok") is False:
        return True
    codes = (value.get(key) for key in _EXIT_CODES)
    if any(type(code) is int and code != 0 for code in codes):
        return True
    status = value.get("status")
    return isinstance(status, str) and status.lower() in ("error", "failed", "failure")


def _is_true(value: Any) -> bool:
    """Return True if a key of an error has a value. Arrays and numbers are measurements."""
    return value is True or (isinstance(value, (str, dict, list)) and bool(value))
