"""The calls that show how a buffer is used, and keep its two sides in pace."""

from sqlbuffer.flow import FlowState, Policy, check_policy
from sqlbuffer.front.parts import Parts


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
            BufferConfigError: Something else.
            StorageReadOnlyError: The role may not: it is a right of learners.
        """
        check_policy(policy)
        self._store.pacer.set_policy(policy)
