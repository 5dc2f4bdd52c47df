"""Wrap an environment so that a buffer stores each of its steps."""

from collections.abc import Callable
from typing import Any

from sqlbuffer.errors import MissingExtraError
from sqlbuffer.recording.recorder import Begin, StepTarget

__all__ = ["recorded"]


def recorded(
    env: Any,
    buffer: StepTarget,
    begin: Begin,
    wait: Callable[[int], None],
    model_version: int | None,
    session_id: str | None = None,
) -> Any:
    """Return the wrapper that `ReplayBuffer.record` returns.

    Args:
        env: A gymnasium environment.
        buffer: The buffer that stores its steps.
        begin: Begins an episode there.
        wait: Waits until a number of steps may be pending there.
        model_version: The first version.
        session_id: The first session.

    Raises:
        ArgumentError: `env` is not an environment.
        FieldError: The buffer has other fields than the environment.
        MissingExtraError: No gymnasium, or one before 1.1.
    """
    install = "run `pip install 'gymnasium>=1.1'`"
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError(f"record() needs gymnasium; {install}") from None
    if not hasattr(gymnasium.vector, "AutoresetMode"):
        raise MissingExtraError(
            f"record() needs gymnasium 1.1 or later, and this is {gymnasium.__version__}; {install}"
        )
    from sqlbuffer.recording import wrappers

    return wrappers.recorded(env, buffer, begin, wait, model_version, session_id)
