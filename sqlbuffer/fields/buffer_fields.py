"""The typed fields that a buffer declares for its steps, episodes and observations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlbuffer.errors import FieldError
from sqlbuffer.fields.declarations import VARIABLE, is_json_dtype
from sqlbuffer.fields.specs import FieldSpec

# Other arguments of the calls that store an episode with its meta.
RESERVED_META = ("arrays", "final", "casting", "self")
MAX_ROW_BYTES = 2**28  # a quarter of what PostgreSQL takes for a value


def parse_specs(given: Mapping[str, Any] | None) -> dict[str, FieldSpec]:
    """Return the declared fields by name, in the order of their declaration.

    Raises:
        FieldError: A malformed declaration; names the field.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise FieldError(
            f"fields are given as a dict such as {{'obs': ('float32', (4,))}}, got {given!r}"
        )
    specs = {str(name): FieldSpec.parse(name, spec) for name, spec in given.items()}
    sizes = {name: spec.dtype.itemsize * _n_items(spec.shape) for name, spec in specs.items()}
    if sum(sizes.values()) > MAX_ROW_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise FieldError(
            f"field {largest!r}: a row of these fields has {sum(sizes.values()):,} bytes, and one "
            f"holds {MAX_ROW_BYTES:,} at most; declare smaller parts"
        )
    return specs


def _n_items(shape: tuple[int, ...]) -> int:
    return math.prod(n for n in shape if n != VARIABLE)


def parse_meta_specs(given: Mapping[str, Any] | None) -> dict[str, FieldSpec]:
    """Return the declared fields of an episode; as `parse_specs`.

    Raises:
        FieldError: Also for a name that a call which stores episodes uses itself, and for what JSON
            does not have.
    """
    specs = parse_specs(given)
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


@dataclass(frozen=True)
class Fields:
    """The typed fields of a buffer.

    Attributes:
        specs: The fields of a step by name, in the order of their declaration.
        observations: The names of the fields that make an observation.
        meta: The fields of an episode by name.
        unsaid: The parts that were not given; the stored ones are used for them.
    """

    specs: Mapping[str, FieldSpec]
    observations: tuple[str, ...] = ()
    meta: Mapping[str, FieldSpec] = field(default_factory=dict)
    unsaid: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def parse(
        cls,
        given: Mapping[str, Any] | None,
        observations: Sequence[str] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> "Fields":
        """Return the declared fields; without `observations` an observation is the field `obs`.

        Raises:
            FieldError: A malformed declaration, an unknown observation field, or a name that is
                declared twice.
        """
        specs, meta_specs = parse_specs(given), parse_meta_specs(meta)
        if double := set(specs) & set(meta_specs):
            raise FieldError(
                f"field {min(double)!r} is declared in fields and in meta_fields; rename one"
            )
        named = {"specs": given, "observations": observations, "meta": meta}
        unsaid = frozenset(part for part, value in named.items() if value is None)
        if isinstance(observations, str):
            observations = (observations,)
        if observations is None:
            observations = [name for name in specs if name == "obs"]
        for name in observations:
            if name not in specs:
                raise FieldError(
                    f"observation field {name!r} is not declared; declared are "
                    f"{', '.join(specs) or 'none'}"
                )
        return cls(specs, tuple(observations), meta_specs, unsaid)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON: a list, since objects do not keep their order everywhere."""
        found = {"fields": _listed(self.specs), "observations": list(self.observations)}
        return {**found, "meta": _listed(self.meta)} if self.meta else found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Fields":
        """Return the fields that `to_json` wrote."""
        specs, meta = (
            {each["name"]: FieldSpec.from_json(each["name"], each) for each in stored.get(part, ())}
            for part in ("fields", "meta")
        )
        return cls(specs, tuple(stored["observations"]), meta)

    @property
    def comparable(self) -> dict[str, bool]:
        """Whether conditions can use each of them."""
        return {name: spec.column for name, spec in self.specs.items()}


def _listed(specs: Mapping[str, FieldSpec]) -> list[dict[str, Any]]:
    return [{"name": name, **spec.to_json()} for name, spec in specs.items()]


NO_FIELDS = Fields({})


def check_same(given: Fields, stored: Fields) -> None:
    """Raise FieldError unless two declarations are the same.

    The message names the first field that differs and both of its declarations.
    """
    if "specs" not in given.unsaid:
        _check_same_specs("field", given.specs, stored.specs)
    if "meta" not in given.unsaid:
        _check_same_specs("meta field", given.meta, stored.meta)
    observations = set(given.observations), set(stored.observations)
    if "observations" not in given.unsaid and observations[0] != observations[1]:
        raise FieldError(
            f"the observation fields are stored as {list(stored.observations)}, and were given as "
            f"{list(given.observations)}; leave them out to use what is stored"
        )


def _check_same_specs(
    what: str, given: Mapping[str, FieldSpec], stored: Mapping[str, FieldSpec]
) -> None:
    for name in dict.fromkeys([*stored, *given]):
        left, right = given.get(name), stored.get(name)
        if left != right:
            raise FieldError(
                f"{what} {name!r} is stored as {_described(right)}, and was given as "
                f"{_described(left)}; leave the fields out to use what is stored, or give the "
                f"buffer another name"
            )


def _described(spec: FieldSpec | None) -> str:
    if spec is None:
        return "nothing"
    value = spec.default_value
    default = "" if value is None else f", default {value.tolist()!r}"
    return f"{spec}{default}{', a column' if spec.column else ''}"
