"""The typed fields that a buffer declares for its steps, episodes and observations."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from sqlbuffer.checks import checked_names, refused
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.declarations import VARIABLE, is_json_dtype
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.strict_models import StrictModel, Verbatim

# Other arguments of the calls that store an episode with its meta.
RESERVED_META = ("arrays", "final", "casting", "self")
MAX_ROW_BYTES = 2**28  # a quarter of what PostgreSQL takes for a value


def parse_specs(given: Any, what: str = "fields") -> dict[str, FieldSpec]:
    """Return the declared fields by name, in the order of their declaration.

    Args:
        given: A dict of declarations, or the list that `Fields` makes of them in JSON: objects do
            not keep their order everywhere.
        what: Name of the argument.

    Raises:
        FieldError: A malformed declaration; the message names the field.
    """
    if isinstance(given, list) and all(isinstance(each, dict) and "name" in each for each in given):
        specs = {each["name"]: FieldSpec.from_json(each["name"], each) for each in given}
    elif isinstance(given, Mapping):
        if "observation_fields" in given and isinstance(given.get("fields"), Mapping):
            raise FieldError(
                "fields got the arguments that fields_from_env() returns; write "
                "ReplayBuffer(url, **fields_from_env(env))"
            )
        specs = {str(name): _parsed(name, spec) for name, spec in given.items()}
    else:
        raise refused(given, what, "a dict such as {'obs': ('float32', (4,))}", FieldError)
    sizes = {name: spec.dtype.itemsize * _n_items(spec.shape) for name, spec in specs.items()}
    if sum(sizes.values()) > MAX_ROW_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise FieldError(
            f"field {largest!r}: a row of these fields has {sum(sizes.values()):,} bytes, and one "
            f"holds {MAX_ROW_BYTES:,} at most; declare smaller parts"
        )
    return specs


def _parsed(name: object, given: Any) -> FieldSpec:
    is_one = isinstance(given, FieldSpec) and given.name == name
    return given if is_one else FieldSpec.parse(name, given)


def _n_items(shape: tuple[int, ...]) -> int:
    return math.prod(n for n in shape if n != VARIABLE)


def parse_meta_specs(given: Any) -> dict[str, FieldSpec]:
    """Return the declared fields of an episode; as `parse_specs`.

    Raises:
        FieldError: Also for a name that a call which stores episodes uses itself, and for what JSON
            does not have.
    """
    specs = parse_specs(given, "meta_fields")
    for name, spec in specs.items():
        if name in RESERVED_META:
            raise FieldError(f"meta field {name!r}: store_episode uses this name; take another")
        if spec.column:
            raise FieldError(
                f"meta field {name!r}: conditions are about steps; leave column out, or declare it "
                f"in fields"
            )
        if not is_json_dtype(spec.dtype):
            raise FieldError(
                f"meta field {name!r}: numbers of up to 64 bits, booleans and texts are kept with "
                f"an episode, and this is {spec}"
            )
    return specs


def _names(given: Any) -> Any:
    if isinstance(given, str):
        return (given,)
    return tuple(checked_names(given, "observation_fields", "['obs']"))


def _listed(specs: Mapping[str, FieldSpec]) -> list[dict[str, Any]]:
    return [{"name": name, **spec.to_json()} for name, spec in specs.items()]


_ToJson = PlainSerializer(_listed, return_type=list[dict[str, Any]])


class Fields(StrictModel, title="fields"):
    """The typed fields of a buffer.

    Attributes:
        specs: The fields of a step by name, in the order of their declaration. A declaration is a
            dtype, `(dtype, shape)`, `(dtype, shape, default)`, or a dict of `dtype`, `shape`,
            `default` and `column`.
        observations: The names of the fields that make an observation; `obs` by default.
        meta: The fields of an episode by name: numbers, booleans, texts and small arrays of them.

    Raises:
        FieldError: A malformed declaration, an unknown observation field, or a name that is
            declared twice.

    Example:
        >>> Fields(specs={"obs": ("float32", (4,)), "action": "int64"})
        Fields(obs float32(4,), action int64; observed: obs)
    """

    specs: Annotated[Mapping[str, FieldSpec], PlainValidator(parse_specs), _ToJson] = Field(
        default_factory=dict
    )
    observations: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        default_factory=lambda found: ("obs",) if "obs" in found.get("specs", ()) else ()
    )
    meta: Annotated[Mapping[str, FieldSpec], PlainValidator(parse_meta_specs), _ToJson] = Field(
        default_factory=dict
    )

    @model_validator(mode="after")
    def _check(self) -> "Fields":
        if double := set(self.specs) & set(self.meta):
            raise FieldError(
                f"field {shown(min(double))} is declared in fields and in meta_fields; rename one"
            )
        for name in self.observations:
            if name not in self.specs:
                raise FieldError(
                    f"observation_fields: field {shown(name)} is not declared; declared are "
                    f"{', '.join(self.specs) or 'none'}"
                )
        return self

    @property
    def comparable(self) -> dict[str, bool]:
        """Whether conditions can use each of them."""
        return {name: spec.column for name, spec in self.specs.items()}

    @property
    def has_next(self) -> bool:
        """Whether the observation after a step is stored with it, in fields named `next_<name>`."""
        return all(f"next_{name}" in self.specs for name in self.observations)

    def differences(self, stored: "Fields") -> list[str]:
        """Return how these fields differ from stored ones, a line each; parts that were not given
        are not compared.
        """
        found = []
        if "specs" in self.model_fields_set:
            found += _different_specs("field", self.specs, stored.specs)
        if "meta" in self.model_fields_set:
            found += _different_specs("meta field", self.meta, stored.meta)
        is_given = "observations" in self.model_fields_set
        if is_given and set(self.observations) != set(stored.observations):
            found.append(
                f"the observation fields are stored as {list(stored.observations)}, and were given "
                f"as {list(self.observations)}"
            )
        return found

    def check_same(self, stored: "Fields") -> None:
        """Raise FieldError unless the given fields equal the stored ones."""
        if found := self.differences(stored):
            raise FieldError(
                f"{'; '.join(found)}; omit the fields to use the stored ones, or give the "
                f"buffer another name"
            )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        parts = {"": self.specs, "meta: ": self.meta}
        shown = [
            f"{what}{', '.join(f'{name} {spec}' for name, spec in specs.items())}"
            for what, specs in parts.items()
            if specs
        ]
        if self.observations:
            shown.append(f"observed: {', '.join(self.observations)}")
        yield None, Verbatim("; ".join(shown))


def _different_specs(
    what: str, given: Mapping[str, FieldSpec], stored: Mapping[str, FieldSpec]
) -> list[str]:
    return [
        f"{what} {name!r} is stored as {_described(stored.get(name))}, and was given as "
        f"{_described(given.get(name))}"
        for name in dict.fromkeys([*stored, *given])
        if given.get(name) != stored.get(name)
    ]


def _described(spec: FieldSpec | None) -> str:
    if spec is None:
        return "nothing"
    value = spec.default_value
    default = "" if value is None else f", default {value.tolist()!r}"
    return f"{spec}{default}{', a column' if spec.column else ''}"
