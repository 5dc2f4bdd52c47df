"""Flow control between collectors and learners: policies over counts, and the calls that wait."""

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from sqlbuffer.checks import checked_instance, checked_integer, checked_number, refused
from sqlbuffer.errors import BufferConfigError

Role = Literal["insert", "sample"]

NO_LIMIT = 2**62  # rows that may be inserted where nothing limits them


class FlowCounts(NamedTuple):
    """Rows inserted and sampled since a policy began; in a window that decays, the remaining
    counts.

    Attributes:
        inserted: Rows inserted.
        sampled: Rows sampled.
    """

    inserted: float
    sampled: float


@dataclass(frozen=True)
class RateLimiter:
    """Keeps the ratio of sampled to inserted rows near a number: the faster side waits.

    It works as Reverb's `SampleToInsertRatio` (Cassirer et al. 2021, section 3.4), in rows. With I
    rows inserted and S sampled since the limiter was set, let D be I * samples_per_insert - S. A
    batch of n may be sampled if I >= min_size and D - n >= min_diff; n rows may be inserted if I +
    n <= min_size or D + n * samples_per_insert <= max_diff. If `error_buffer` is one number,
    min_diff and max_diff are min_size * samples_per_insert minus and plus that number.

    Args:
        samples_per_insert: Average number of sampled rows for one inserted row.
        min_size: Number of rows that are inserted before any row is sampled.
        error_buffer: Number of sampled rows by which the counts may differ from the ratio, or the
            pair (min_diff, max_diff). Twice the number, or max_diff - min_diff, should be at least
            one sampled batch plus samples_per_insert times one stored batch. The default is the
            largest of 1,000, a tenth of min_size * samples_per_insert, and 1,000 *
            samples_per_insert.

    Raises:
        BufferConfigError: With these numbers one side could wait forever.

    Example:
        >>> limiter = RateLimiter(samples_per_insert=8, min_size=1_000, error_buffer=2_048)
        >>> limiter.may_sample(FlowCounts(inserted=999, sampled=0), 256)
        False
        >>> limiter.may_sample(FlowCounts(inserted=1_000, sampled=0), 256)
        True
        >>> limiter.may_insert(FlowCounts(inserted=1_000, sampled=0), 257)
        False
    """

    samples_per_insert: float
    min_size: int = 1
    error_buffer: float | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        ratio = _number("samples_per_insert", self.samples_per_insert, above=0.0)
        size = checked_integer(self.min_size, "min_size", 1, NO_LIMIT, error=BufferConfigError)
        error = self.error_buffer
        if error is None:
            error = max(1_000.0, 0.1 * size * ratio, 1_000.0 * ratio)
        elif isinstance(error, (tuple, list)):
            if len(error) != 2:
                what = "a number or a pair (min_diff, max_diff)"
                raise refused(error, "error_buffer", what, BufferConfigError)
            low, high = (_number("error_buffer", bound) for bound in error)
            error = (low, high)
        else:
            error = _number("error_buffer", error, above=0.0)
        # Frozen, and equal however the numbers were given.
        numbers = {"samples_per_insert": ratio, "min_size": size, "error_buffer": error}
        for name, value in numbers.items():
            object.__setattr__(self, name, value)
        self._check_bounds()

    def _check_bounds(self) -> None:
        least = 2 * max(1.0, self.samples_per_insert)
        if self.width < least:
            raise BufferConfigError(
                f"error_buffer={self.error_buffer!r} can block both sides: twice the number, or "
                f"max_diff - min_diff, is at least {least:g}, and better one sampled batch plus "
                f"samples_per_insert times the rows of one insert"
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
        """Lower limit of D; sampling waits below it."""
        error: Any = self.error_buffer
        return float(error[0]) if isinstance(error, tuple) else self._offset - error

    @property
    def max_diff(self) -> float:
        """Upper limit of D; inserting waits above it."""
        error: Any = self.error_buffer
        return float(error[1]) if isinstance(error, tuple) else self._offset + error

    @property
    def width(self) -> float:
        """Distance between the two limits of D."""
        return self.max_diff - self.min_diff

    def may_sample(self, counts: FlowCounts, n: int) -> bool:
        """Return True if n rows may be sampled now.

        Raises:
            ArgumentError: `counts` are not `FlowCounts`, or n is not an integer from 0 on.
        """
        _check_asked(counts, n)
        diff = counts.inserted * self.samples_per_insert - counts.sampled - n
        return counts.inserted >= self.min_size and diff >= self.min_diff

    def may_insert(self, counts: FlowCounts, n: int) -> bool:
        """Return True if n rows may be inserted now.

        Raises:
            ArgumentError: `counts` are not `FlowCounts`, or n is not an integer from 0 on.
        """
        _check_asked(counts, n)
        inserted = counts.inserted + n
        diff = inserted * self.samples_per_insert - counts.sampled
        return inserted <= self.min_size or diff <= self.max_diff

    def room(self, counts: FlowCounts) -> int:
        """Return the largest number of rows that may be inserted now.

        :meta private:
        """
        by_ratio = (self.max_diff + counts.sampled) / self.samples_per_insert
        room = max(by_ratio, float(self.min_size)) - counts.inserted
        return max(0, min(NO_LIMIT, math.floor(room)))

    def refusal(self, counts: FlowCounts, role: Role, n: int) -> str | None:
        """Return why n rows can never pass in one call; None if they can after a wait.

        :meta private:
        """
        needed = n if role == "sample" else n * self.samples_per_insert
        if role == "insert" and counts.inserted + n <= self.min_size:
            return None
        if needed <= self.width:
            return None
        return (
            f"error_buffer={self.error_buffer!r} never lets {n:,} rows pass in one call; give "
            f"fewer, or set the limiter's error_buffer to at least {needed / 2:g} "
            f"(set_rate_limiter)"
        )


@dataclass(frozen=True)
class RatioWindow:
    """Limits the ratio of inserted rows to sampled rows over a window that decays.

    It works as DI-engine's `ThruputController`. Both counts decay to 1 % within `window_s` seconds.
    n rows may be inserted if (pushed + n) / sampled <= max_ratio, or if nothing was sampled; n may
    be sampled if pushed / (sampled + n) >= min_ratio. Rows that plain SQL inserts do not count.

    Args:
        max_ratio: Ratio above which inserts wait.
        min_ratio: Ratio below which samples wait.
        window_s: Seconds in which a count decays to a hundredth.

    Raises:
        BufferConfigError: There is no limit, or the lower limit is above the upper one.

    Example:
        >>> window = RatioWindow(max_ratio=0.5, min_ratio=0.1)
        >>> window.may_insert(FlowCounts(inserted=40, sampled=100), 10)
        True
        >>> window.may_insert(FlowCounts(inserted=40, sampled=100), 11)
        False
        >>> window.may_sample(FlowCounts(inserted=9, sampled=100), 1)
        False
    """

    max_ratio: float = math.inf
    min_ratio: float = 0.0
    window_s: float = 30.0

    def __post_init__(self) -> None:
        window_s = _number("window_s", self.window_s, above=0.0)
        most = self.max_ratio
        if not (isinstance(most, float) and most == math.inf):
            most = _number("max_ratio", most, above=0.0)
        least = _number("min_ratio", self.min_ratio)
        if least < 0 or least > most:
            raise BufferConfigError(f"min_ratio is from 0 to max_ratio, got {least:g} and {most:g}")
        if most == math.inf and least == 0:
            raise BufferConfigError("a RatioWindow has a max_ratio, a min_ratio or both")
        for name, value in (("max_ratio", most), ("min_ratio", least), ("window_s", window_s)):
            object.__setattr__(self, name, float(value))

    def decayed(self, count: float, age_s: float) -> float:
        """Return the rest of a count after age_s seconds.

        :meta private:
        """
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
            The decayed counts, and the time up to which they are decayed.

        :meta private:
        """
        age_s = now - decayed_at
        if age_s < 0 or not (counts.inserted or counts.sampled):
            return counts, now
        whole_s = math.floor(age_s)
        left = (self.decayed(count, whole_s) for count in (counts.inserted, counts.sampled))
        return FlowCounts(*left), decayed_at + whole_s

    def may_sample(self, counts: FlowCounts, n: int) -> bool:
        """Return True if n rows may be sampled now.

        Raises:
            ArgumentError: `counts` are not `FlowCounts`, or n is not an integer from 0 on.
        """
        _check_asked(counts, n)
        return counts.inserted >= self.min_ratio * (counts.sampled + n) * (1 - _ROUNDING)

    def may_insert(self, counts: FlowCounts, n: int) -> bool:
        """Return True if n rows may be inserted now.

        Raises:
            ArgumentError: `counts` are not `FlowCounts`, or n is not an integer from 0 on.
        """
        _check_asked(counts, n)
        if counts.sampled < _NOTHING:
            return True
        return counts.inserted + n <= self.max_ratio * counts.sampled * (1 + _ROUNDING)

    def refused_insert(self, counts: FlowCounts, n: int) -> str | None:
        """Return why n rows may not be inserted now; None if they may.

        :meta private:
        """
        if self.may_insert(counts, n):
            return None
        pushed, sampled = f"{counts.inserted:.1f} + {n}", f"{counts.sampled:.1f}"
        return f"push({pushed}) / sample({sampled}) > max ({self.max_ratio:g})"

    def refused_sample(self, counts: FlowCounts, n: int) -> str | None:
        """Return why n rows may not be sampled now; None if they may.

        :meta private:
        """
        if self.may_sample(counts, n):
            return None
        pushed, sampled = f"{counts.inserted:.1f}", f"{counts.sampled:.1f} + {n}"
        return f"push({pushed}) / sample({sampled}) < min ({self.min_ratio:g})"

    def room(self, counts: FlowCounts) -> int:
        """Return the largest number of rows that may be inserted now.

        :meta private:
        """
        if counts.sampled < _NOTHING or self.max_ratio == math.inf:
            return NO_LIMIT
        return max(0, math.floor(self.max_ratio * counts.sampled - counts.inserted))

    def refusal(self, counts: FlowCounts, role: Role, n: int) -> str | None:
        """Return None: any number of rows may pass after a wait.

        :meta private:
        """
        return None


_NOTHING = 1e-5  # what DI-engine takes for no samples
_ROUNDING = 1e-9  # 0.1 * 30 is above 3
Policy = RateLimiter | RatioWindow
POLICIES: dict[str, type[RateLimiter] | type[RatioWindow]] = {
    "RateLimiter": RateLimiter,
    "RatioWindow": RatioWindow,
}


class Waiting(NamedTuple):
    """A call that waits for the other side.

    Attributes:
        role: `insert` or `sample`.
        n_rows: Number of rows that it would insert or sample.
        host: Name of its machine.
        pid: Id of its process on that machine.
        waited_s: Seconds for which it has waited.
        alive: Whether it gave a sign of life in the last seconds; otherwise it has died.
    """

    role: Role
    n_rows: int
    host: str
    pid: int
    waited_s: float
    alive: bool


@dataclass(frozen=True)
class FlowState:
    """State of a buffer's flow control; see `ReplayBuffer.flow`.

    Attributes:
        policy: Policy that limits inserts and draws; None: no limit.
        inserted: Rows inserted since the policy was set; without a policy, since the buffer was
            made. Rows of writes that were rolled back count. Deletes do not change it.
        sampled: Rows sampled since then. Without a policy, processes report their draws every few
            seconds.
        may_insert: Whether one row may be inserted now.
        may_sample: Whether one row may be sampled now.
        counts: Counts that the policy compares.
        waiting: Calls that wait.

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
    """Return a policy as JSON: its type and its arguments."""
    if policy is None:
        return None
    arguments = {name: value for name, value in vars(policy).items() if value != math.inf}
    return {"type": type(policy).__name__, **arguments}


def rate_limiter_of(policy: Any, name: str = "rate_limiter") -> Policy | None:
    """Return the policy that is given as an object, or as the JSON of `policy_to_json`.

    Args:
        policy: The policy.
        name: Name of the argument.

    Raises:
        BufferConfigError: The value is neither.
    """
    if policy is None or isinstance(policy, (RateLimiter, RatioWindow)):
        return policy
    if (
        isinstance(policy, dict)
        and isinstance(policy.get("type"), str)
        and policy["type"] in POLICIES
    ):
        kind = POLICIES[policy["type"]]
        numbers = {argument: value for argument, value in policy.items() if argument != "type"}
        required = {part.name for part in fields(kind) if part.default is MISSING}
        if required <= set(numbers) <= {part.name for part in fields(kind)}:
            return kind(**numbers)
    what = "a RateLimiter, a RatioWindow or None"
    raise refused(policy, name, what, BufferConfigError)


def _number(name: str, value: Any, *, above: float | None = None) -> float:
    return checked_number(value, name, above=above, error=BufferConfigError)


def _check_asked(counts: Any, n: Any) -> None:
    what = "a FlowCounts, such as FlowCounts(inserted=0, sampled=0)"
    checked_instance(counts, "counts", FlowCounts, what)
    checked_integer(n, "n", 0)
