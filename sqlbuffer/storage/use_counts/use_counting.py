"""Count and log the rows drawn from a buffer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.sampling.restrictions import Restrictions

T = TypeVar("T")


@dataclass
class Housekeeping:
    """The last clean-up by this process.

    Attributes:
        cleaned_to: Number up to which no use counts are left.
        samples_cleaned_at: Time of the last clean-up of the sample log, on the monotonic clock.
    """

    cleaned_to: int = 0
    samples_cleaned_at: float | None = None


class UseCounting:
    """Counts and logs the rows drawn from a buffer.

    Args:
        buffer: The buffer.
        restrictions: Requirements that rows must meet before they may be sampled.

    Attributes:
        housekeeping: The last clean-up by this process.
    """

    def __init__(self, buffer: OpenBuffer, restrictions: Restrictions) -> None:
        self.buffer, self.restrictions = buffer, restrictions
        self.housekeeping = Housekeeping()

    @property
    def is_on(self) -> bool:
        """True if sampling writes to the database."""
        sampling = self.buffer.info.config.sampling
        return sampling.max_use is not None or sampling.track_samples

    def write(self, work: Callable[[Connection], T]) -> T:
        """Return the result of work in a transaction that sampling needs.

        Raises:
            StorageReadOnlyError: The database or the role may not write; the message names the
                option.
        """
        try:
            return self.buffer.write(work)
        except StorageReadOnlyError as error:
            info = self.buffer.info
            what = "max_use" if info.config.sampling.max_use is not None else "track_samples"
            raise StorageReadOnlyError(
                f"sampling from buffer {info.name!r} writes ({what}): {error}"
            ) from error
