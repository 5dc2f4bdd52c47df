"""A buffer whose draws may be counted and logged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.storage.sampling.sampled_buffer import SampledBuffer

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


class CountedBuffer(SampledBuffer):
    """A buffer whose draws may be counted and logged.

    Attributes:
        housekeeping: When this process cleaned up last.
    """

    housekeeping: Housekeeping


def needs_writes(store: CountedBuffer) -> bool:
    """Return True if sampling from a buffer writes."""
    return store.info.max_use is not None or store.info.track_samples


def write_for_sample(store: CountedBuffer, work: Callable[[Connection], T]) -> T:
    """Return the result of work in a transaction that sampling needs.

    Raises:
        StorageReadOnlyError: The database or the role may not write; names the option.
    """
    try:
        return store.write(work)
    except StorageReadOnlyError as error:
        what = "max_use" if store.info.max_use is not None else "track_samples"
        raise StorageReadOnlyError(
            f"sampling from buffer {store.info.name!r} writes ({what}): {error}"
        ) from error
