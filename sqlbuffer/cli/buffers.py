"""Which buffers a database has, which of them is meant, and what a command's words say of rows."""

import difflib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.errors import BufferNotFoundError, ConditionError

if TYPE_CHECKING:
    from sqlbuffer import ReplayBuffer
    from sqlbuffer.fields.specs import FieldSpec
    from sqlbuffer.query.builder import Tree

SHOWN_NAMES = 10
SEARCHED_TASKS = 20_000
_DEFAULT = "default"
# Names that need no `exp_meta.` or `exp_data.` before them.
_PARTS = ("exp_meta", "exp_data")


def chosen_buffer(url: str | None, name: str | None) -> str:
    """Return the name of the buffer that is meant: the only one there is, else `default`.

    Raises:
        BufferNotFoundError: No such buffer.
        UsageError: Several and none named.
    """
    from sqlbuffer.cli.output import shown_url
    from sqlbuffer.storage.buffers import catalog
    from sqlbuffer.storage.migrations import status

    status.check(url)
    names = [info.name for info in catalog.list_buffers(url)]
    if not names:
        raise BufferNotFoundError(
            f"{shown_url(url)} has no buffers yet; a program makes one with "
            "ReplayBuffer(url, name=...)"
        )
    if name is None:
        return _one_of(names)
    if name not in names:
        raise BufferNotFoundError(
            f"no buffer {name!r} in {shown_url(url)}; there are {listed(names)}"
        )
    return name


def buffer_of_task(url: str | None, task: str) -> str | None:
    """Return the only buffer that has a task, or `default` if it is among several; None where no
    buffer has it.

    Raises:
        UsageError: Several have it.
    """
    from sqlbuffer.storage.inspect import listings

    names = listings.buffers_of_task(url, task)
    return _one_of(names) if names else None


def _one_of(names: list[str]) -> str:
    if len(names) > 1 and _DEFAULT not in names:
        raise UsageError(f"which buffer? give --buffer NAME; there are {listed(names)}")
    return names[0] if len(names) == 1 else _DEFAULT


def opened(url: str | None, name: str | None) -> "ReplayBuffer":
    """Open the buffer that is meant; see `chosen_buffer`."""
    from sqlbuffer import ReplayBuffer

    return ReplayBuffer(url, name=chosen_buffer(url, name), create=False, wait_s=0)


def similar_tasks(url: str | None, buffer: str | None, task: str) -> list[str]:
    """Return the ids of tasks that resemble one, of a buffer or of all."""
    from sqlbuffer.storage.inspect import listings

    known = listings.task_ids(url, buffer, SEARCHED_TASKS)
    return difflib.get_close_matches(task, known, n=5)


def listed(names: list[str]) -> str:
    """Return names for a message, not more than a few."""
    more = len(names) - SHOWN_NAMES
    shown = ", ".join(map(repr, names[:SHOWN_NAMES]))
    return f"{shown} and {more} more" if more > 0 else shown


def condition_of(
    buffer: "ReplayBuffer", condition: str | None, equals: list[str] | None
) -> "Tree | None":
    """Return the condition that `--condition` and `--eq` say together; None where neither is given.

    Args:
        buffer: Whose rows it is about.
        condition: A condition tree as JSON.
        equals: Texts `field=value`.

    Raises:
        ConditionError: Malformed JSON, or no `=`.
    """
    trees = [] if condition is None else [_tree(condition)]
    trees += [_equal(text, buffer.fields) for text in equals or ()]
    if not trees:
        return None
    return trees[0] if len(trees) == 1 else {"and_": trees}


def _tree(text: str) -> Any:
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise ConditionError(
            f"--condition is no JSON: {error}; write what QueryBuilder().build() returns, such as "
            """'{"field": "exp_meta.step", "op": "gt", "value": 3}'"""
        ) from None
    if not tree:
        raise ConditionError("--condition is empty; leave it out to mean every row")
    return tree


def _equal(text: str, specs: "Mapping[str, FieldSpec]") -> dict[str, Any]:
    from sqlbuffer.query.paths import FIELDS, parse_field

    name, sign, value = text.partition("=")
    if not sign:
        raise ConditionError(f"--eq takes field=value, such as --eq task_id=t1, got {text!r}")
    field = name.strip()
    root = field.partition(".")[0].partition("[")[0]
    for part in _PARTS:
        if field not in {*FIELDS, *specs} and f"{part}.{root}" in FIELDS:
            field = f"{part}.{field}"
    kind = parse_field(field, {name: spec.column for name, spec in specs.items()}).kind
    is_text = kind == "text" or (field in specs and specs[field].dtype.kind == "U")
    return {"field": field, "op": "eq", "value": value if is_text else _value(value)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
