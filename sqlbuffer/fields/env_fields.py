"""The typed fields that a gymnasium environment's spaces mean."""

from typing import Any

from sqlbuffer.checks import checked_flag, refused
from sqlbuffer.display.short_values import shown
from sqlbuffer.errors import FieldError, MissingExtraError


def fields_from_env(env: Any, *, next_observation: bool = False) -> dict[str, Any]:
    """Return what `ReplayBuffer` takes to hold the steps of an environment.

    Args:
        env: A gymnasium environment, single or vectorized.
        next_observation: Also declare `next_obs`, for transitions that are stored whole.

    Returns:
        `{"fields": ..., "observation_fields": ...}`. The observation is the field `obs`, the action
        `action`; a dict or tuple space has a field for each part, `obs_<key>` or `obs_<index>`.

    Raises:
        ArgumentError: `env` is not an environment, or `next_observation` not True or False.
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
        raise MissingExtraError(
            "fields_from_env() needs gymnasium; run `pip install gymnasium`"
        ) from None
    next_observation = checked_flag(next_observation, "next_observation")
    observation, action = spaces_of(env)
    observed, acted = _fields("obs", observation), _fields("action", action)
    following = _fields("next_obs", observation) if next_observation else {}
    return {"fields": {**observed, **acted, **following}, "observation_fields": list(observed)}


def spaces_of(env: Any) -> tuple[Any, Any]:
    """Return the observation space and the action space of one environment.

    A vectorized environment has them in addition to the spaces of all its environments.
    """
    if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
        raise refused(env, "env", "a gymnasium environment, such as gymnasium.make('CartPole-v1')")
    return (
        getattr(env, "single_observation_space", env.observation_space),
        getattr(env, "single_action_space", env.action_space),
    )


def paths_of(name: str, space: Any) -> dict[str, tuple[Any, ...]]:
    """Return where the value of each field is found in a value of the space: `{"obs_arm_pose":
    ("arm", "pose")}`.

    Raises:
        FieldError: See `fields_from_env`.
    """
    return {field: path for field, (path, _) in parts_of(name, space).items()}


def _fields(name: str, space: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    parts = parts_of(name, space).items()
    return {field: (str(part.dtype), tuple(part.shape or ())) for field, (_, part) in parts}


def parts_of(name: str, space: Any) -> dict[str, tuple[tuple[Any, ...], Any]]:
    """Return the path and the space of each field; see `paths_of`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return {name: ((), space)}
    else:
        raise FieldError(
            f"field {name!r}: a space {type(space).__name__} has no fixed size; declare fields "
            f"yourself, or wrap the environment"
        )
    found: dict[str, tuple[tuple[Any, ...], Any]] = {}
    for key, part in parts.items():
        inner = parts_of(f"{name}_{key}", part)
        if double := set(inner) & set(found):
            raise FieldError(f"two parts of the space would be the field {shown(min(double))}")
        found |= {field: ((key, *path), leaf) for field, (path, leaf) in inner.items()}
    return found
