"""Import Minari when it is needed."""

from typing import Any

from sqlbuffer.errors import MissingExtraError
from sqlbuffer.extras import install


def minari_package(caller: str) -> Any:
    """Return the module `minari`.

    Args:
        caller: The call that needs it, for the message.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import minari
    except ImportError:
        raise MissingExtraError(f"{caller} needs Minari; run {install('minari')}") from None
    return minari
