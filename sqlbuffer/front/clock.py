"""The calls about the buffer's clock."""

from sqlbuffer.arguments import checked_clock
from sqlbuffer.front.shared import Parts
from sqlbuffer.stats import Removed


class Clocked(Parts):
    """The calls of `ReplayBuffer` that staleness goes by."""

    @property
    def clock(self) -> int | None:
        """What `set_clock` set last, in any process; None before."""
        return self._store.clock

    def set_clock(self, clock: int) -> None:
        """Set the buffer's clock, which all its processes share.

        In a buffer with `max_staleness`, rows whose `model_version` is further behind it are not
        sampled. Batches are noted with it where `track_samples` is set. It is the version of the
        current session too, where one was started; `set_model_version` minds which session it is.

        Args:
            clock: The learner's iteration, or the version of its model; an integer of 64 bits. It
                may go back, as when a learner restarts from a checkpoint.

        Raises:
            TypeError: No integer.
            ValueError: More than 64 bits.
        """
        self._store.set_version(checked_clock(clock), None)

    def expire(self) -> Removed:
        """Delete all rows that can never be sampled again: too old by the clock, used up, or of
        another session.

        A process that samples or sets the clock does so by itself, a little every ten seconds,
        unless the buffer was made with `keep_expired`. Steps of an episode leave when none of them
        may be sampled, for others need them; of buffers that evict by task or episode whole ones.
        Rows in quarantine stay.

        Returns:
            How many rows left, by cause.

        Raises:
            StorageReadOnlyError: The role may not: it is a right of learners.
        """
        return self._store.expiry.run()
