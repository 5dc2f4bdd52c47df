"""The fields a condition may name, and paths into the JSON ones."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlbuffer.checks import refused
from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError

Kind = Literal["text", "int", "real", "bool", "json"]


Segment = str | int


_META: dict[str, Kind] = {
    "task_id": "text",
    "task_name": "text",
    "agent_id": "text",
    "step": "int",
    "execute_time": "real",
    "pre_agent": "text",
    "episode_id": "text",
    "model_version": "int",
    "session_id": "text",
}


_DATA: dict[str, Kind] = {
    "state": "json",
    "actions": "json",
    "messages": "json",
    "extra": "json",
    "reward_t": "real",
    "adv_t": "real",
    "v_t": "real",
    "terminated": "bool",
    "truncated": "bool",
}


# Field name -> (column, kind).
FIELDS: dict[str, tuple[str, Kind]] = {
    **{f"exp_meta.{name}": (name, kind) for name, kind in _META.items()},
    **{f"exp_data.{name}": (name, kind) for name, kind in _DATA.items()},
    "id": ("id", "text"),
    "seq": ("seq", "int"),
    **{name: (name, _META[name]) for name in ("episode_id", "model_version", "session_id")},
    **{name: (name, _DATA[name]) for name in ("terminated", "truncated")},
}


# The same by their short names. A declared field of such a name is meant before them.
SHORT_NAMES: dict[str, tuple[str, Kind]] = {
    **{name: (name, kind) for name, kind in (_META | _DATA).items()},
    "reward": ("reward_t", "real"),
}


DECLARED = "fields"  # the column of typed fields that are declared with column=True


MAX_PATH_SEGMENTS = 100  # payloads are not nested deeper


MAX_PATH_INDEXES = 4


# An identifier, a list index in brackets, or a quoted key; separated by dots.
_SEGMENT = re.compile(r'\.?\[(-?[0-9]{1,9})\]|\.("(?:[^"\\]|\\.)*"|[^.\["]+)', re.DOTALL)


# Between dots, what JSON would write as an index; anything else, such as 01, is a key.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Field:
    """A column, with the path of a value inside it if it is a JSON column.

    Attributes:
        name: As the user wrote it.
        column: Column of `experiences`.
        kind: Type of the column.
        path: Keys (str) and list indexes (int).
        is_labelled: Rows may have a value that was given late; known where the condition is used.
    """

    name: str
    column: str
    kind: Kind
    path: tuple[Segment, ...] = ()
    is_labelled: bool = field(default=False, repr=False)


NONE_DECLARED: Mapping[str, bool] = {}


def parse_field(name: object, declared: Mapping[str, bool] = NONE_DECLARED) -> Field:
    """Return the field of a name such as `step`, `exp_meta.step` or `state.tags[0]."a.b"`.

    Args:
        name: The name.
        declared: The buffer's own fields, and whether conditions can use each.

    Raises:
        ConditionError: The field is unknown, or the path is malformed; the message names the
            nearest known fields.
    """
    if not isinstance(name, str):
        raise refused(name, "field", "text that names a field, such as 'task_id'", ConditionError)
    if name in FIELDS:
        return Field(name, *FIELDS[name])
    if name in declared:
        return _declared_field(name, declared[name])
    if name in SHORT_NAMES:
        return Field(name, *SHORT_NAMES[name])
    root = re.match(r"(?:exp_data\.)?(state|actions|messages|extra)(?=[.\[])", name)
    if root is None:
        usable = [own for own, is_usable in declared.items() if is_usable]
        is_long = name.startswith("exp_")
        known = list(FIELDS if is_long else dict.fromkeys([*SHORT_NAMES, *FIELDS, *usable]))
        hint = nearest(name, known) or "; known are " + ", ".join(known)
        raise ConditionError(f"unknown field {shown(name)}{hint}")
    path = parse_path(name, root.end())
    if len(path) > MAX_PATH_SEGMENTS:
        raise ConditionError(
            f"the path in field {shown(name)} has more than {MAX_PATH_SEGMENTS} segments"
        )
    if sum(isinstance(segment, int) for segment in path) > MAX_PATH_INDEXES:
        raise ConditionError(f"field {shown(name)} has more than {MAX_PATH_INDEXES} list indexes")
    return Field(name, root[1], "json", path)


def _declared_field(name: str, is_usable: bool) -> Field:
    if not is_usable:
        raise ConditionError(
            f"field {shown(name)} is kept among the arrays of a row, where conditions do not look; "
            f"declare it with column=True, or store a copy in extra"
        )
    return Field(name, DECLARED, "json", (name,))


def parse_path(name: str, start: int) -> tuple[Segment, ...]:
    """Return the keys and indexes that a name has from a place on.

    Raises:
        ConditionError: A malformed path.
    """
    path: list[Segment] = []
    while start < len(name):
        match = _SEGMENT.match(name, start)
        if match is None:
            raise ConditionError(
                f"malformed path in field {shown(name)} at position {start}: "
                'write keys as .key or ."a key" and indexes as [0]'
            )
        index, key = match.groups()
        if index is not None:
            path.append(int(index))
        elif key.startswith('"'):
            path.append(re.sub(r"\\(.)", r"\1", key[1:-1], flags=re.DOTALL))
        else:
            path.append(int(key) if _INDEX.fullmatch(key) else key)
        start = match.end()
    return tuple(path)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint at the known names that are like an unknown one; empty: there are none."""
    name = name[:100]
    by_last_part = [each for each in known if each.rpartition(".")[2] == name.rpartition(".")[2]]
    found = by_last_part or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return "; did you mean " + " or ".join(found) + "?" if found else ""
