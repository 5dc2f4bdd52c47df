"""The stored settings of a buffer, those of each process that opens it, and the environment's."""

import difflib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict, Unpack, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from sqlbuffer.checks import (
    A_SIZE,
    AN_AGE,
    checked_age,
    checked_choice,
    checked_dict,
    checked_duration,
    checked_flag,
    checked_instance,
    checked_integer,
    checked_number,
    checked_seconds,
    checked_size,
)
from sqlbuffer.display import shown
from sqlbuffer.encoding.packing import known_compression
from sqlbuffer.errors import ArgumentError, BufferConfigError, FieldError
from sqlbuffer.fields import MAX_ROW_BYTES, Fields
from sqlbuffer.rate_limits import NO_LIMIT, FlowCounts, Policy, policy_to_json, rate_limiter_of
from sqlbuffer.spaces import Spaces
from sqlbuffer.strict_models import StrictModel, Verbatim, setting

DEFAULT_URL = "sqlite:///sqlbuffer.db"


EvictUnit = Literal["row", "task", "episode"]
StalenessOf = Literal["oldest", "newest"]
Compression = Literal["zstd"]
UNLIMITED = ", or None (unlimited)"
MAX_USE = 2**31 - 1

_Limit = Annotated[int | None, setting(checked_integer, 1, or_none=True, more=UNLIMITED)]
_Age = Annotated[float | None, setting(checked_age, or_none=True, what=AN_AGE + UNLIMITED)]
_Bytes = Annotated[int | None, setting(checked_size, or_none=True, what=A_SIZE + UNLIMITED)]
_Size = Annotated[int, setting(checked_integer, 1)]
_Seconds = Annotated[float, setting(checked_duration)]
_Flag = Annotated[bool, setting(checked_flag)]


def url_of_environment() -> str | None:
    """Return the database's URL that the environment gives (`SQLBUFFER_URL`)."""
    return os.environ.get("SQLBUFFER_URL")


class RetentionConfig(StrictModel, title="retention"):
    """Size limits of a buffer, and the unit of eviction.

    Attributes:
        max_capacity: Largest number of rows; the oldest leave first. None is unlimited.
        max_episodes: Largest number of episodes. The ended episodes that began first leave, each as
            a whole. None is unlimited.
        evict_by: Unit of eviction: `row`, `task` or `episode`. With `task`, the task whose last
            write is oldest leaves as a whole. With `max_episodes`, the default is `episode`.
        max_age: Largest age of a step, as `7d`, `12h`, `90 min`, a timedelta or seconds; it is
            stored in seconds. Older steps leave, at most a minute late. A task or an episode
            leaves, as a whole, when its newest step is older. None is unlimited.
        max_bytes: Largest size of all payloads, as `200 GB`, `500 MiB` or bytes; see
            `size_bytes`. The oldest steps leave, at most a minute late. None is unlimited.
        keep_expired: True keeps rows that are too stale, used up or of another session until they
            are evicted; they may be sampled again if the clock goes back. False deletes them
            before.
    """

    max_capacity: _Limit = None
    max_episodes: _Limit = None
    evict_by: Annotated[EvictUnit, setting(checked_choice, get_args(EvictUnit))] = Field(
        default_factory=lambda values: "row" if values.get("max_episodes") is None else "episode"
    )
    max_age: _Age = None
    max_bytes: _Bytes = None
    keep_expired: _Flag = False

    @model_validator(mode="after")
    def _check_unit(self) -> "RetentionConfig":
        if self.max_episodes is not None and self.evict_by != "episode":
            raise BufferConfigError(
                f"a buffer with max_episodes evicts by episode; leave out evict_by="
                f"{shown(self.evict_by)}"
            )
        return self


class EpisodeConfig(StrictModel, title="episodes"):
    """Times for which episodes are kept and waited for.

    Attributes:
        keep_episodes: Largest number of episodes that `v_episodes` lists after their steps have
            left.
        open_timeout_s: Seconds without a write after which an open episode is abandoned.
    """

    keep_episodes: _Size = 1_000_000
    open_timeout_s: _Seconds = 3_600.0


class PayloadConfig(StrictModel, title="payloads"):
    """Storage of the payloads of rows.

    Attributes:
        compression: `zstd` compresses the bytes of arrays, in typed fields and in payloads, if that
            makes them shorter. None does not.
        max_row_bytes: Largest payload of a row in bytes; a larger row is refused.
        shared_messages: True stores each message of the conversations in `messages` once.
    """

    compression: Annotated[Compression | None, BeforeValidator(known_compression)] = None
    max_row_bytes: _Size = MAX_ROW_BYTES
    shared_messages: _Flag = False


class PriorityConfig(StrictModel, title="priorities"):
    """The priorities of rows.

    Attributes:
        enabled: True gives rows priorities, which `update_priorities` sets and `PrioritizedSampler`
            uses. As a keyword argument it is named `priorities`.
        alpha: Exponent of priorities, from 0 (no effect) to 1.
    """

    enabled: Annotated[bool, setting(checked_flag, name="priorities")] = False
    alpha: Annotated[float, setting(checked_number, 0, 1)] = 0.6

    @model_validator(mode="after")
    def _check_alpha(self) -> "PriorityConfig":
        # An opener of a buffer with priorities may give alpha alone.
        is_off = "enabled" in self.model_fields_set and not self.enabled
        if is_off and self.alpha != type(self).model_fields["alpha"].default:
            raise BufferConfigError("alpha goes with priorities=True")
        return self


class SamplingConfig(StrictModel, title="sampling"):
    """Limits on the rows that may be sampled, and the log of batches.

    Attributes:
        max_use: Largest number of times that a row is sampled; sampling is then a write. None:
            unlimited.
        max_staleness: Largest distance of a sampled row's `model_version` behind the clock
            (`set_clock`). None: unlimited.
        staleness_of: How old the steps of an episode are whose steps have several versions: with
            `oldest`, each step is as old as its own version, and a group or a window as its
            oldest step; with `newest`, all are as old as the newest step of the episode.
        min_size: Number of rows that the buffer must hold before any row is sampled.
        current_session_only: True samples only rows of the session that `start_session` began last.
        track_samples: True logs the rows of each batch; `v_samples` shows them.
        keep_samples_s: Seconds for which this log is kept.
    """

    max_use: Annotated[
        int | None, setting(checked_integer, 1, MAX_USE, or_none=True, more=UNLIMITED)
    ] = None
    max_staleness: Annotated[
        int | None, setting(checked_integer, 0, or_none=True, more=UNLIMITED)
    ] = None
    staleness_of: Annotated[StalenessOf, setting(checked_choice, get_args(StalenessOf))] = "oldest"
    min_size: Annotated[int, setting(checked_integer, 0)] = 0
    current_session_only: _Flag = False
    track_samples: _Flag = False
    keep_samples_s: _Seconds = 604_800.0


class LeaseConfig(StrictModel, title="leases"):
    """Leases of rows.

    Attributes:
        enabled: True for a buffer whose rows `lease` hands out, each `max_use` times. As a keyword
            argument it is named `leases`.
    """

    enabled: Annotated[bool, setting(checked_flag, name="leases")] = False


class FlowConfig(StrictModel, title="flow"):
    """Flow control between collectors and learners.

    Attributes:
        rate_limiter: A `RateLimiter` or `RatioWindow` that all processes of the buffer obey: the
            faster side waits for the other. None: no limit.
    """

    rate_limiter: Annotated[
        Policy | None,
        PlainValidator(rate_limiter_of),
        PlainSerializer(policy_to_json, return_type=dict[str, Any] | None),
    ] = None


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
    max_age: str | timedelta | float | None
    max_bytes: str | int | None
    keep_expired: bool | None
    keep_episodes: int | None
    open_timeout_s: float | None
    fields: Mapping[str, Any] | None
    observation_fields: Sequence[str] | None
    meta_fields: Mapping[str, Any] | None
    spaces: Spaces | Mapping[str, Any] | None
    compression: Compression | None
    max_row_bytes: int | None
    shared_messages: bool | None
    priorities: bool | None
    alpha: float | None
    max_use: int | None
    max_staleness: int | None
    staleness_of: StalenessOf | None
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
        return type(self)(
            **{group: group_settings for group, group_settings in values.items() if group_settings}
        )

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


def checked_limits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some settings that limit the age and the size of a buffer, checked."""
    checks: dict[str, Any] = {"max_age": checked_age, "max_bytes": checked_size}
    expected = {"max_age": AN_AGE + UNLIMITED, "max_bytes": A_SIZE + UNLIMITED}
    return {
        name: None
        if settings[name] is None
        else check(settings[name], name, what=expected[name], error=BufferConfigError)
        for name, check in checks.items()
        if name in settings
    }


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


RETRY_S = 30.0
MAX_PENDING = 1_024  # steps that a process may lose when it is killed
Durability = Literal["relaxed", "full"]


def _read_url(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value):
        return value
    # Not quoted: it may have a password.
    raise BufferConfigError(f"read_url is the URL of a standby as text, got {type(value).__name__}")


class Connection(StrictModel):
    """Settings of one process that opens a buffer. They are not stored.

    Attributes:
        durability: Failures that a completed write survives. None: the death of any process of the
            client or the server; on PostgreSQL also what its `synchronous_commit` covers. SQLite
            may lose the last writes in a power failure. `full`: a power failure too, at the cost of
            a disk sync for each write. `relaxed`: on PostgreSQL, writes do not wait for the disk,
            and the last half second may be lost when the server dies; on SQLite the same as None.
            In each case a batch is stored whole or not at all.
        retry_s: Seconds for which a call is repeated while the server cannot be reached; also for
            opening. A write takes effect once. 0 raises immediately. A wrong password, a missing
            role and a missing database always raise immediately.
        wait_s: Seconds that a call waits for the buffer's rate limiter before it raises
            `FlowControlError`; 0 raises immediately.
        flush_s: Longest time in seconds until a pending step of `episode()` is stored, unless the
            rate limiter or the database holds it up.
        max_pending: Largest number of pending steps of `episode()`, `record()` and `add`; a call
            that would exceed it waits. A process that is killed loses them.
        read_url: URL of a standby of the database. Reads, draws that are not counted, mirrors,
            copies and exports use it; they see what this process has written. Writes, leases, and
            the draws of a buffer with `max_use`, `track_samples` or a rate limiter use the primary.
        max_lag_s: Largest lag in seconds of the standby; reads of one that is further behind raise
            `StorageBusyError`. None: any.
        alpha: Exponent of priorities in this process's draws. None: the stored one. Draws with a
            different one read all priorities of the buffer.

    Raises:
        BufferConfigError: A value is invalid.

    Example:
        >>> Connection(durability="full", wait_s=10)
        Connection(durability='full', wait_s=10.0)
    """

    durability: Annotated[
        Durability | None,
        setting(checked_choice, get_args(Durability), or_none=True, more=", or omitted"),
    ] = None
    retry_s: Annotated[float, setting(checked_seconds)] = RETRY_S
    wait_s: Annotated[float, setting(checked_seconds)] = 300.0
    flush_s: Annotated[float, setting(checked_duration)] = 1.0
    max_pending: Annotated[int, setting(checked_integer, 1)] = MAX_PENDING
    read_url: Annotated[str | None, BeforeValidator(_read_url), Field(repr=False)] = None
    max_lag_s: Annotated[float | None, setting(checked_seconds, or_none=True)] = None
    alpha: Annotated[float | None, setting(checked_number, 0, 1, or_none=True)] = None


DEFAULT_CONNECTION = Connection()


class ConnectionSettings(TypedDict, total=False):
    """The settings of `Connection` as keyword arguments; `alpha` is one of `BufferSettings`."""

    durability: Durability | None
    retry_s: float
    wait_s: float
    flush_s: float
    max_pending: int
    read_url: str | None
    max_lag_s: float | None


_REMEDIES = {
    "max_capacity": "buffer.resize(n)",
    "max_episodes": "buffer.resize(max_episodes=n)",
    "max_age": "buffer.resize(max_age=...)",
    "max_bytes": "buffer.resize(max_bytes=...)",
    "rate_limiter": "buffer.set_rate_limiter(...)",
}
_ANOTHER_NAME = "a buffer of another name"


def check_same(
    buffer: str, config: BufferConfig, stored: BufferConfig, ignored: Collection[str] = ()
) -> None:
    """Raise unless a buffer is stored with the settings that it is opened with.

    Args:
        buffer: Name of the buffer.
        config: Settings that it is opened with. Omitted settings are not compared.
        stored: Settings that it is stored with.
        ignored: Settings that are not compared either.

    Raises:
        BufferConfigError: Settings that differ; the message lists each of them.
        FieldError: Only typed fields differ.
    """
    there = stored.settings()
    differing = {
        name: (_shown(name, there[name]), _shown(name, value))
        for name, value in config.given().items()
        if PLACES[name][0] != "fields" and name not in ignored and value != there[name]
    }
    fields = config.fields.differences(stored.fields)
    if not differing:
        config.fields.check_same(stored.fields)
    elif len(differing) + len(fields) == 1:
        ((name, (one, other)),) = differing.items()
        raise BufferConfigError(
            f"buffer {buffer!r} is stored with {name}={one}, and was opened with {name}={other}; "
            f"leave the argument out, or use {_REMEDIES.get(name, _ANOTHER_NAME)}"
        )
    else:
        lines = [f"{name}: stored {one}, given {other}" for name, (one, other) in differing.items()]
        listed = ";\n  ".join([*lines, *fields])
        remedies = dict.fromkeys(_REMEDIES.get(name, _ANOTHER_NAME) for name in differing)
        raise BufferConfigError(
            f"buffer {buffer!r} is stored with other settings than it was opened with:\n  {listed};"
            f"\nleave these out, or use {', '.join(remedies)}"
        )


def _shown(name: str, value: Any) -> str:
    unset = "none" if name in ("compression", "rate_limiter") else "unlimited"
    return unset if value is None else repr(value)


# Their names; `alpha` is in both models.
SETTINGS = tuple(dict.fromkeys((*PLACES, *Connection.model_fields)))


class OpenerSettings(BufferSettings, ConnectionSettings, total=False):
    """The settings that `ReplayBuffer` takes as keyword arguments."""


def with_settings(
    config: BufferConfig | None, connection: Connection | None, settings: Mapping[str, Any]
) -> tuple[BufferConfig, Connection]:
    """Return two models with settings that override theirs.

    Args:
        config: Stored settings; None: the defaults.
        connection: Settings of this process; None: the defaults.
        settings: Settings of both by name; `alpha` is in both. A stored setting that is None is
            ignored.

    Raises:
        BufferConfigError: A value is invalid.
        FieldError: A field is malformed.
        ArgumentError: An unknown setting, or something else than a model.
    """
    _check_models(config, connection)
    for name in settings:
        if name not in SETTINGS:
            raise unknown_setting(name, SETTINGS)
    connection_settings = {
        name: settings[name] for name in Connection.model_fields if name in settings
    }
    stored = {
        name: value
        for name, value in settings.items()
        if value is not None and (name == "alpha" or name not in connection_settings)
    }
    for name in ("observation_fields", "spaces"):
        if name in stored and config is None and "fields" not in stored:
            raise FieldError(f"{name} go with fields=...; leave both out to reopen")
    connection = connection or DEFAULT_CONNECTION
    return (
        (config or DEFAULT_CONFIG).replace(stored),
        Connection(**{**connection.model_dump(exclude_unset=True), **connection_settings}),
    )


def _check_models(config: Any, connection: Any) -> None:
    if config is not None:
        what = "a BufferConfig, such as BufferConfig.of(max_capacity=1000)"
        checked_instance(config, "config", BufferConfig, what)
    if connection is not None:
        what = "a Connection, such as Connection(wait_s=10)"
        checked_instance(connection, "connection", Connection, what)
