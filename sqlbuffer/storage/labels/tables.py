"""The tables of annotations after the insert, and the values that they give to rows."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import orjson
from sqlalchemy import BigInteger, Column, Double

from sqlbuffer.codec.plain_values import dumps, tag_text, unescape_key
from sqlbuffer.storage.schema.metadata import JSON, TIME
from sqlbuffer.storage.schema.overlays import overlay_table
from sqlbuffer.storage.schema.server_clock import utc_now

# Current values of rows that were annotated: null if the row's own value counts.
labels = overlay_table(
    "labels",
    Column("reward_t", Double, comment="reward given late"),
    Column("adv_t", Double, comment="advantage given late"),
    Column("v_t", Double, comment="value estimate given late"),
    Column("extra", JSON, comment="the row's extra with the keys that were given late"),
    Column("fields", JSON, comment="declared fields that were given late"),
    flag="has_labels",
    flag_comment="rows may have rows in labels and label_history",
    learner_may="INSERT, UPDATE",
    learner_sets_flag=True,
    integer_key=True,
)

label_history = overlay_table(
    "label_history",
    Column(
        "version",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="number of the annotation; the highest one counts",
    ),
    Column("reward_t", Double, comment="reward given"),
    Column("adv_t", Double, comment="advantage given"),
    Column("v_t", Double, comment="value estimate given"),
    Column("extra", JSON, comment="keys of extra given"),
    Column("fields", JSON, comment="declared fields given"),
    Column("labelled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    flag="has_labels",
    learner_may="INSERT, UPDATE",
)


_REALS, _NONE, _PAIRS = "$reals", "$none", "$dict"


class Label(NamedTuple):
    """Values that an annotation gives a row; None for a value that it does not give.

    Attributes:
        reward_t: The reward.
        adv_t: The advantage.
        v_t: The value estimate.
        extra: Keys of extra with their values, as JSON holds them.
        fields: Declared fields with their values.
    """

    reward_t: float | None = None
    adv_t: float | None = None
    v_t: float | None = None
    extra: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] | None = None


def joined(earlier: Label, later: Label) -> Label:
    """Merge two labels: each value of the later one replaces that of the earlier one."""
    return Label(
        earlier.reward_t if later.reward_t is None else later.reward_t,
        earlier.adv_t if later.adv_t is None else later.adv_t,
        earlier.v_t if later.v_t is None else later.v_t,
        _merged_keys(earlier.extra, later.extra),
        _merged_keys(earlier.fields, later.fields),
    )


def _merged_keys(
    earlier: Mapping[str, Any] | None, later: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    return earlier if later is None else later if earlier is None else {**earlier, **later}


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


class LabelColumns(NamedTuple):
    """Labels of rows, value by value, as the tables of labels hold them.

    Attributes:
        reward_t, adv_t, v_t: Numbers; None for a value that is not given.
        extra, fields: Texts of JSON.
    """

    reward_t: Sequence[float | None]
    adv_t: Sequence[float | None]
    v_t: Sequence[float | None]
    extra: Sequence[str | None]
    fields: Sequence[str | None]


def columns_of(labels: Sequence[Label]) -> LabelColumns:
    """Return labels as columns."""
    rewards, advantages, values, extras, fields = zip(*labels, strict=True) if labels else [()] * 5
    return LabelColumns(rewards, advantages, values, _texts(extras), _texts(fields))


def _texts(trees: Sequence[Mapping[str, Any] | None]) -> Sequence[str | None]:
    if not any(trees):
        return trees  # type: ignore[return-value]  # all None
    return [None if tree is None else dumps(tree) for tree in trees]
