"""The values that an annotation gives a step: how they are checked and merged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_values import dumps, tag_text, unescape_key
from sqlbuffer.display import shown
from sqlbuffer.encoding.priority_values import as_array
from sqlbuffer.encoding.records import encode_step
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import FieldSpec

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


def labelled_extra(extra: str | None, label: Label) -> str | None:
    """Return the JSON of a row's extra with the late keys merged in; None if its own is unchanged.

    The tag of a number that the column cannot hold, such as a reward of NaN, is removed if the
    number was given late.

    Args:
        extra: The row's own extra, as stored.
        label: The merged label of the row.
    """
    tree: dict[str, Any] = {} if extra is None else orjson.loads(extra)
    tags = tree.pop(_REALS, None)
    tags_left = {
        name: tag for name, tag in (tags or {}).items() if getattr(label, name, None) is None
    }
    if label.extra is None and tags_left == (tags or {}):
        return None
    is_none = tree.pop(_NONE, extra is None) and label.extra is None
    merged = {_NONE: True} if is_none else _merged(tree, label.extra or {})
    return dumps({**merged, _REALS: tags_left} if tags_left or is_none else merged)


def _merged(tree: dict[str, Any], late: Mapping[str, Any]) -> dict[str, Any]:
    if tree.keys() != {_PAIRS}:
        return {**tree, **late}
    # A dict with keys that are not text is a list of pairs.
    pairs = [[tag_text(unescape_key(key)), value] for key, value in late.items()]
    late_keys = [key for key, _ in pairs]
    return {
        _PAIRS: sorted([*(p for p in tree[_PAIRS] if p[0] not in late_keys), *pairs], key=dumps)
    }


_REAL_LABELS = ("reward_t", "adv_t", "v_t")


@dataclass(frozen=True)
class AnnotationValues:
    """Values of an annotation, as a caller gave them.

    Attributes:
        reals: `reward_t`, `adv_t` and `v_t`; None for a value that is not given.
        extra: A dict, a list of dicts, or None.
        fields: Declared fields, by name.
        specs: The declared fields of the buffer.
    """

    reals: Mapping[str, Any]
    extra: Any
    fields: Mapping[str, Any]
    specs: Mapping[str, FieldSpec]

    def label(self) -> Label:
        """Return the label that all rows get.

        Raises:
            FieldError: A value is not one finite number, `extra` is not a dict of JSON values, or a
                field cannot be annotated.
        """
        reals = {
            name: _checked_number(name, value)
            for name, value in self.reals.items()
            if value is not None
        }
        fields = {}
        for name, value in self.fields.items():
            if _is_list(name, value):
                raise _not_one_number(name, np.shape(value))
            fields[name] = self._field(name, [value])[0]
        extra = None if self.extra is None else _tree(self.extra, "extra")
        return Label(**reals, extra=extra, fields=fields or None)

    def labels(self, n: int) -> list[Label]:
        """Return the label of each of n rows.

        Raises:
            FieldError: As in `label`, or another shape.
        """
        columns = [_checked_numbers(name, self.reals.get(name), n) for name in _REAL_LABELS]
        rows = zip(*columns, _extras(self.extra, n), self._fields(n), strict=True)
        return [Label(*row) for row in rows]

    def _fields(self, n: int) -> Sequence[dict[str, Any] | None]:
        if not self.fields:
            return [None] * n
        columns = {}
        for name, value in self.fields.items():
            is_list = _is_list(name, value)
            values = self._field(name, value if is_list else [value])
            if is_list and len(values) != n:
                raise FieldError(f"{name}: expected {n} numbers or one, got {len(values)}")
            columns[name] = values if is_list else values * n
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _field(self, name: str, values: Any) -> list[Any]:
        """Return values of a field as JSON has them."""
        spec = self.specs.get(name)
        if spec is None:
            known = ", ".join(name for name, spec in self.specs.items() if spec.is_number)
            raise FieldError(
                f"annotate() does not know {name!r}; it takes reward=, adv_t=, v_t=, extra= and "
                f"scalar fields of the buffer{f': {known}' if known else ', which has none'}"
            )
        if not spec.is_number:
            raise FieldError(
                f"field {name!r}: only a number of up to 64 bits or a boolean can be annotated; "
                f"this is {spec}"
            )
        try:
            cast = spec.cast_rows(values)
        except FieldError as error:  # there is no `casting` here
            text = str(error).removesuffix(", or allow it with casting='unsafe'")
            raise FieldError(text) from None
        if cast.dtype.kind == "f":
            _check_finite(name, cast)
            cast = cast.astype(np.float64)
        listed: list[Any] = cast.tolist()
        return listed


def _is_list(name: str, value: Any) -> bool:
    """Return True for a value for each row, and False for one for all."""
    try:
        return np.ndim(value) > 0
    except ValueError:
        raise FieldError(f"{name}: expected numbers in one dimension, got {shown(value)}") from None


def checked_version(version: Any) -> int | None:
    """Return a version; None if none is given."""
    if isinstance(version, (bool, np.bool_)):
        raise FieldError(f"version: expected an integer of 64 bits, got {shown(version)}")
    return None if version is None else encode_step(version, "version")


def checked_reward(value: Any, name: str) -> float | None:
    """Return a reward; None if none is given."""
    return None if value is None else _checked_number(name, value)


def _checked_number(name: str, value: Any) -> float:
    array = as_array(value, name)
    if array.ndim:
        raise _not_one_number(name, array.shape)
    return _finite(name, array.reshape(1))[0]


def _not_one_number(name: str, shape: tuple[int, ...]) -> FieldError:
    return FieldError(
        f"{name}: a condition, or a set of rows, takes one number for all, got shape "
        f"{shape}; give a list of their seq to label each with its own"
    )


def _checked_numbers(name: str, value: Any, n: int) -> Sequence[float | None]:
    if value is None:
        return [None] * n
    array = as_array(value, name)
    if not array.ndim:
        return _finite(name, array.reshape(1)) * n
    if array.shape != (n,):
        raise FieldError(f"{name}: expected {n} numbers or one, got shape {array.shape}")
    return _finite(name, array)


def _finite(name: str, array: Any) -> list[float]:
    if not array.size:
        return []
    if array.dtype.kind not in "iuf":
        raise FieldError(f"{name}: expected finite numbers, got {shown(array[0])}")
    with np.errstate(over="ignore"):
        reals = array.astype(np.float64) + 0.0  # no -0.0
    _check_finite(name, reals)
    numbers: list[float] = reals.tolist()
    return numbers


def _check_finite(name: str, reals: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(reals))
    if len(wrong):
        place = f"{name}[{wrong[0]}]" if len(reals) > 1 else name
        raise FieldError(f"{place}: expected a finite number, got {reals[wrong[0]]}")


def _extras(extra: Any, n: int) -> Sequence[dict[str, Any] | None]:
    if extra is None:
        return [None] * n
    if isinstance(extra, Mapping):
        return [_tree(extra, "extra")] * n
    if not isinstance(extra, (list, tuple)):
        raise FieldError(
            f"extra: expected a dict, or a list of one for each row, got {shown(extra)}"
        )
    if len(extra) != n:
        raise FieldError(f"extra: expected {n} dicts or one, got {len(extra)}")
    return [_tree(tree, f"extra[{i}]") for i, tree in enumerate(extra)]


def _tree(extra: Any, path: str) -> dict[str, Any]:
    if not isinstance(extra, Mapping) or not extra:
        raise FieldError(f"{path}: expected a dict with at least one key, got {shown(extra)}")
    for key in extra:
        if not isinstance(key, str):
            raise FieldError(f"{path}: its keys are texts, got {shown(key)}")
    encoder = Encoder()
    tree: dict[str, Any] = encoder.tree({str(key): value for key, value in extra.items()}, path)
    if encoder.blob:
        raise FieldError(f"{path}: arrays and bytes are not kept with labels; give JSON values")
    return tree
