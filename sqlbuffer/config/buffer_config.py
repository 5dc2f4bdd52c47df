"""Everything that is stored about a buffer, as one model."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from pydantic import model_validator

from sqlbuffer.checks import checked_dict
from sqlbuffer.config.setting_groups import (
    Compression,
    EpisodeConfig,
    EvictUnit,
    FlowConfig,
    LeaseConfig,
    PayloadConfig,
    PriorityConfig,
    RetentionConfig,
    SamplingConfig,
)
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import ArgumentError, BufferConfigError
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.rate_limits import NO_LIMIT, FlowCounts, Policy
from sqlbuffer.strict_models import StrictModel, Verbatim

# Settings whose names differ as keyword arguments from those in their groups.
_ARGUMENTS = {
    ("fields", "specs"): "fields",
    ("fields", "observations"): "observation_fields",
    ("fields", "meta"): "meta_fields",
    ("priorities", "enabled"): "priorities",
    ("leases", "enabled"): "leases",
}


class BufferSettings(TypedDict, total=False):
    """The settings of `BufferConfig` as keyword arguments; None means omitted."""

    max_capacity: int | None
    max_episodes: int | None
    evict_by: EvictUnit | None
    keep_expired: bool | None
    keep_episodes: int | None
    open_timeout_s: float | None
    fields: Mapping[str, Any] | None
    observation_fields: Sequence[str] | None
    meta_fields: Mapping[str, Any] | None
    compression: Compression | None
    max_row_bytes: int | None
    priorities: bool | None
    alpha: float | None
    max_use: int | None
    max_staleness: int | None
    min_size: int | None
    current_session_only: bool | None
    track_samples: bool | None
    keep_samples_s: float | None
    leases: bool | None
    rate_limiter: Policy | None


class BufferConfig(StrictModel):
    """Everything that is stored about a buffer, in groups.

    `BufferConfig.of(max_capacity=100)` takes the settings as `ReplayBuffer` does. In JSON the
    settings are in their groups: `model_dump_json` writes it, `model_validate_json` reads it.

    Attributes:
        retention: Size limits, and the unit of eviction.
        episodes: Times for which episodes are kept and waited for.
        fields: Typed fields.
        payloads: Storage of the payloads of rows.
        priorities: Priorities of rows.
        sampling: Limits on the rows that may be sampled, and the log of batches.
        leases: Leases of rows.
        flow: Flow control between collectors and learners.

    Raises:
        BufferConfigError: A value is invalid, or no row could ever be sampled with these settings.
        FieldError: A field is malformed.

    Example:
        >>> config = BufferConfig.of(max_capacity=1_000, priorities=True)
        >>> config
        BufferConfig.of(max_capacity=1000, priorities=True)
        >>> config.priorities.alpha
        0.6
        >>> config.replace({"max_capacity": None}).given()
        {'max_capacity': None, 'priorities': True}
        >>> config.settings()["max_capacity"]
        1000
        >>> BufferConfig.model_validate_json(config.model_dump_json()) == config
        True
    """

    retention: RetentionConfig = RetentionConfig()
    episodes: EpisodeConfig = EpisodeConfig()
    fields: Fields = Fields()
    payloads: PayloadConfig = PayloadConfig()
    priorities: PriorityConfig = PriorityConfig()
    sampling: SamplingConfig = SamplingConfig()
    leases: LeaseConfig = LeaseConfig()
    flow: FlowConfig = FlowConfig()

    @classmethod
    def of(cls, **settings: Unpack[BufferSettings]) -> "BufferConfig":
        """Return the configuration with these settings; None leaves the default.

        Raises:
            BufferConfigError: A value is invalid, or two settings contradict each other.
            FieldError: A field is malformed.
            ArgumentError: A setting is unknown.
        """
        return cls().replace({name: v for name, v in settings.items() if v is not None})

    def replace(self, settings: Mapping[str, Any]) -> "BufferConfig":
        """Return this configuration with other settings.

        Args:
            settings: Settings by their names as keyword arguments. None is a value, for example
                unlimited.

        Raises:
            BufferConfigError: A value is invalid, or two settings contradict each other.
            FieldError: A field is malformed.
            ArgumentError: A setting is unknown.
        """
        example = "{'max_capacity': 100}"
        checked_dict(settings, "settings", example, error=BufferConfigError)
        values: dict[str, dict[str, Any]] = {group: {} for group in type(self).model_fields}
        for argument, value in {**self.given(), **settings}.items():
            if argument not in PLACES:
                raise unknown_setting(argument, PLACES)
            group, name = PLACES[argument]
            values[group][name] = value
        return type(self)(**{group: own for group, own in values.items() if own})

    def settings(self) -> dict[str, Any]:
        """Return all settings by their names as keyword arguments."""
        return {
            argument: getattr(getattr(self, group), name)
            for argument, (group, name) in PLACES.items()
        }

    def given(self) -> dict[str, Any]:
        """Return the settings that this configuration was made with, without the defaults."""
        return {
            argument: value
            for argument, value in self.settings().items()
            if PLACES[argument][1] in getattr(self, PLACES[argument][0]).model_fields_set
        }

    @model_validator(mode="after")
    def _check_together(self) -> "BufferConfig":
        check_fits(self.retention.max_capacity, self.sampling.min_size)
        if self.leases.enabled and self.retention.evict_by != "row":
            raise BufferConfigError(
                "a buffer with leases=True evicts by row; leave out evict_by and max_episodes"
            )
        return self

    @classmethod
    def advice_on(cls, name: str) -> str:
        """Return what to do about a key that the model does not have.

        :meta private:
        """
        if name in PLACES:
            return f"put it into the group {PLACES[name][0]!r}"
        return super().advice_on(name)

    def __repr_name__(self) -> str:
        return "BufferConfig.of"

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        default = type(self)().settings()
        for argument, value in self.settings().items():
            if value == default[argument]:
                continue
            if isinstance(value, Mapping):
                value = {name: Verbatim(spec) for name, spec in value.items()}
            yield argument, value


def check_fits(max_capacity: int | None, min_size: int) -> None:
    """Raise if a buffer never holds enough rows to be sampled."""
    if max_capacity is not None and max_capacity < min_size:
        raise BufferConfigError(
            f"a buffer of max_capacity={max_capacity} never holds the {min_size} rows that it is "
            f"sampled from (min_size); let it hold as many"
        )


def check_reached(policy: Policy | None, min_size: int, n_rows: int = 0) -> None:
    """Raise if a limiter stops inserts before there are enough rows to sample any."""
    room = NO_LIMIT if policy is None else policy.room(FlowCounts(0, 0))
    if n_rows + room < min_size:
        raise BufferConfigError(
            f"{policy} lets {room:,} rows in before any is sampled, and the buffer holds "
            f"{n_rows:,} and is sampled from {min_size:,} on (min_size): both sides would wait for "
            f"each other; give the limiter min_size={min_size - n_rows} or more"
        )


DEFAULT_CONFIG = BufferConfig()


def _places() -> dict[str, tuple[str, str]]:
    return {
        _ARGUMENTS.get((group, name), name): (group, name)
        for group, field in BufferConfig.model_fields.items()
        for name in type(field.default).model_fields
    }


# Where each setting is in the model, by its name as a keyword argument.
PLACES = _places()


def unknown_setting(name: str, known: Iterable[str]) -> ArgumentError:
    """Return the error for a keyword argument that is none of the settings."""
    nearest = difflib.get_close_matches(name[:100] if isinstance(name, str) else "", known, n=1)
    advice = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}"
    return ArgumentError(f"there is no setting {shown(name)}; {advice}")
