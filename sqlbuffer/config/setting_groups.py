"""The stored settings of a buffer, in groups, with their defaults."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from sqlbuffer.checks import (
    checked_choice,
    checked_duration,
    checked_flag,
    checked_integer,
    checked_number,
)
from sqlbuffer.display.short_values import shown
from sqlbuffer.encoding.compression import known_compression
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.fields.buffer_fields import MAX_ROW_BYTES
from sqlbuffer.rate_limits import Policy, policy_to_json, rate_limiter_of
from sqlbuffer.strict_models import StrictModel, setting

EvictUnit = Literal["row", "task", "episode"]
Compression = Literal["zstd"]
UNLIMITED = ", or None (unlimited)"
MAX_USE = 2**31 - 1

_Limit = Annotated[int | None, setting(checked_integer, 1, or_none=True, more=UNLIMITED)]
_Size = Annotated[int, setting(checked_integer, 1)]
_Seconds = Annotated[float, setting(checked_duration)]
_Flag = Annotated[bool, setting(checked_flag)]


class RetentionConfig(StrictModel, title="retention"):
    """Size limits of a buffer, and the unit of eviction.

    Attributes:
        max_capacity: Largest number of rows; the oldest leave first. None is unlimited.
        max_episodes: Largest number of episodes. The ended episodes that began first leave, each as
            a whole. None is unlimited.
        evict_by: Unit of eviction: `row`, `task` or `episode`. With `task`, the task whose last
            write is oldest leaves as a whole. With `max_episodes`, the default is `episode`.
        keep_expired: True keeps rows that are too old, used up or of another session until they are
            evicted; they may be sampled again if the clock goes back. False deletes them before.
    """

    max_capacity: _Limit = None
    max_episodes: _Limit = None
    evict_by: Annotated[EvictUnit, setting(checked_choice, get_args(EvictUnit))] = Field(
        default_factory=lambda found: "row" if found.get("max_episodes") is None else "episode"
    )
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
    """

    compression: Annotated[Compression | None, BeforeValidator(known_compression)] = None
    max_row_bytes: _Size = MAX_ROW_BYTES


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
