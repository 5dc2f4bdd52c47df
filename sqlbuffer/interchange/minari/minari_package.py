"""Import Minari when it is needed."""

from typing import Any

from sqlbuffer.errors import MissingExtraError


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
        raise MissingExtraError(
            f"{caller} needs Minari; run `pip install 'sqlbuffer[minari]'`"
        ) from None
    return minari
