"""The form of a loader's batches: other names, tensors on a device, or named tuples."""

import keyword
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlbuffer.checks import checked_dict, checked_names
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.tensors import as_tensor, check_device

INFO = "info"
_PARTS = (INFO, "n_rows", "keys", "values", "items", "get", "to", "to_torch", "to_pandas")


@dataclass(frozen=True)
class Output:
    """The form in which batches are handed out.

    Attributes:
        fieldname_map: `{name: other name}` of arrays.
        to_named_tuple: Names of the parts of a named tuple, in order; None: a `Batch`.
        device: Where arrays become tensors; None: they stay arrays.

    Raises:
        FieldError: Names that cannot be, or that collide.
        MissingExtraError: A device, and torch is not installed.
        ValueError: A device that is not there.
    """

    fieldname_map: Mapping[str, str] | None = None
    to_named_tuple: Sequence[str] | None = None
    device: Any = None

    def __post_init__(self) -> None:
        if self.fieldname_map is not None:
            _check_map(self.fieldname_map)
        if self.to_named_tuple is not None:
            _check_parts(self.to_named_tuple)
        if self.device is not None:
            check_device(self.device)

    def __call__(self, batch: Batch) -> Any:
        """Return a batch as it is handed out."""
        if self.fieldname_map:
            batch = Batch(renamed(batch, self.fieldname_map), batch.info)
        wanted = None
        if self.to_named_tuple is not None:
            wanted = [_key(name, batch) for name in self.to_named_tuple]
        if self.device is not None:
            kept = batch if wanted is None else [name for name in wanted if name != INFO]
            batch = Batch({name: as_tensor(batch[name], self.device) for name in kept}, batch.info)
        if wanted is None:
            return batch
        parts = [batch.info if name == INFO else batch[name] for name in wanted]
        return made_tuple(tuple(map(_attribute, self.to_named_tuple or ())), parts)


def renamed(arrays: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return arrays under other names.

    Raises:
        FieldError: A name that no array has, or that two would have.
    """
    for name in names:
        if name not in arrays:
            raise FieldError(
                f"fieldname_map names {shown(name)}, and the batch has {', '.join(arrays)}"
            )
    found = {names.get(name, name): array for name, array in arrays.items()}
    if len(found) < len(arrays):
        named = [names.get(name, name) for name in arrays]
        double = next(name for name in named if named.count(name) > 1)
        both = [name for name in arrays if names.get(name, name) == double]
        raise FieldError(f"fieldname_map gives {' and '.join(both)} the same name {shown(double)}")
    return found


def made_tuple(names: tuple[str, ...], parts: Sequence[Any]) -> Any:
    """Return a named tuple; it can be pickled, as batches of worker processes are."""
    return _tuple_type(names)(*parts)


@lru_cache(maxsize=128)
def _tuple_type(names: tuple[str, ...]) -> Any:
    make: Any = namedtuple  # the type checker wants the names written out
    base: Any = make("Batch", names)

    class NamedBatch(base):  # type: ignore[misc]
        __slots__ = ()

        def __reduce__(self) -> tuple[Any, ...]:
            return made_tuple, (names, list(self))

    NamedBatch.__name__ = NamedBatch.__qualname__ = "Batch"
    return NamedBatch


def _attribute(name: str) -> str:
    return name.lstrip("_")


def _key(name: str, batch: Batch) -> str:
    for key in (name, _attribute(name)):
        if key in batch or key == INFO:
            return key
    raise FieldError(
        f"to_named_tuple names {shown(name)}, and the batch has {', '.join(batch)} and info"
    )


def _check_map(names: Any) -> None:
    checked_dict(names, "fieldname_map", "{'obs': 'state'}", error=FieldError)
    for name in (*names, *names.values()):
        if not isinstance(name, str) or not name:
            raise FieldError(f"fieldname_map is a dict of names, got {shown(name)} in it")
    for name in names.values():
        if name in _PARTS:
            raise FieldError(
                f"fieldname_map: {shown(name)} is a part of every batch; choose another"
            )
    if len(set(names.values())) < len(names):
        raise FieldError(f"fieldname_map gives two fields the same name: {shown(dict(names))}")


def _check_parts(given: Any) -> None:
    names = checked_names(given, "to_named_tuple", "('obs',)")
    if not names:
        raise FieldError("to_named_tuple is a list of one name or more, such as ('obs',), got none")
    for name in names:
        if not _attribute(name).isidentifier() or keyword.iskeyword(_attribute(name)):
            raise FieldError(f"to_named_tuple: {shown(name)} cannot be the name of a part")
    attributes = [_attribute(name) for name in names]
    double = next((name for name in attributes if attributes.count(name) > 1), None)
    if double is not None:
        raise FieldError(f"to_named_tuple has two parts named {shown(double)}")
