"""The base of the library's models, and errors of the library in place of those of pydantic."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ArgsKwargs

from sqlbuffer.display import shown
from sqlbuffer.errors import BufferConfigError, FieldError, SQLBufferError

Class = TypeVar("Class", bound=type)
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
# Pydantic's error types by the start of their names: the expected value, and an example of it.
_EXPECTED = {
    "string": ("text", "'a'"),
    "int": ("an integer", "3"),
    "float": ("a number", "0.5"),
    "bool": ("True or False", "True"),
    "dict": ("a dict", "{'a': 1}"),
    "list": ("a list", "[1, 2]"),
    "tuple": ("a tuple", "(1, 2)"),
}
_OF_TYPE = ("_type", "_parsing", "_from_float")


class Verbatim(str):
    """Text that a repr shows without quotes."""

    __repr__ = str.__str__


def library_error(
    error: ValidationError,
    kind: Callable[[str], SQLBufferError],
    owner: str,
    names: Collection[str] = (),
    advice: Callable[[str], str] | None = None,
) -> SQLBufferError:
    """Return the library's error for the first error that pydantic found.

    Args:
        error: Pydantic's error.
        kind: The class of the error, unless a check of the library found it.
        owner: Name of the thing that was made, such as a class.
        names: The fields that it has, in their order.
        advice: Returns what to do about a name that is not one of the fields; by default the
            nearest of them is named.
    """
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SQLBufferError):
        # Another one like it: pydantic's error refers to this one where the garbage collector
        # does not look, so all that is in the traceback would stay.
        return type(cause)(*cause.args)
    where = _where(first["loc"], names)
    if first["type"] in _UNKNOWN:
        hint = advice(where) if advice else _nearest(where, names)
        return kind(f"{owner} has no {where!r}; {hint}")
    if first["type"] in _MISSING:
        return kind(f"{owner} needs {where}; add {where}=...")
    if first["type"] == "unexpected_positional_argument":
        return kind(f"{owner} takes {first['loc'][-1]} values by place; give the others by name")
    if first["type"] == "multiple_argument_values":
        return kind(f"{owner}: {where} is given by its place and by its name; leave one out")
    return kind(f"{where or owner}: {_finding(first, where)}, got {shown(first['input'])}")


def _where(loc: tuple[int | str, ...], names: Collection[str]) -> str:
    """Return the name of the wrong value, or the position of an argument without a name."""
    if loc and isinstance(loc[0], int) and loc[0] < len(names):
        loc = (list(names)[loc[0]], *loc[1:])
    return ".".join(map(str, loc))


def _nearest(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"


def _finding(first: Any, where: str) -> str:
    """Return the expected value, with an example."""
    name = where.rpartition(".")[2]
    if first["type"] in ("dataclass_type", "dataclass_exact_type"):
        owner = first["ctx"]["class_name"]
        return f"expected {owner}, such as {name}={owner}(...)"
    if first["type"] == "model_type":
        return "expected a dict"
    expected = _EXPECTED.get(first["type"].partition("_")[0])
    if expected is not None and first["type"].endswith(_OF_TYPE):
        example = f", such as {name}={expected[1]}" if name.isidentifier() else ""
        return f"expected {expected[0]}{example}"
    message: str = first["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "expected", 1)


def with_own_errors(cls: Class) -> Class:
    """Return a pydantic dataclass whose `FieldError` replaces a `ValidationError`."""
    generated: Any = cls.__init__  # type: ignore[misc]

    # It does what the generated one does, and does not call it: rows are made in hot loops.
    @wraps(generated)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(
                ArgsKwargs(args, kwargs), self_instance=self
            )
        except ValidationError as error:
            names = tuple(cls.__pydantic_fields__)  # type: ignore[attr-defined]
            raise library_error(error, FieldError, cls.__name__, names) from None

    cls.__init__ = __init__  # type: ignore[misc]
    return cls


class CheckedModel(BaseModel):
    """A model whose errors are the library's.

    Raises:
        SQLBufferError: The first wrong value; the class is that of the check that found it.
    """

    def __init__(self, **values: Any) -> None:
        with self._own_errors():
            super().__init__(**values)

    # pydantic validates a model inside another one itself, and knows where in it a value is.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        with self._own_errors():
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        with self._own_errors():
            super().__delattr__(name)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Return the model of a dict; see pydantic.

        Raises:
            BufferConfigError: A value is invalid.
            FieldError: A field is malformed.
        """
        with cls._own_errors():
            return super().model_validate(obj, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Return the model of JSON text; see pydantic.

        Raises:
            BufferConfigError: The text is not JSON, or a value is invalid.
            FieldError: A field is malformed.
        """
        with cls._own_errors():
            return super().model_validate_json(json_data, **options)

    @classmethod
    def model_validate_strings(cls, obj: Any, **options: Any) -> Self:
        """Return the model of a dict of texts; see pydantic.

        Raises:
            BufferConfigError: A value is invalid.
            FieldError: A field is malformed.
        """
        with cls._own_errors():
            return super().model_validate_strings(obj, **options)

    @classmethod
    def own_error(cls, error: ValidationError) -> SQLBufferError:
        """Return the error to raise for one of pydantic.

        :meta private:
        """
        return library_error(error, FieldError, cls.__name__, tuple(cls.model_fields))

    @classmethod
    @contextmanager
    def _own_errors(cls) -> Iterator[None]:
        try:
            yield
        except ValidationError as error:
            raise cls.own_error(error) from None


def setting(
    check: Callable[..., Any], *args: Any, or_none: bool = False, name: str = "", **options: Any
) -> BeforeValidator:
    """Return the validator of a setting: a check of arguments, under the name of the setting.

    Args:
        check: A function of `sqlbuffer.checks`.
        *args: More arguments of it.
        or_none: True for a setting that may be None.
        name: Name of the setting if it is not that of the field.
        **options: Arguments by name.
    """

    def checked(value: Any, info: ValidationInfo) -> Any:
        if or_none and value is None:
            return None
        return check(value, name or str(info.field_name), *args, error=BufferConfigError, **options)

    return BeforeValidator(checked)


class StrictModel(CheckedModel):
    """A frozen model without unknown keys. Its repr shows what differs from the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        # pydantic calls it for a model inside another one too, so that errors name the inner one.
        super().__init__(**values)

    @model_validator(mode="wrap")
    @classmethod
    def _check_names(cls, values: Any, validated: Callable[[Any], Self]) -> Self:
        """Refuse names that pydantic could not pass to the constructor."""
        if isinstance(values, Mapping) and not all(isinstance(name, str) for name in values):
            owner = cls.model_config.get("title") or cls.__name__
            raise BufferConfigError(f"{owner} is a dict with names as keys, got {shown(values)}")
        return validated(values)

    @classmethod
    def advice_on(cls, name: str) -> str:
        """Return what to do about a key that the model does not have.

        :meta private:
        """
        return f"it has {', '.join(cls.model_fields)}"

    @classmethod
    def own_error(cls, error: ValidationError) -> SQLBufferError:
        """Return the error to raise for one of pydantic.

        :meta private:
        """
        # A part of another model is titled with its name there; users do not make it themselves.
        owner = cls.model_config.get("title") or cls.__name__
        names = tuple(cls.model_fields)
        return library_error(error, BufferConfigError, owner, names, cls.advice_on)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        default = type(self)()
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != getattr(default, name):
                yield name, value if field.repr else Verbatim("...")

    def __str__(self) -> str:
        return repr(self)
