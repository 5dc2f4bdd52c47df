"""The schema of the Parquet files: their columns, and the Arrow type of each."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sqlbuffer.errors import MissingExtraError
from sqlbuffer.extras import install
from sqlbuffer.fields.specs import FieldSpec

METADATA_KEY = b"sqlbuffer"
FORMAT_VERSION = 1


def load_pyarrow() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(f"Parquet needs pyarrow; run {install('arrow')}") from None
    return pyarrow


def built_in_types() -> dict[str, Any]:
    """Return the Arrow type of each built-in column of steps."""
    pa = load_pyarrow()
    time = pa.timestamp("us", tz="UTC")
    kinds = {
        pa.int64(): ("seq", "first_seq", "t", "step", "model_version", "uses"),
        pa.string(): (
            "id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "session_id",
            "quarantine_reason", "state", "actions", "messages", "extra",
        ),
        pa.float64(): ("execute_time", "reward", "advantage", "value", "priority"),
        pa.bool_(): ("terminated", "truncated"),
        time: ("inserted_at", "quarantined_at"),
        pa.binary(): ("arrays",),
    }  # fmt: skip
    return {name: kind for kind, names in kinds.items() for name in names}


def item_type(dtype: np.dtype[Any]) -> Any:
    """Return the Arrow type of one item of a field; of a complex number, of its two parts."""
    pa = load_pyarrow()
    if dtype.kind == "U":
        return pa.string()
    if dtype.kind == "S":
        return pa.binary()
    if is_pair(dtype):
        return pa.float32() if dtype.itemsize == 8 else pa.float64()
    if dtype.kind in "biuf" and dtype.itemsize <= 8:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    return pa.binary(dtype.itemsize)  # a float of more than 64 bits: its bytes


def is_pair(dtype: np.dtype[Any]) -> bool:
    """Return True if an item is two numbers: a complex one of 64 or 128 bits."""
    return dtype.kind == "c" and dtype.itemsize <= 16


def items_of(spec: FieldSpec) -> int | None:
    """Return how many Arrow items a value of a field has; None: that varies, or it is a scalar."""
    if spec.is_variable or (not spec.shape and not is_pair(spec.dtype)):
        return None
    return math.prod(spec.shape) * (2 if is_pair(spec.dtype) else 1)


def field_type(spec: FieldSpec) -> Any:
    """Return the Arrow type of a field: a list of fixed size, a list, or a scalar."""
    pa, items = load_pyarrow(), items_of(spec)
    # No item is missing: a quarter less time to write.
    item = pa.field("element", item_type(spec.dtype), nullable=False)
    if spec.is_variable:
        return pa.list_(item)
    return item.type if items is None else pa.list_(item, items)


@dataclass(frozen=True)
class StepSchema:
    """The columns of steps in files.

    Attributes:
        built_in: The built-in columns, by the names that they have in the file: another one where
            a typed field has the same name.
        specs: The typed fields.
    """

    built_in: dict[str, str]
    specs: dict[str, FieldSpec]

    @classmethod
    def of(cls, built_in: Sequence[str], specs: Mapping[str, FieldSpec]) -> "StepSchema":
        """Return the schema of columns.

        Args:
            built_in: Built-in columns.
            specs: The typed fields by name.
        """
        return cls({f"{n}_" if n in specs else n: n for n in built_in}, dict(specs))

    def arrow(self, metadata: Mapping[str, Any] | None = None) -> Any:
        """Return the Arrow schema, with metadata of the buffer."""
        pa, types = load_pyarrow(), built_in_types()
        columns = [pa.field(name, types[own]) for name, own in self.built_in.items()]
        for name, spec in self.specs.items():
            own = {"spec": json.dumps(spec.to_json())}
            columns.append(pa.field(name, field_type(spec), metadata=own))
        texts = None if metadata is None else {METADATA_KEY: json.dumps(metadata)}
        return pa.schema(columns, metadata=texts)
