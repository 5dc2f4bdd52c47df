"""The calls that show how a buffer is used, and keep its two sides in pace."""

from sqlbuffer.arguments import check_reached, checked_seconds
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.front.shared import Parts
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.rate_limits import FlowState, Policy, check_policy
from sqlbuffer.stats import Stats
from sqlbuffer.storage.flow.limiters import HISTORY_S


class Monitoring(Parts):
    """The calls of `ReplayBuffer` that show how it is used, and pace it."""

    def flow(self) -> FlowState:
        """Return how collectors and learners keep pace: the policy, the counts, and who waits.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        return self._store.pacer.state()

    def set_rate_limiter(self, policy: Policy | None) -> None:
        """Have every process of the buffer obey another policy, counting from now; None: no policy.

        A process notices within five seconds; those that wait notice at once.

        Args:
            policy: A `RateLimiter`, a `RatioWindow`, or None.

        Raises:
            BufferConfigError: Something else, or a limiter that stops inserts before the buffer's
                `min_size` is reached.
            BufferNotFoundError: The buffer was dropped.
            StorageReadOnlyError: The role may not: it is a right of learners.
        """
        check_policy(policy)
        min_size = self._store.info.min_size
        if min_size:
            check_reached(policy, min_size, self._store.count(EVERYTHING))
        self._store.pacer.set_policy(policy)

    def stats(self, window_s: float = 60.0) -> Stats:
        """Return figures of the buffer now, for all its processes together.

        The cost does not grow with the buffer: uses, priorities and staleness are those of up to
        2,000 rows drawn uniformly, rates are found by bisection, and rows are counted as `len`
        does, which reads an index once in a process.

        Args:
            window_s: Seconds that the rates are over, up to an hour.

        Raises:
            BufferConfigError: No such number of seconds.
            BufferNotFoundError: The buffer was dropped.
        """
        check_window(window_s)
        return self._store.stats(float(window_s))


def check_window(window_s: float) -> None:
    """Raise unless rates over so many seconds are known.

    Raises:
        BufferConfigError: They are not.
    """
    if checked_seconds("window_s", window_s) > HISTORY_S:
        raise BufferConfigError(
            f"window_s is at most {HISTORY_S}: what was sampled is known for an hour, got "
            f"{window_s!r}"
        )
