"""How collectors and learners keep pace: policies over counts, and what is known of who waits."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.scalars import integer_of, real_of

Role = Literal["insert", "sample"]

NO_LIMIT = 2**62  # rows that may be inserted where nothing limits them


@dataclass(frozen=True)
class FlowCounts:
    """Rows that went in and out since a policy began; of a window that decays, what is left.

    Attributes:
        inserted: Rows inserted.
        sampled: Rows sampled.
    """

    inserted: float
    sampled: float


@dataclass(frozen=True)
class RateLimiter:
    """Keeps the rows sampled for each row inserted near a number, by having the faster side wait.

    The semantics of Reverb's `SampleToInsertRatio` (Cassirer et al. 2021, section 3.4), in rows.
    With I rows inserted and S sampled since the limiter was set, let D be I * samples_per_insert -
    S. A batch of n may be sampled if I >= min_size and D - n >= min_diff; n rows may be inserted if
    I + n <= min_size or D + n * samples_per_insert <= max_diff. Where `error_buffer` is one number,
    min_diff and max_diff are min_size * samples_per_insert less and plus it.

    Args:
        samples_per_insert: How many rows are sampled for one inserted, on average.
        min_size: How many rows are inserted before any is sampled.
        error_buffer: By how many sampled rows the counts may differ from the ratio, or the pair
            (min_diff, max_diff). Twice the number, or max_diff - min_diff, holds at least one batch
            sampled and samples_per_insert times one stored. By default the larger of 1,000 and a
            tenth of min_size * samples_per_insert, and room for 1,000 rows stored at once.

    Raises:
        BufferConfigError: Numbers with which one side could wait for ever.

    Example:
        >>> limiter = RateLimiter(samples_per_insert=8, min_size=1_000, error_buffer=2_048)
        >>> limiter.may_sample(FlowCounts(inserted=999, sampled=0), 256)
        False
        >>> limiter.may_sample(FlowCounts(inserted=1_000, sampled=0), 256)
        True
    """

    samples_per_insert: float
    min_size: int = 1
    error_buffer: float | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        ratio = _number("samples_per_insert", self.samples_per_insert, above=0.0)
        size = integer_of(self.min_size)
        if size is None or not 1 <= size < NO_LIMIT:
            raise BufferConfigError(f"min_size is an integer from 1 on, got {self.min_size!r}")
        error = self.error_buffer
        if error is None:
            error = max(1_000.0, 0.1 * size * ratio, 1_000.0 * ratio)
        elif isinstance(error, (tuple, list)):
            if len(error) != 2:
                raise BufferConfigError(
                    f"error_buffer is a number or a pair (min_diff, max_diff), got {error!r}"
                )
            low, high = (_number("error_buffer", bound) for bound in error)
            error = (low, high)
        else:
            error = _number("error_buffer", error, above=0.0)
        # Frozen, and equal however the numbers were given.
        given = {"samples_per_insert": ratio, "min_size": size, "error_buffer": error}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        self._check_bounds()

    def _check_bounds(self) -> None:
        least = 2 * max(1.0, self.samples_per_insert)
        if self.width < least:
            raise BufferConfigError(
                f"error_buffer={self.error_buffer!r} can block both sides: twice the number, or "
                f"max_diff - min_diff, is at least {least:g}, and better a batch sampled plus "
                f"samples_per_insert times the rows stored at once"
            )
        if self.max_diff < self._offset:
            raise BufferConfigError(
                f"error_buffer={self.error_buffer!r} blocks inserts before any row can be sampled: "
                f"max_diff is at least min_size * samples_per_insert = {self._offset:g}"
            )

    @property
    def _offset(self) -> float:
        return self.min_size * self.samples_per_insert

    @property
    def min_diff(self) -> float:
        """Sampling keeps D at or above this."""
        error: Any = self.error_buffer
        return float(error[0]) if isinstance(error, tuple) else self._offset - error

    @property
    def max_diff(self) -> float:
        """Inserting keeps D at or below this."""
        error: Any = self.error_buffer
        return float(error[1]) if isinstance(error, tuple) else self._offset + error

    @property
    def width(self) -> float:
        """How far D moves between the two."""
        return self.max_diff - self.min_diff

    def may_sample(self, counts: FlowCounts, n: int) -> bool:
        """Tell whether n rows may be sampled."""
        diff = counts.inserted * self.samples_per_insert - counts.sampled - n
        return counts.inserted >= self.min_size and diff >= self.min_diff

    def may_insert(self, counts: FlowCounts, n: int) -> bool:
        """Tell whether n rows may be inserted."""
        inserted = counts.inserted + n
        diff = inserted * self.samples_per_insert - counts.sampled
        return inserted <= self.min_size or diff <= self.max_diff

    def room(self, counts: FlowCounts) -> int:
        """Return how many rows may be inserted at most."""
        by_ratio = (self.max_diff + counts.sampled) / self.samples_per_insert
        room = max(by_ratio, float(self.min_size)) - counts.inserted
        return max(0, min(NO_LIMIT, math.floor(room)))

    def refusal(self, counts: FlowCounts, role: Role, n: int) -> str | None:
        """Return why so many rows can never pass at once; None: they may after a wait."""
        needed = n if role == "sample" else n * self.samples_per_insert
        if role == "insert" and counts.inserted + n <= self.min_size:
            return None
        if needed <= self.width:
            return None
        return (
            f"error_buffer={self.error_buffer!r} never lets {n:,} rows pass at once; make them "
            f"fewer, or the limiter's error_buffer at least {needed / 2:g} (set_rate_limiter)"
        )


@dataclass(frozen=True)
class RatioWindow:
    """Limits the ratio of rows pushed to rows sampled over a window that decays.

    The rule of DI-engine's `ThruputController`. Both counts decay to 1 % within `window_s` seconds.
    n rows may be inserted if (pushed + n) / sampled <= max_ratio, or if nothing was sampled; n may
    be sampled if pushed / (sampled + n) >= min_ratio. It counts what goes through this library;
    rows that plain SQL inserts do not count.

    Args:
        max_ratio: Inserts wait above it.
        min_ratio: Samples wait below it.
        window_s: Seconds in which a count decays to a hundredth.

    Raises:
        BufferConfigError: No limit, or a lower one above the upper one.

    Example:
        >>> window = RatioWindow(max_ratio=0.5, min_ratio=0.1)
        >>> window.may_insert(FlowCounts(inserted=40, sampled=100), 10)
        True
        >>> window.may_insert(FlowCounts(inserted=40, sampled=100), 11)
        False
    """

    max_ratio: float = math.inf
    min_ratio: float = 0.0
    window_s: float = 30.0

    def __post_init__(self) -> None:
        most = self.max_ratio
        if most != math.inf:
            most = _number("max_ratio", most, above=0.0)
        least = _number("min_ratio", self.min_ratio)
        if least < 0 or least > most:
            raise BufferConfigError(
                f"min_ratio is from 0 to max_ratio, got {self.min_ratio!r} and {self.max_ratio!r}"
            )
        if most == math.inf and least == 0:
            raise BufferConfigError("a RatioWindow has a max_ratio, a min_ratio or both")
        window_s = _number("window_s", self.window_s, above=0.0)
        for name, value in (("max_ratio", most), ("min_ratio", least), ("window_s", window_s)):
            object.__setattr__(self, name, float(value))

    def decayed(self, count: float, age_s: float) -> float:
        """Return what is left of a count after so many seconds."""
        return count * math.pow(0.01, max(0.0, age_s) / self.window_s)

    def decayed_by_second(
        self, counts: FlowCounts, decayed_at: float, now: float
    ) -> tuple[FlowCounts, float]:
        """Decay two counts once for each whole second, as DI-engine does.

        Between two seconds nothing decays, so a ratio that equals a limit stays equal.

        Args:
            counts: The two counts.
            decayed_at: The time in seconds up to which they are decayed.
            now: The time in seconds.

        Returns:
            What is left of the counts, and the time up to which that is decayed.
        """
        age_s = now - decayed_at
        if age_s < 0 or not (counts.inserted or counts.sampled):
            return counts, now
        whole_s = math.floor(age_s)
        left = (self.decayed(count, whole_s) for count in (counts.inserted, counts.sampled))
        return FlowCounts(*left), decayed_at + whole_s

    def may_sample(self, counts: FlowCounts, n: int) -> bool:
        """Tell whether n rows may be sampled."""
        return counts.inserted >= self.min_ratio * (counts.sampled + n) * (1 - _ROUNDING)

    def may_insert(self, counts: FlowCounts, n: int) -> bool:
        """Tell whether n rows may be inserted."""
        if counts.sampled < _NOTHING:
            return True
        return counts.inserted + n <= self.max_ratio * counts.sampled * (1 + _ROUNDING)

    def refused_insert(self, counts: FlowCounts, n: int) -> str | None:
        """Return why n rows may not be inserted now; None: they may."""
        if self.may_insert(counts, n):
            return None
        pushed, sampled = f"{counts.inserted:.1f} + {n}", f"{counts.sampled:.1f}"
        return f"push({pushed}) / sample({sampled}) > max ({self.max_ratio:g})"

    def refused_sample(self, counts: FlowCounts, n: int) -> str | None:
        """Return why n rows may not be sampled now; None: they may."""
        if self.may_sample(counts, n):
            return None
        pushed, sampled = f"{counts.inserted:.1f}", f"{counts.sampled:.1f} + {n}"
        return f"push({pushed}) / sample({sampled}) < min ({self.min_ratio:g})"

    def room(self, counts: FlowCounts) -> int:
        """Return how many rows may be inserted at most."""
        if counts.sampled < _NOTHING or self.max_ratio == math.inf:
            return NO_LIMIT
        return max(0, math.floor(self.max_ratio * counts.sampled - counts.inserted))

    def refusal(self, counts: FlowCounts, role: Role, n: int) -> str | None:
        """Return why so many rows can never pass at once: any number may, after a wait."""
        return None


_NOTHING = 1e-5  # what DI-engine takes for no samples
_ROUNDING = 1e-9  # 0.1 * 30 is above 3
Policy = RateLimiter | RatioWindow
POLICIES: dict[str, type[RateLimiter] | type[RatioWindow]] = {
    "RateLimiter": RateLimiter,
    "RatioWindow": RatioWindow,
}


@dataclass(frozen=True)
class Waiting:
    """A call that waits for the other side.

    Attributes:
        role: `insert` or `sample`.
        n_rows: How many rows it would insert or sample.
        host: Its machine.
        pid: Its process there.
        waited_s: For how many seconds.
        alive: Whether it was heard of in the last seconds; one that was not has died.
    """

    role: Role
    n_rows: int
    host: str
    pid: int
    waited_s: float
    alive: bool


@dataclass(frozen=True)
class FlowState:
    """How a buffer's collectors and learners keep pace; see `ReplayBuffer.flow`.

    Attributes:
        policy: What limits them; None: nothing.
        inserted: Rows inserted since the policy was set, or ever without one. Numbers of writes
            that were rolled back count, and deletes do not.
        sampled: Rows sampled since then; without a policy as far as processes have told, which they
            do every few seconds.
        may_insert: Whether one row may be inserted now.
        may_sample: Whether one row may be sampled now.
        counts: What the policy goes by.
        waiting: Who waits.

    Example:
        >>> from sqlbuffer import RateLimiter, ReplayBuffer
        >>> limiter = RateLimiter(samples_per_insert=1.0, min_size=2, error_buffer=2.0)
        >>> buffer = ReplayBuffer("sqlite://", rate_limiter=limiter)
        >>> buffer.add(state=1).inserted
        1
        >>> flow = buffer.flow()
        >>> flow.inserted, flow.may_insert, flow.may_sample
        (1, True, False)
    """

    policy: Policy | None
    inserted: int
    sampled: int
    may_insert: bool
    may_sample: bool
    counts: FlowCounts
    waiting: tuple[Waiting, ...] = field(default=())

    @property
    def ratio(self) -> float | None:
        """Rows sampled for each row inserted; None before any was inserted."""
        return self.sampled / self.inserted if self.inserted > 0 else None


def policy_to_json(policy: Policy | None) -> dict[str, Any] | None:
    """Return a policy as JSON: its type and what it was made with."""
    if policy is None:
        return None
    given = {name: value for name, value in vars(policy).items() if value != math.inf}
    return {"type": type(policy).__name__, **given}


def rate_limiter_of(given: Any) -> Policy | None:
    """Return a policy that is given as such, or as the JSON that `policy_to_json` makes.

    Raises:
        BufferConfigError: Anything else.
    """
    if isinstance(given, dict) and given.get("type") in POLICIES:
        numbers = {name: value for name, value in given.items() if name != "type"}
        try:
            return POLICIES[given["type"]](**numbers)
        except TypeError as error:
            raise BufferConfigError(f"rate_limiter: {error}, got {given!r}") from None
    if given is not None and not isinstance(given, (RateLimiter, RatioWindow)):
        raise BufferConfigError(
            f"rate_limiter is a RateLimiter, a RatioWindow or None, got {given!r:.100}"
        )
    return given


def _number(name: str, value: Any, *, above: float | None = None) -> float:
    real = real_of(value)
    if real is None or not math.isfinite(real):
        raise BufferConfigError(f"{name} is a finite number, got {value!r}")
    if above is not None and real <= above:
        raise BufferConfigError(f"{name} is above {above:g}, got {value!r}")
    return real
