"""Workers of torch's DataLoader that find too few rows."""

from collections.abc import Iterable, Iterator
from typing import Any

from sqlbuffer.errors import InsufficientDataError


def drain(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield batches until the workers find too few rows; they have ended then.

    The error and the iterator refer to each other. Left to the garbage collector, the iterator
    waits 5 s for each worker, in whichever test that is.
    """
    iterator = iter(loader)
    try:
        yield from iterator
    except InsufficientDataError as error:
        error.__traceback__ = None
    else:
        raise AssertionError("the workers found enough rows")
