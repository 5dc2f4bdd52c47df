"""The row classes: one experience is one step of an agent in a task."""

import dataclasses
from dataclasses import InitVar, field
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from sqlbuffer.codec.decoder import untag
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.equality import equal
from sqlbuffer.display.html import html_table
from sqlbuffer.display.short_values import short
from sqlbuffer.errors import FieldError
from sqlbuffer.steps.ids import uuid7
from sqlbuffer.strict_models import with_own_errors

LONGEST_KEY_BITS = 1_000  # about 300 digits
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
    """Return what refuses types from which pydantic would make a value, with one of its errors."""

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


@with_own_errors
@dataclass(config=_CONFIG, eq=False)
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
    step: Integer = 0
    execute_time: Real | None = None
    pre_agent: Key | None = None
    episode_id: Key | None = field(default=None, kw_only=True)
    model_version: Integer | None = field(default=None, kw_only=True)
    session_id: Key | None = field(default=None, kw_only=True)

    __eq__ = _equal_by_content
    __repr__ = _repr_of_values
    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict; the optional ones only where set."""
        return _as_dict(self, optional=("episode_id", "model_version", "session_id"))


@with_own_errors
@dataclass(config=_CONFIG, eq=False)
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
@dataclass(config=_CONFIG, eq=False)
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
        found = {
            "exp_meta": self.exp_meta.to_dict(),
            "exp_data": self.exp_data.to_dict(),
            "id": self.id,
        }
        return {**found, "fields": dict(self.fields)} if self.fields else found


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
