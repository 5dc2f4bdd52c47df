"""Values that annotations give to rows, and the choice among several annotations."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import orjson

from sqlbuffer.codec.plain_json import dumps
from sqlbuffer.codec.scalar_tags import tag_text, unescape_key

_REALS, _NONE, _PAIRS = "$reals", "$none", "$dict"


class Label(NamedTuple):
    """Values that an annotation gives a row; None for a value that it does not give.

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
    """Merge two labels: each value of the later one replaces that of the earlier one."""
    pairs = zip(earlier, later, strict=True)
    found = Label._make(old if new is None else new for old, new in pairs)
    if earlier.extra is None or later.extra is None:
        return found
    return found._replace(extra={**earlier.extra, **later.extra})


def in_force(history: Mapping[int, Label]) -> Label:
    """Merge {version: label}: each value is that of the highest version that gave one."""
    return reduce(joined, (history[version] for version in sorted(history))) if history else Label()


def labelled_extra(own: str | None, label: Label) -> str | None:
    """Return the JSON of a row's extra with the late keys merged in; None if its own is unchanged.

    The tag of a number that the column cannot hold, such as a reward of NaN, is removed if the
    number was given late.

    Args:
        own: The row's own extra, as stored.
        label: The merged label of the row.
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
    # A dict with keys that are not text is a list of pairs.
    pairs = [[tag_text(unescape_key(key)), value] for key, value in late.items()]
    given = [key for key, _ in pairs]
    return {_PAIRS: sorted([*(p for p in tree[_PAIRS] if p[0] not in given), *pairs], key=dumps)}


class Labelled(NamedTuple):
    """Values to write for one row.

    Attributes:
        seq: The row.
        given: Values of this version.
        holds: Merged values of all versions.
        extra: The row's extra with late keys; None for its own.
    """

    seq: int
    given: Label
    holds: Label
    extra: str | None

    def history(self) -> tuple[Any, ...]:
        """Return (seq, reward_t, adv_t, v_t, extra) of this version."""
        extra = None if self.given.extra is None else dumps(self.given.extra)
        return (self.seq, *self.given[:3], extra)

    def now(self) -> tuple[Any, ...]:
        """Return (seq, reward_t, adv_t, v_t, extra) of all versions merged."""
        return (self.seq, *self.holds[:3], self.extra)
