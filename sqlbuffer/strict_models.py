"""The base of the library's models: frozen, without unknown keys, with errors of the library."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sqlbuffer.errors import BufferConfigError, SQLBufferError


class Verbatim(str):
    """Text that a repr shows without quotes."""

    __repr__ = str.__str__


class StrictModel(BaseModel):
    """A frozen model. Its repr shows what differs from the defaults.

    Raises:
        SQLBufferError: The first wrong value; the class is that of the check that found it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        with self._own_errors():
            super().__init__(**values)

    def __setattr__(self, name: str, value: Any) -> None:
        with self._own_errors():
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        with self._own_errors():
            super().__delattr__(name)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Return the model of a dict; see pydantic."""
        with cls._own_errors():
            return super().model_validate(obj, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Return the model of JSON text; see pydantic."""
        with cls._own_errors():
            return super().model_validate_json(json_data, **options)

    @classmethod
    def advice_on(cls, name: str) -> str:
        """Return what to do about a key that the model does not have."""
        return f"it has {', '.join(cls.model_fields)}"

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        default = type(self)()
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value != getattr(default, name):
                yield name, value

    def __str__(self) -> str:
        return repr(self)

    @classmethod
    @contextmanager
    def _own_errors(cls) -> Iterator[None]:
        try:
            yield
        except ValidationError as error:
            raise cls._own_error(error) from None

    @classmethod
    def _own_error(cls, error: ValidationError) -> SQLBufferError:
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, SQLBufferError):
            # Another one like it: pydantic's error refers to this one where the garbage collector
            # does not look, so all that is in the traceback would stay.
            return type(cause)(*cause.args)
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            return BufferConfigError(f"{cls.__name__} has no {where!r}; {cls.advice_on(where)}")
        named = f"{where}: " if where else ""
        return BufferConfigError(
            f"{cls.__name__}: {named}{first['msg']}, got {first['input']!r:.100}"
        )
