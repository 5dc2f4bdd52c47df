"""The stored settings of a buffer, in groups, with their defaults."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from sqlbuffer.config.setting_checks import (
    checked_capacity,
    checked_choice,
    checked_count,
    checked_exponent,
    checked_flag,
    checked_seconds,
    checked_size,
    checked_uses,
)
from sqlbuffer.encoding.compression import known_compression
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.fields.buffer_fields import MAX_ROW_BYTES
from sqlbuffer.rate_limits import Policy, policy_to_json, rate_limiter_of
from sqlbuffer.strict_models import StrictModel

EvictUnit = Literal["row", "task", "episode"]
Compression = Literal["zstd"]


def _checked(check: Callable[[Any, str], Any], *, or_none: bool = False) -> BeforeValidator:
    """Return what has a value checked under the name of its field."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        return None if or_none and value is None else check(value, str(info.field_name))

    return BeforeValidator(checked)


def _flag(name: str) -> BeforeValidator:
    return BeforeValidator(lambda value: checked_flag(value, name))


_Limit = Annotated[int | None, _checked(checked_capacity)]
_Size = Annotated[int, _checked(checked_size)]
_Seconds = Annotated[float, _checked(lambda value, name: checked_seconds(name, value))]
_Flag = Annotated[bool, _checked(checked_flag)]


class RetentionConfig(StrictModel, title="retention"):
    """How much a buffer holds, and what leaves first.

    Attributes:
        max_capacity: Rows held at most; the oldest leave first. None is unlimited.
        max_episodes: Episodes held at most; the ended ones that began first leave whole. None is
            unlimited.
        evict_by: `row`; `task`: the task whose last write is oldest leaves whole; or `episode`,
            which is the default with `max_episodes`.
        keep_expired: True: rows that are too old, used up or of another session stay until they are
            evicted, and may be sampled again if the clock goes back. False: they leave before.
    """

    max_capacity: _Limit = None
    max_episodes: _Limit = None
    evict_by: Annotated[
        EvictUnit, _checked(lambda value, name: checked_choice(value, name, get_args(EvictUnit)))
    ] = Field(
        default_factory=lambda found: "row" if found.get("max_episodes") is None else "episode"
    )
    keep_expired: _Flag = False

    @model_validator(mode="after")
    def _check_unit(self) -> "RetentionConfig":
        if self.max_episodes is not None and self.evict_by != "episode":
            raise BufferConfigError(
                f"a buffer with max_episodes evicts by episode; leave out evict_by="
                f"{self.evict_by!r}"
            )
        return self


class EpisodeConfig(StrictModel, title="episodes"):
    """How long episodes are kept and waited for.

    Attributes:
        keep_episodes: How many episodes `v_episodes` lists at most after their steps have left.
        open_timeout_s: An open episode without a write for this time is abandoned.
    """

    keep_episodes: _Size = 1_000_000
    open_timeout_s: _Seconds = 3_600.0


class PayloadConfig(StrictModel, title="payloads"):
    """How the payloads of rows are stored.

    Attributes:
        compression: `zstd`: the bytes of arrays, of typed fields and inside payloads, are
            compressed where that makes them shorter. None: they are not.
        max_row_bytes: A row whose payload is larger is refused.
    """

    compression: Annotated[Compression | None, BeforeValidator(known_compression)] = None
    max_row_bytes: _Size = MAX_ROW_BYTES


class PriorityConfig(StrictModel, title="priorities"):
    """The priorities of rows.

    Attributes:
        enabled: Rows have priorities, which `update_priorities` sets and `PrioritizedSampler` draws
            by. The setting `priorities`.
        alpha: How much they matter, from 0, not at all, to 1.
    """

    enabled: Annotated[bool, _flag("priorities")] = False
    alpha: Annotated[float, _checked(checked_exponent)] = 0.6

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
        min_size: Number of rows that the buffer must hold before any row is sampled.
        current_session_only: True samples only rows of the session that `start_session` began last.
        track_samples: True logs the rows of each batch; `v_samples` shows them.
        keep_samples_s: Seconds for which this log is kept.
    """

    max_use: Annotated[int | None, _checked(checked_uses)] = None
    max_staleness: Annotated[int | None, _checked(checked_count, or_none=True)] = None
    min_size: Annotated[int, _checked(checked_count)] = 0
    current_session_only: _Flag = False
    track_samples: _Flag = False
    keep_samples_s: _Seconds = 604_800.0


class LeaseConfig(StrictModel, title="leases"):
    """Leases of rows.

    Attributes:
        enabled: Rows are handed out by `lease`, each `max_use` times. The setting `leases`.
    """

    enabled: Annotated[bool, _flag("leases")] = False


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
