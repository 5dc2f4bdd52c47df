"""Steps, episodes and batches as users see them.

The arguments of one step have fixed names and the fields that a buffer declares. PEP 728 has a
`TypedDict` with `extra_items` for this, but mypy does not support it. A function's parameters work
for every type checker and for `help`.
"""

import dataclasses
import inspect
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import (
    Annotated,
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    SupportsFloat,
    SupportsIndex,
    TypedDict,
)

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import PydanticCustomError
from typing_extensions import TypeVar

from sqlbuffer.checks import refused
from sqlbuffer.codec.decoder import untag
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.equality import equal
from sqlbuffer.display import html_table, short, shown
from sqlbuffer.errors import FieldError, MissingExtraError, install
from sqlbuffer.spaces import Structure
from sqlbuffer.strict_models import with_own_errors

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def uuid7() -> str:
    """Return a new UUIDv7 as 36 characters; ordered by the millisecond, random within it."""
    return uuid7s(1)[0]


def uuid7s(n: int) -> list[str]:
    """Return n new UUIDv7 of one millisecond; in a third of the time of n calls."""
    when = f"{time.time_ns() // 1_000_000:012x}"
    start, digits = f"{when[:8]}-{when[8:]}-7", os.urandom(10 * n).hex()
    return [
        f"{start}{digits[i : i + 3]}-{_VARIANT[digits[i + 3]]}{digits[i + 4 : i + 7]}-"
        f"{digits[i + 7 : i + 19]}"
        for i in range(0, 20 * n, 20)
    ]


def is_uuid(text: str) -> bool:
    """Return True for a UUID in the form in which the library writes it."""
    return _UUID.fullmatch(text) is not None


LONGEST_KEY_BITS = 1_000  # about 300 digits
# The parts of a step that are JSON, in the order of their columns.
PAYLOADS = ("state", "actions", "messages", "extra")
_CONFIG = ConfigDict(arbitrary_types_allowed=True, extra="forbid")


def _plain_scalar(value: Any) -> Any:
    """Turn numpy and torch scalars into Python's."""
    if isinstance(value, (int, float)) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except Exception:  # several numbers: pydantic refuses them
        return value


def _scalar_but(refused: tuple[type, ...], error: str) -> BeforeValidator:
    """Return a validator that refuses types from which pydantic would make a value."""

    def check(value: Any) -> Any:
        value = _plain_scalar(value)
        if isinstance(value, refused):
            raise PydanticCustomError(error, "another type")
        return value

    return BeforeValidator(check)


def _short_number(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > LONGEST_KEY_BITS:
        raise ValueError("expected text, or a number of fewer digits")
    return value


_BYTES = (bytes, bytearray)
_TEXT = (str, *_BYTES)
Key = Annotated[
    str,
    Field(coerce_numbers_to_str=True),
    BeforeValidator(_short_number),
    _scalar_but(_BYTES, "string_type"),
]
Integer = Annotated[int, _scalar_but(_TEXT, "int_type")]
Real = Annotated[float, _scalar_but(_TEXT, "float_type")]
Flag = Annotated[bool, _scalar_but(_TEXT, "bool_type")]


def _equal_by_content(self: Any, other: Any) -> Any:
    """Compare field by field; arrays by content, NaN equal to NaN."""
    if type(other) is not type(self):
        return NotImplemented
    names = [f.name for f in dataclasses.fields(self) if f.compare]
    return all(equal(getattr(self, name), getattr(other, name)) for name in names)


def _repr_of_values(self: Any) -> str:
    """Return the known values; arrays and long values are shortened."""
    known = {
        f.name: value
        for f in dataclasses.fields(self)
        if (value := getattr(self, f.name)) is not None and not (f.name == "fields" and not value)
    }
    return f"{type(self).__name__}({', '.join(f'{n}={_short_part(v)}' for n, v in known.items())})"


def _short_part(value: Any) -> str:
    """Return a value of a row in short; its parts shorten their own."""
    return repr(value) if isinstance(value, (ExpMeta, Experience)) else short(value)


class NoStep(int):
    """The number 0 of a step that was given none."""


@with_own_errors
@checked_dataclass(config=_CONFIG, eq=False)
class ExpMeta:
    """The keys of an experience: its task, agent, step, time, episode, model version and session.

    Attributes:
        task_id: Task; numbers become text.
        task_name: A readable name of the task.
        agent_id: Agent; numbers become text.
        step: Number of the step within the task.
        execute_time: Unix time in seconds. None becomes the time at which the row is stored.
        pre_agent: Agent that acted before.
        episode_id: Rollout of the task, if there are several; numbers become text.
        group_id: Group of rollouts that the episode belongs to; its first row decides.
        parent_id: Id of the episode that the episode came from; its first row decides.
        model_version: Version of the model that acted.
        session_id: Training session; numbers become text.

    Raises:
        FieldError: A value has another type, or a name is unknown.

    Example:
        >>> ExpMeta("task_1", "search", "agent_1", 1, 1700000000.0).step
        1
        >>> ExpMeta("task_1").agent_id
        'default'
        >>> ExpMeta("task_1", step=3, session_id="monday").to_dict()["session_id"]
        'monday'
    """

    task_id: Key
    task_name: Key | None = None
    agent_id: Key = "default"
    step: Integer = NoStep()
    execute_time: Real | None = None
    pre_agent: Key | None = None
    episode_id: Key | None = field(default=None, kw_only=True)
    group_id: Key | None = field(default=None, kw_only=True)
    parent_id: Key | None = field(default=None, kw_only=True)
    model_version: Integer | None = field(default=None, kw_only=True)
    session_id: Key | None = field(default=None, kw_only=True)

    __eq__ = _equal_by_content
    __repr__ = _repr_of_values
    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict; the optional ones only where set."""
        optional = ("episode_id", "group_id", "parent_id", "model_version", "session_id")
        return _as_dict(self, optional=optional)


@with_own_errors
@checked_dataclass(config=_CONFIG, eq=False)
class Experience:
    """The data of one step.

    Payloads (`state`, `actions`, `messages`, `extra`) may be JSON values, numpy arrays and scalars,
    bytes, datetimes, dataclasses or pydantic models, nested.

    Attributes:
        state: Observation before the action.
        actions: List of actions; `action=x` is short for `actions=[x]`.
        reward_t: Reward of the step.
        adv_t: Advantage.
        v_t: Value estimate.
        messages: Conversation of an LLM agent: a list of messages.
        terminated: True if the step ended the episode in a terminal state.
        truncated: True if the episode was cut after the step.
        extra: Any other value.

    Raises:
        FieldError: A value has another type, or a name is unknown.

    Example:
        >>> Experience(state={"x": 1}, action="left").actions
        ['left']
        >>> Experience(state={"x": 1}, truncated=True).to_dict()["truncated"]
        True
    """

    state: Any = None
    actions: Any = None
    reward_t: Real | None = None
    adv_t: Real | None = None
    v_t: Real | None = None
    messages: Any = None
    terminated: Flag | None = field(default=None, kw_only=True)
    truncated: Flag | None = field(default=None, kw_only=True)
    extra: dict[Any, Any] | None = field(default=None, kw_only=True)
    action: InitVar[Any] = field(default=None, kw_only=True)

    def __post_init__(self, action: Any) -> None:
        if action is None:
            return
        if self.actions is not None:
            raise FieldError("give actions=[...] or action=..., not both")
        self.actions = [action]

    __eq__ = _equal_by_content
    __repr__ = _repr_of_values
    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of plain values (models and dataclasses as dicts); the
        optional ones only where set.

        Raises:
            FieldError: A payload has a value that cannot be stored, such as a function.
        """
        encoder = Encoder()
        values = _as_dict(self, optional=("terminated", "truncated", "extra"))
        return {
            name: untag(encoder.tree(value, f"exp_data.{name}"), bytes(encoder.blob))
            for name, value in values.items()
        }


@with_own_errors
@checked_dataclass(config=_CONFIG, eq=False)
class DataRow:
    """One experience with its keys.

    Attributes:
        exp_meta: Keys of the row.
        exp_data: Data of the step.
        fields: Typed fields that the buffer declares, by name: arrays, and scalars of numpy.
        id: Unique id within the buffer; a UUIDv7 by default.
        seq: Number in insert order within the buffer. None until the row is read from one; not
            compared by `==`.

    Raises:
        FieldError: A value has another type, or a name is unknown.

    Example:
        >>> row = DataRow(ExpMeta("t", "search", "a", 1, 0.0), Experience(state=1, actions=[0]))
        >>> len(row.id), row.to_dict()["exp_data"]["actions"]
        (36, [0])
    """

    exp_meta: ExpMeta
    exp_data: Experience
    id: Key = field(default_factory=uuid7)
    seq: Integer | None = field(default=None, compare=False, kw_only=True)
    fields: dict[str, Any] = field(default_factory=dict, kw_only=True)

    __eq__ = _equal_by_content
    __repr__ = _repr_of_values
    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        """Return a table of the row's values, for notebooks."""
        return html_table(["DataRow", ""], shown_values(self).items())

    def to_dict(self) -> dict[str, Any]:
        """Return `exp_meta`, `exp_data` and `id` as nested dicts, and `fields` where it has any.

        Raises:
            FieldError: See `Experience.to_dict`.
        """
        values = {
            "exp_meta": self.exp_meta.to_dict(),
            "exp_data": self.exp_data.to_dict(),
            "id": self.id,
        }
        return {**values, "fields": dict(self.fields)} if self.fields else values


def _as_dict(row: Any, optional: tuple[str, ...]) -> dict[str, Any]:
    values = {f.name: getattr(row, f.name) for f in dataclasses.fields(row)}
    return {
        name: value for name, value in values.items() if value is not None or name not in optional
    }


def shown_values(row: DataRow) -> dict[str, str]:
    """Return the values of a row that are known, in short, by their names in conditions."""
    values = {"seq": row.seq, **vars(row.exp_meta), **vars(row.exp_data), **row.fields}
    known = {name: short(value) for name, value in values.items() if value is not None}
    return {**known, "id": row.id}


@dataclass(frozen=True)
class StoreResult:
    """Result of storing rows; the three numbers add up to all rows of the call.

    Attributes:
        inserted: Number of stored rows.
        duplicates: Number of rows that were not stored again: the buffer holds their id, or their
            place in an episode, with the same content.
        conflicts: Number of rows that were not stored: the buffer holds their id, or their place in
            an episode, with other content.
        conflicting_ids: Ids of these conflicting rows; `<episode>/<t>` for a step of an episode
            that is known by its place there.
        seqs: Number of each row in the order of the call, stored now or before; -1 if it is not
            stored. int64 of shape (n,).

    Example:
        >>> StoreResult(inserted=2, duplicates=0, conflicts=0).inserted
        2
    """

    inserted: int
    duplicates: int
    conflicts: int
    conflicting_ids: tuple[str, ...] = field(default=(), compare=False)
    seqs: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False
    )


@dataclass(frozen=True)
class PriorityUpdate:
    """Result of an update of priorities; each row is counted once.

    Attributes:
        updated: Number of rows that have their new priority.
        missing: Number of rows that the buffer does not hold, such as evicted ones.

    Example:
        >>> PriorityUpdate(updated=255, missing=1).missing
        1
    """

    updated: int
    missing: int


def as_table(arrays: Mapping[str, Any], info: Mapping[str, NDArray[Any]], n_rows: int) -> Any:
    """Return a `pandas.DataFrame` of n rows; see `Batch.to_pandas`.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtraError(
            f"to_pandas() needs pandas; run {install('pandas')}; numpy arrays need nothing"
        ) from None
    named = {f"info.{name}" if name in arrays else name: array for name, array in info.items()}
    columns = {name: _column(array, n_rows) for name, array in {**named, **arrays}.items()}
    return pandas.DataFrame(columns, index=pandas.RangeIndex(n_rows))


def _column(array: Any, n_rows: int) -> NDArray[Any]:
    """Return an array of shape (n,); of one with more dimensions the parts, as objects."""
    if array is None:
        return np.full(n_rows, None, object)
    values: NDArray[Any] = np.asarray(array.cpu() if hasattr(array, "cpu") else array)
    if values.ndim == 1:
        return values
    parts = np.empty(n_rows, object)
    for i, part in enumerate(
        values
    ):  # assigned together, numpy would spread them over n x m places
        parts[i] = part
    return parts


def as_tensor(array: Any, device: Any) -> Any:
    """Return an array as a tensor on a device, without a copy on the CPU; texts, objects and what
    torch has no dtype for stay arrays.
    """
    import torch

    if isinstance(array, torch.Tensor):
        return array.to(device)
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OSUV":
        return array
    if not (array.dtype.isnative and array.flags.writeable and array.flags.c_contiguous):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    try:
        tensor = torch.from_numpy(array)
    except TypeError:
        return array
    return tensor if device == "cpu" else tensor.to(device)


def check_device(device: Any) -> None:
    """Raise unless tensors can be made there.

    Raises:
        MissingExtraError: torch is not installed.
        ArgumentError: torch has no such device, or it is not there.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError(
            f"tensors on device {shown(device)} need torch; run {install('torch')}; numpy arrays "
            f"need no device"
        ) from None
    try:
        kind = torch.device(device).type
    except Exception:  # each kind of value has its own error
        raise refused(device, "device", "one of torch, such as 'cpu' or 'cuda'") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise refused(device, "device", "'cpu' here, where torch finds no CUDA")


T = TypeVar("T", default=DataRow)
Info = Mapping[str, NDArray[Any]]
# A list of rows that is printed shows as many.
SHOWN_ROWS = 5


class Batch(Mapping[str, Any]):
    """Arrays of n rows each, by name and as attributes. An unknown array is None, such as the
    probabilities of rows that were drawn by priority under a condition.

    If the buffer has `spaces`, and the observation or action is a Dict, Tuple or Graph, the
    attributes `obs`, `next_obs`, `action`, `final_obs` and `seq_obs` are dicts and tuples of the
    arrays, nested as in the space. The names of the mapping stay those of the fields:
    `batch.obs["image"]` is `batch["obs_image"]`. Parts that were not read are left out of a dict,
    and are None in a tuple.

    Attributes:
        info: Origin of the rows: `seq`, `task_id`, `agent_id`, `step`, arrays of shape (n,). If it
            is given as a function, the function is called on first use.

    Example:
        >>> import numpy as np
        >>> batch = Batch({"obs": np.zeros((2, 4))}, {"seq": np.array([1, 2])})
        >>> batch.obs.shape, batch["obs"].shape, batch.info["seq"].tolist(), batch.n_rows
        ((2, 4), (2, 4), [1, 2], 2)
        >>> batch.to_pandas().columns.tolist()
        ['seq', 'obs']
        >>> batch.to_torch().obs.dtype, batch.to("cpu").info["seq"].dtype
        (torch.float64, dtype('int64'))
        >>> batch.to_tensordict().batch_size  # doctest: +SKIP
        torch.Size([2])
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any] | None],
        info: Info | Callable[[], Info],
        structure: Structure | None = None,
    ) -> None:
        self._arrays = dict(arrays)
        # A learner that does not look at it does not pay for it.
        self._info = info if callable(info) else dict(info)
        self._structure = structure

    @property
    def info(self) -> dict[str, NDArray[Any]]:
        """Origin of the rows: arrays of shape (n,) by name."""
        if callable(self._info):
            self._info = dict(self._info())
        return self._info

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": self._arrays, "_info": self.info, "_structure": self._structure}

    @property
    def n_rows(self) -> int:
        """Number of rows; `len` is the number of arrays, as for any mapping."""
        for array in self._arrays.values():
            if array is not None:
                return len(array)
        return len(next(iter(self.info.values()), ()))

    def to(self, device: Any) -> "Batch":
        """Return the batch with its arrays as tensors of the same shapes and dtypes.

        Texts, objects and dtypes that torch does not have stay arrays; `info` does too.

        Args:
            device: Device of the tensors, such as `cuda`. Tensors on `cpu` share the arrays' memory
                if it is writable.

        Raises:
            MissingExtraError: torch is not installed.
            ValueError: torch does not know the device, or the machine does not have it.
        """
        check_device(device)
        return batch_with(self, {name: as_tensor(array, device) for name, array in self.items()})

    def to_torch(self) -> "Batch":
        """Return the batch with its arrays as tensors on the CPU; see `to`.

        Raises:
            MissingExtraError: torch is not installed.
        """
        return self.to("cpu")

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one row for each row of the batch.

        The columns of `info` come first. An array of shape (n,) is a column of its dtype. One with
        more dimensions, such as an image or a window of steps, is a column of n numpy arrays:
        `np.stack(table["obs"])` has the shape of the batch again. Values of varying length keep
        their padding, next to the column `<name>_lens`. An unknown array becomes a column of None.
        If an array and an entry of `info` have the same name, the column of `info` is named
        `info.<name>`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return as_table(self._arrays, self.info, self.n_rows)

    def to_tensordict(self) -> Any:
        """Return the arrays as a `tensordict.TensorDict` of batch size `[n_rows]`, on the CPU or
        where `to` has put them.

        Entries have the names of the batch. Observations and actions of Dict, Tuple and Graph
        spaces are nested: `td["obs", "image"]`. The key of a part of a tuple is its index as text.
        The batch size of windows and trajectories is `[n_rows]` too, because some of their arrays
        have one value for each row; the steps are the second dimension of the others. Texts become
        a `NonTensorStack`. Unknown arrays and `info` are left out.

        Raises:
            MissingExtraError: tensordict is not installed.
        """
        return as_tensordict(self)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getattr__(self, name: str) -> Any:
        arrays = self.__dict__.get("_arrays", {})
        if name in arrays:
            return arrays[name]
        structure = self.__dict__.get("_structure")
        nested = None if structure is None else structure.nested(name, arrays)
        if nested is None:
            nested_names = [] if structure is None else structure.names(arrays)
            names = ", ".join([*nested_names, *arrays])
            raise AttributeError(f"the batch has no {shown(name)}; it has {names}")
        return nested

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._arrays, *nested_names(self)]

    def __repr__(self) -> str:
        shown = (
            f"{name}: {None if a is None else f'{a.dtype}{list(a.shape)}'}"
            for name, a in self.items()
        )
        return f"Batch({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return a table of the arrays, for notebooks."""
        rows = (
            [name, "unknown", ""] if a is None else [name, str(a.dtype), str(tuple(a.shape))]
            for name, a in self.items()
        )
        return html_table(["array", "dtype", "shape"], rows)


def batch_with(batch: Batch, arrays: Mapping[str, Any], info: Info | None = None) -> Batch:
    """Return a batch of other arrays, of the same structure."""
    return Batch(arrays, batch._info if info is None else info, batch._structure)


def nested_names(batch: Batch) -> list[str]:
    """Return the names under which arrays of a batch are nested, such as `obs` and `action`."""
    return [] if batch._structure is None else batch._structure.names(batch)


def common_structure(batches: Sequence[Batch]) -> Structure | None:
    """Return the structure of several batches with the same arrays; None if two differ.

    A batch of a buffer without spaces takes that of the others.
    """
    known = [batch._structure for batch in batches if batch._structure is not None]
    return known[0] if known and all(structure == known[0] for structure in known) else None


def as_tensordict(batch: Batch) -> Any:
    """Return the arrays of a batch as a TensorDict; see `Batch.to_tensordict`.

    Raises:
        MissingExtraError: tensordict is not installed.
    """
    try:
        from tensordict import TensorDict
    except ImportError:
        raise MissingExtraError(
            "to_tensordict() needs tensordict; run `pip install tensordict`"
        ) from None
    structure, entries = batch._structure, dict(batch)
    if structure is not None:
        for name in structure.names(batch):
            tree = structure.nested(name, batch)
            for leaf in structure.leaves(name):
                entries.pop(leaf, None)
            entries[name] = tree
    tensors = {name: _as_entry(value) for name, value in entries.items() if value is not None}
    return TensorDict(tensors, batch_size=[batch.n_rows])


def _as_entry(value: Any) -> Any:
    """Return an array, or a dict or tuple of arrays, as a TensorDict takes it."""
    if isinstance(value, tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        parts = {str(key): part for key, part in value.items() if part is not None}
        return {key: _as_entry(part) for key, part in parts.items()}
    entry = as_tensor(value, "cpu") if isinstance(value, np.ndarray) else value
    return _as_stack(entry) if isinstance(entry, np.ndarray) else entry


def _as_stack(array: NDArray[Any]) -> Any:
    """Return what torch has no dtype for as a NonTensorStack, of which a row can be taken."""
    from tensordict import NonTensorData, NonTensorStack

    if not len(array):  # tensordict 0.14 takes no stack of nothing
        return NonTensorData("", batch_size=array.shape)
    if array.ndim > 1:
        return NonTensorStack(*map(_as_stack, array))
    return NonTensorStack(*array.tolist(), batch_size=array.shape)


class RowList(list[T]):
    """A list of rows, or of tasks, with the arrays of their sampler by name and as attributes. In
    annotations, `RowList` is a list of rows, and `RowList[list[DataRow]]` is a list of tasks.

    Attributes:
        batch_id: Number of the batch in the sample log (`track_samples`); None if it is not logged.
        columns: Arrays with one value for each row; an unknown array is None.

    Example:
        >>> import numpy as np
        >>> rows = RowList(["a row", "another"], {"priorities": np.array([0.5, 2.0])}, 7)
        >>> len(rows), rows.priorities.tolist(), rows.batch_id
        (2, [0.5, 2.0], 7)
    """

    def __init__(
        self,
        rows: Iterable[T] = (),
        columns: Mapping[str, NDArray[Any] | None] | None = None,
        batch_id: int | None = None,
    ) -> None:
        super().__init__(rows)
        self.batch_id = batch_id
        self.columns = dict(columns or {})

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(f"the rows have no {shown(name)}; they have {', '.join(columns)}")
        return columns[name]

    def __repr__(self) -> str:
        return f"RowList([{first_shown(self, SHOWN_ROWS)}])"

    def _repr_html_(self) -> str:
        """Return a table of the first rows, for notebooks."""
        return rows_as_html(self, f"{len(self)} rows")


def first_shown(items: Sequence[Any], n: int) -> str:
    """Return the first n of rows, or of lists of rows, and how many more there are."""
    first = [
        f"[{first_shown(item, 1)}]" if isinstance(item, list) else repr(item) for item in items[:n]
    ]
    more = [f"... {len(items) - n} more"] if len(items) > n else []
    return ", ".join([*first, *more])


def rows_as_html(rows: Sequence[Any], title: str) -> str:
    """Return a table of the first of rows, or of other items."""
    first = rows[:SHOWN_ROWS]
    if not all(isinstance(row, DataRow) for row in first):
        return html_table(["", "item"], enumerate(first_shown([item], 1) for item in first), title)
    values = [shown_values(row) for row in first]
    heads = list(dict.fromkeys(name for cells in values for name in cells))
    return html_table(heads, ([cells.get(name, "") for name in heads] for cells in values), title)


@dataclass
class RaggedValues:
    """Values of varying length of n steps.

    Attributes:
        values: All items, one step after the other.
        offsets: Where the items of each step begin, and the end, int64 of shape (n + 1,).
        shape: Shape of a value, -1 in the place of the length that varies.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[Any]:
        """Return the value of one step, in its own shape."""
        value = self.values[self.offsets[i] : self.offsets[i + 1]]
        return value.reshape(self.shape)

    def take(self, places: NDArray[np.int64]) -> "RaggedValues":
        """Return the values of some steps."""
        sizes = np.diff(self.offsets)[places]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        items = np.arange(offsets[-1]) + np.repeat(self.offsets[places] - offsets[:-1], sizes)
        return RaggedValues(self.values[items], offsets, self.shape)


@dataclass
class StepIds:
    """The ids of n steps; each id is made when it is read.

    Attributes:
        prefixes: Start of the ids of each run's steps.
        run_of: Run of each step, int64 of shape (n,).
        numbers: Number at the end of each id, int64 of shape (n,).
        given: Ids that users gave to steps, by position among the n.
    """

    prefixes: list[str]
    run_of: NDArray[np.int64]
    numbers: NDArray[np.int64]
    given: dict[int, str]

    def __len__(self) -> int:
        return len(self.numbers)

    def tolist(self) -> list[str]:
        """Return all ids."""
        pairs = zip(self.run_of.tolist(), self.numbers.tolist(), strict=True)
        ids = [f"{self.prefixes[run]}/{number}" for run, number in pairs]
        for place, id_ in self.given.items():
            ids[place] = id_
        return ids

    def take(self, places: NDArray[np.int64]) -> "StepIds":
        """Return the ids of some steps."""
        given_ids = {}
        if self.given:
            ids = (self.given.get(place) for place in places.tolist())
            given_ids = {place: id_ for place, id_ in enumerate(ids) if id_ is not None}
        return StepIds(self.prefixes, self.run_of[places], self.numbers[places], given_ids)


@dataclass
class ColumnBatch:
    """Some steps, column by column.

    Consecutive steps that were stored together are a run, which has one task, agent, episode and
    session. `column` returns any column with a value for each step.

    Attributes:
        seq: Number of each of the n steps, ascending, int64 of shape (n,).
        run_of: Run of each step, int64 of shape (n,).
        shared: Lists with a value for each run: `first_seq`, `task_id`, `task_name`, `agent_id`,
            `pre_agent`, `episode_id`, `session_id`, `model_version` and `inserted_at`.
        own: A value for each step: `id`, `t` and `step`; `reward`, `advantage`, `value` and
            `execute_time`, float64; `terminated` and `truncated`, bool; lists of JSON texts:
            `state`, `actions`, `messages` and `extra`; `arrays`, the bytes that the JSON refers to;
            `priority`, float64; `uses`; `quarantined_at` and `quarantine_reason`. None in a list
            means no value; a list may be missing if no step has a value.
        fields: The typed fields: arrays of shape (n, *shape), and `RaggedValues`.
        is_null: True where the number or flag of a step is missing, bool of shape (n,), by the name
            of the column. A column without missing values is left out.
    """

    seq: NDArray[np.int64]
    run_of: NDArray[np.int64]
    shared: dict[str, list[Any]]
    own: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)
    is_null: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seq)

    def column(self, name: str) -> Any:
        """Return a column with a value for each step: an array, `RaggedValues` or a list.

        Args:
            name: Its name. A typed field comes before a built-in column of the same name.
        """
        if name in self.fields:
            return self.fields[name]
        if name == "seq":
            return self.seq
        if name in self.own:
            values = self.own[name]
            return values.tolist() if isinstance(values, StepIds) else values
        if name not in self.shared:
            return [None] * len(self)
        column = np.empty(len(self.shared[name]), object)
        column[:] = self.shared[name]
        return column[self.run_of].tolist()

    def take(self, places: NDArray[np.int64]) -> "ColumnBatch":
        """Return some of the steps, in an order."""
        return ColumnBatch(
            self.seq[places],
            self.run_of[places],
            self.shared,
            {name: taken(values, places) for name, values in self.own.items()},
            {name: taken(values, places) for name, values in self.fields.items()},
            {name: mask[places] for name, mask in self.is_null.items()},
        )


def taken(values: Any, places: NDArray[np.int64]) -> Any:
    """Return some values of a column, in an order."""
    if isinstance(values, (RaggedValues, StepIds)):
        return values.take(places)
    if isinstance(values, list):
        return list(map(values.__getitem__, places.tolist()))
    return values[places]


@dataclass(frozen=True)
class Returns:
    """The n-step returns of b first steps, each with up to n successors.

    Attributes:
        reward: sum of gamma^k r_k for k < m, shape (b,), float64.
        discount: gamma^m, or 0 if the episode terminated within these steps, shape (b,).
        m: Number of steps: n, or fewer if the episode ends before, shape (b,).
        ended: True if the episode ended within those steps, shape (b,).
        terminated: True if it terminated there, shape (b,).
        complete: True if all m steps are known, shape (b,).
    """

    reward: NDArray[np.float64]
    discount: NDArray[np.float64]
    m: NDArray[np.int64]
    ended: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    complete: NDArray[np.bool_]


def n_step_returns(
    rewards: NDArray[Any],
    terminated: NDArray[np.bool_],
    ended: NDArray[np.bool_],
    known: NDArray[np.bool_],
    gamma: float,
) -> Returns:
    """Return the n-step returns without their bootstrap (Sutton and Barto 2018, equation 7.1).

    Args:
        rewards: r_k of step t + k, shape (b, n).
        terminated: The episode terminated at step t + k, shape (b, n).
        ended: It ended there, terminated or not, shape (b, n).
        known: There is such a step, shape (b, n).
        gamma: Discount of one step.
    """
    b, n = rewards.shape
    ends = (ended | terminated) & known
    if ends.any():
        return _with_ends(rewards, terminated, ends, known, gamma)
    no = np.zeros(b, bool)
    return Returns(
        (rewards * gamma ** np.arange(n)).sum(axis=1),
        np.full(b, np.float64(gamma) ** n),
        np.full(b, n, np.int64),
        no,
        no,
        np.asarray(known.all(axis=1)),
    )


def _with_ends(
    rewards: NDArray[Any],
    terminated: NDArray[np.bool_],
    ends: NDArray[np.bool_],
    known: NDArray[np.bool_],
    gamma: float,
) -> Returns:
    b, n = rewards.shape
    any_end: NDArray[np.bool_] = np.asarray(ends.any(axis=1))
    m = np.where(any_end, ends.argmax(axis=1) + 1, n)
    within = np.arange(n) < m[:, None]
    stops: NDArray[np.bool_] = np.logical_and(terminated[np.arange(b), m - 1], any_end)
    discounts = np.float64(gamma) ** np.arange(n + 1)
    return Returns(
        (np.where(within, rewards, 0.0) * discounts[:n]).sum(axis=1),
        np.where(stops, 0.0, discounts[m]),
        m.astype(np.int64),
        any_end,
        stops,
        (known | ~within).all(axis=1),
    )


# Types of the values that callers may give: numbers become text, and scalars of numpy and torch
# become those of Python.
Text = str | SupportsIndex | None
FlagArgument = bool | np.bool_ | None
Number = SupportsFloat | None
IntegerArgument = SupportsIndex | None
Object = Mapping[str, Any] | None
# One value for all rows, or one for each: a list, an array or a column of pandas.
Texts = str | Collection[Any] | None
Integers = IntegerArgument | Collection[Any]
Numbers = Number | Collection[Any]

P = ParamSpec("P")
S = TypeVar("S")
Result = TypeVar("Result")


class StepKeys(TypedDict, total=False):
    """Keyword arguments of `extend`: one value for all rows, or n values."""

    id: Collection[Any] | None
    task_id: Texts
    agent_id: Texts
    step: Integers
    model_version: Integers
    session_id: Texts
    episode_id: Texts
    group_id: Texts
    parent_id: Texts
    priority: Numbers


def values_of_step(
    *,
    state: Any = None,
    actions: Any = None,
    messages: Any = None,
    reward: Number = None,
    adv_t: Number = None,
    v_t: Number = None,
    terminated: FlagArgument = None,
    truncated: FlagArgument = None,
    extra: Object = None,
    priority: Number = None,
    model_version: int | None = None,
    **fields: Any,
) -> None:
    """The arguments of `EpisodeWriter.append`."""


def whole_step(
    *,
    state: Any = None,
    actions: Any = None,
    action: Any = None,
    messages: Any = None,
    reward: Number = None,
    reward_t: Number = None,
    adv_t: Number = None,
    v_t: Number = None,
    terminated: FlagArgument = None,
    truncated: FlagArgument = None,
    extra: Object = None,
    priority: Number = None,
    id: Text = None,
    task_id: Text = None,
    task_name: Text = None,
    agent_id: Text = None,
    step: IntegerArgument = None,
    execute_time: Number = None,
    pre_agent: Text = None,
    episode_id: Text = None,
    model_version: IntegerArgument = None,
    session_id: Text = None,
    **fields: Any,
) -> None:
    """The arguments of `ReplayBuffer.add`."""


def takes(
    arguments: Callable[P, Any],
) -> Callable[[Callable[Concatenate[S, ...], Result]], Callable[Concatenate[S, P], Result]]:
    """Give a method that passes its arguments on the parameters of another function.

    Args:
        arguments: A function with the parameters. It is not called.
    """
    named = inspect.signature(arguments).parameters.values()

    def give(method: Callable[Concatenate[S, ...], Result]) -> Callable[Concatenate[S, P], Result]:
        signature = inspect.signature(method)
        itself = next(iter(signature.parameters.values()))
        itself = itself.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        shown: Any = method
        shown.__signature__ = signature.replace(parameters=[itself, *named])
        return method

    return give


class EncodedRow(NamedTuple):
    """A row as it is stored.

    Attributes:
        seq: Its number.
        id: Its id.
        model_version: Version of the model that acted.
        state: JSON of its state.
        extra: JSON of its extra keys.
        arrays: Bytes of the arrays of its payloads.
    """

    seq: int
    id: str
    model_version: int | None
    state: str | None
    extra: str | None
    arrays: bytes | memoryview | None
