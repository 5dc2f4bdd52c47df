"""Wrap an environment so that a buffer stores each of its steps."""

from typing import Any

from sqlbuffer.errors import MissingExtraError
from sqlbuffer.recording.recorder import RecordOptions, StepTarget, Writing

__all__ = ["RecordOptions", "Writing", "recorded"]


def recorded(env: Any, buffer: StepTarget, writing: Writing, options: RecordOptions) -> Any:
    """Return the wrapper that `ReplayBuffer.record` returns.

    Args:
        env: An environment of gymnasium, or a parallel one of PettingZoo.
        buffer: The buffer that stores its steps.
        writing: Writes its steps.
        options: What is stored in addition to the spaces.

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

    return wrappers.recorded_env(env, buffer, writing, options)
