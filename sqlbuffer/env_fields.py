"""The typed fields that a gymnasium environment's spaces mean."""

from typing import Any

from sqlbuffer.errors import FieldError, MissingExtraError


def fields_from_env(env: Any, *, next_observation: bool = False) -> dict[str, Any]:
    """Return what `ReplayBuffer` takes to hold the steps of an environment.

    Args:
        env: A gymnasium environment, single or vectorized.
        next_observation: Declare `next_obs` beside `obs`, for transitions that are stored whole.

    Returns:
        `{"fields": ..., "observation_fields": ...}`. The observation is the field `obs`, the action
        `action`; a dict or tuple space has a field for each part, `obs_<key>` or `obs_<index>`.

    Raises:
        FieldError: A space of no fixed size, such as Text, Sequence or Graph.
        MissingExtraError: gymnasium is not installed.

    Example:
        >>> import gymnasium
        >>> from sqlbuffer import ReplayBuffer
        >>> with gymnasium.make("CartPole-v1") as env:
        ...     buffer = ReplayBuffer("sqlite://", **fields_from_env(env))
        >>> {name: str(spec) for name, spec in buffer.fields.items()}
        {'obs': 'float32(4,)', 'action': 'int64'}
    """
    try:
        import gymnasium  # noqa: F401
    except ImportError:
        raise MissingExtraError("fields_from_env() needs `pip install gymnasium`") from None
    # A vectorized environment has the spaces of one beside those of all.
    observation = getattr(env, "single_observation_space", env.observation_space)
    action = getattr(env, "single_action_space", env.action_space)
    observed = _fields("obs", observation)
    following = _fields("next_obs", observation) if next_observation else {}
    return {
        "fields": {**observed, **_fields("action", action), **following},
        "observation_fields": list(observed),
    }


def _fields(name: str, space: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        parts = {str(i): part for i, part in enumerate(space.spaces)}
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return {name: (str(space.dtype), tuple(space.shape or ()))}
    else:
        raise FieldError(
            f"field {name!r}: a space {type(space).__name__} has no fixed size; declare fields "
            f"yourself, or wrap the environment"
        )
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for key, part in parts.items():
        inner = _fields(f"{name}_{key}", part)
        if double := set(inner) & set(found):
            raise FieldError(f"two parts of the space would be the field {min(double)!r}")
        found |= inner
    return found
