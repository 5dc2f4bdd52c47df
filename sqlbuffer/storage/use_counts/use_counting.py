"""Count and log what is drawn from a buffer."""

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
    """When this process cleaned up last.

    Attributes:
        cleaned_to: No use counts are left up to this number.
        samples_cleaned_at: When the sample log was cleaned, by the monotonic clock.
    """

    cleaned_to: int = 0
    samples_cleaned_at: float | None = None


class UseCounting:
    """Counts and logs what is drawn from a buffer.

    Args:
        buffer: The buffer.
        restrictions: What the buffer requires of rows before they may be sampled.

    Attributes:
        housekeeping: When this process cleaned up last.
    """

    def __init__(self, buffer: OpenBuffer, restrictions: Restrictions) -> None:
        self.buffer, self.restrictions = buffer, restrictions
        self.housekeeping = Housekeeping()

    @property
    def is_on(self) -> bool:
        """Whether sampling writes."""
        sampling = self.buffer.info.config.sampling
        return sampling.max_use is not None or sampling.track_samples

    def write(self, work: Callable[[Connection], T]) -> T:
        """Return the result of work in a transaction that sampling needs.

        Raises:
            StorageReadOnlyError: The database or the role may not write; names the option.
        """
        try:
            return self.buffer.write(work)
        except StorageReadOnlyError as error:
            info = self.buffer.info
            what = "max_use" if info.config.sampling.max_use is not None else "track_samples"
            raise StorageReadOnlyError(
                f"sampling from buffer {info.name!r} writes ({what}): {error}"
            ) from error
