"""Values that annotations give to rows, and which of them hold."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import orjson

from sqlbuffer.codec.plain_json import dumps
from sqlbuffer.codec.scalar_tags import tag_text, unescape_key

_REALS, _NONE, _PAIRS = "$reals", "$none", "$dict"


class Label(NamedTuple):
    """What an annotation says of a row; None where it says nothing.

    Attributes:
        reward_t: The reward.
        adv_t: The advantage.
        v_t: The value estimate.
        extra: Keys of extra with their values, as JSON holds them.
    """

    reward_t: float | None = None
    adv_t: float | None = None
    v_t: float | None = None
    extra: Mapping[str, Any] | None = None


def joined(earlier: Label, later: Label) -> Label:
    """Return what holds of two, value by value."""
    pairs = zip(earlier, later, strict=True)
    found = Label._make(old if new is None else new for old, new in pairs)
    if earlier.extra is None or later.extra is None:
        return found
    return found._replace(extra={**earlier.extra, **later.extra})


def in_force(history: Mapping[int, Label]) -> Label:
    """Return what holds of {version: label}: each value of the highest version that gave one."""
    return reduce(joined, (history[version] for version in sorted(history))) if history else Label()


def labelled_extra(own: str | None, label: Label) -> str | None:
    """Return the JSON of a row's extra with the late keys merged in; None where its own holds.

    A tag of a number that the column cannot hold, such as a reward of NaN, goes where the number
    was given late.

    Args:
        own: The row's own, as stored.
        label: What holds of the row.
    """
    tree: dict[str, Any] = {} if own is None else orjson.loads(own)
    tags = tree.pop(_REALS, None)
    left = {name: tag for name, tag in (tags or {}).items() if getattr(label, name, None) is None}
    if label.extra is None and left == (tags or {}):
        return None
    is_none = tree.pop(_NONE, own is None) and label.extra is None
    merged = {_NONE: True} if is_none else _merged(tree, label.extra or {})
    return dumps({**merged, _REALS: left} if left or is_none else merged)


def _merged(tree: dict[str, Any], late: Mapping[str, Any]) -> dict[str, Any]:
    if tree.keys() != {_PAIRS}:
        return {**tree, **late}
    # A dict with keys that are no text is a list of pairs.
    pairs = [[tag_text(unescape_key(key)), value] for key, value in late.items()]
    given = [key for key, _ in pairs]
    return {_PAIRS: sorted([*(p for p in tree[_PAIRS] if p[0] not in given), *pairs], key=dumps)}


class Labelled(NamedTuple):
    """What is written of one row.

    Attributes:
        seq: The row.
        given: What its version says.
        holds: What holds of all versions.
        extra: The row's extra as it holds; None: its own.
    """

    seq: int
    given: Label
    holds: Label
    extra: str | None

    def history(self) -> tuple[Any, ...]:
        """Return (seq, reward_t, adv_t, v_t, extra) of the version."""
        extra = None if self.given.extra is None else dumps(self.given.extra)
        return (self.seq, *self.given[:3], extra)

    def now(self) -> tuple[Any, ...]:
        """Return (seq, reward_t, adv_t, v_t, extra) of what holds."""
        return (self.seq, *self.holds[:3], self.extra)
