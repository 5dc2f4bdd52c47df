"""The fields of a row that are read, and the parts of payloads that belong to them."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlbuffer.checks import checked_names
from sqlbuffer.codec.decoder import tag_of
from sqlbuffer.codec.plain_values import escape_key
from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.query.tree import FIELDS, SHORT_NAMES, Segment, nearest, parse_path
from sqlbuffer.steps import PAYLOADS

PLAIN = ("reward_t", "adv_t", "v_t", "terminated", "truncated")
# They come along always, so they may be named and mean nothing.
_COLUMNS = {**FIELDS, **SHORT_NAMES}
KEYS = frozenset(name for name, (of, _) in _COLUMNS.items() if of not in (*PAYLOADS, *PLAIN))
_WITH_BYTES = ("$array", "$scalar", "$bytes")
_ITEMS = ("$tuple", "$set", "$frozenset")
# The wanted parts of a value, by key or index; None: all of it.
Tree = dict[Segment, Any] | None


class _Missing:
    """Stands for a part that a value does not have."""


MISSING = _Missing()


class SelectedFields(NamedTuple):
    """The fields of a row that are read.

    Attributes:
        fields: Wanted parts of each field; other fields are not read.
        typed: The declared fields that are wanted.

    Example:
        >>> wanted = SelectedFields.parse(["state.image", "reward_t"])
        >>> "state" in wanted.fields, wanted.is_whole("state"), wanted.is_whole("reward_t")
        (True, False, True)
    """

    fields: dict[str, Tree]
    typed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, names: Sequence[str], declared: Collection[str] = ()) -> "SelectedFields":
        """Return the fields of dotted names such as `state.obs.image`.

        Args:
            names: The names.
            declared: The typed fields of the buffer.

        Raises:
            FieldError: No list of names, an unknown field, or a malformed path.
        """
        names = checked_names(names, "fields", "['state.image', 'reward_t']")
        fields: dict[str, Tree] = {}
        for name in names:
            if name not in declared and name not in KEYS:
                root, path = _parse(name, declared)
                _add(fields, (root, *path))
        return cls(fields, tuple(name for name in declared if name in names))

    def is_whole(self, name: str) -> bool:
        """Return True if the whole field is wanted."""
        return name in self.fields and self.fields[name] is None


def _parse(name: str, declared: Collection[str]) -> tuple[str, tuple[Segment, ...]]:
    inner = name.removeprefix("exp_data.")
    root = next((r for r in (*PAYLOADS, *PLAIN, "reward") if _is_under(inner, r)), None)
    if root is None:
        raise FieldError(
            f"unknown field {shown(name)}; there are "
            f"{', '.join((*PAYLOADS, *PLAIN, *declared))}, and what is inside the first four, such "
            f"as 'state.image'; keys come along always"
            f"{nearest(name, [*PAYLOADS, *PLAIN, 'reward', *declared, *KEYS])}"
        )
    try:
        path = parse_path(inner, len(root))
    except ConditionError as error:
        raise FieldError(str(error)) from None
    if path and root not in PAYLOADS:
        raise FieldError(f"field {shown(name)}: {root} is a single value, with nothing inside")
    return "reward_t" if root == "reward" else root, path


def _is_under(name: str, root: str) -> bool:
    return name == root or (name.startswith(root) and name[len(root)] in ".[")


def _add(tree: Any, path: Sequence[Segment]) -> None:
    *parents, last = path
    for segment in parents:
        if segment in tree and tree[segment] is None:
            return  # all of it is wanted already
        tree = tree.setdefault(segment, {})
    tree[last] = None


def pruned(node: Any, selected: Tree) -> Any:
    """Return the wanted parts of a tagged tree, or `MISSING`.

    A key wanted of a list is wanted of each of its items. A list keeps its length: items that have
    nothing of what is wanted are null.
    """
    if selected is None:
        return node
    if isinstance(node, list):
        return _pruned_items(node, selected)
    if not isinstance(node, dict):
        return MISSING
    tag = tag_of(node)
    if tag in _ITEMS:
        items = _pruned_items(node[tag], selected)
        # A set's members may be equal after their other parts were removed.
        return items if items is MISSING or tag != "$tuple" else {tag: items}
    if tag == "$dict":
        return _pruned_pairs(node[tag], selected)
    return MISSING if tag is not None else _pruned_dict(node, selected)


def _pruned_dict(node: dict[str, Any], selected: dict[Segment, Any]) -> Any:
    named = ((escape_key(str(segment)), inside) for segment, inside in selected.items())
    parts = {key: pruned(node[key], inside) for key, inside in named if key in node}
    return {key: value for key, value in parts.items() if value is not MISSING} or MISSING


def _pruned_pairs(pairs: list[list[Any]], selected: dict[Segment, Any]) -> Any:
    kept = [
        [key, pruned(value, selected[key])]
        for key, value in pairs
        if isinstance(key, (str, int)) and not isinstance(key, bool) and key in selected
    ]
    left = [pair for pair in kept if pair[1] is not MISSING]
    return {"$dict": left} if left else MISSING


def _pruned_items(items: list[Any], selected: dict[Segment, Any]) -> Any:
    of_each: dict[Segment, Any] = {
        key: inside for key, inside in selected.items() if isinstance(key, str)
    }
    parts = []
    for i, item in enumerate(items):
        place = next((place for place in (i, i - len(items)) if place in selected), None)
        inside = of_each if place is None else selected[place]
        parts.append(MISSING if inside == {} else pruned(item, inside))
    if all(item is MISSING for item in parts):
        return MISSING
    return [None if item is MISSING else item for item in parts]


def references(node: Any) -> Iterator[list[Any]]:
    """Yield the lists of a tagged tree that end with an offset and a number of bytes."""
    if isinstance(node, list):
        for item in node:
            yield from references(item)
    elif isinstance(node, dict):
        tag = tag_of(node)
        if tag in _WITH_BYTES:
            yield node[tag]
        else:
            for item in node.values():
                yield from references(item)
