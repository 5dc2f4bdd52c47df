"""Replay buffers in memory, of Stable-Baselines3 and cpprb: into a buffer and back."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import refused
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.errors import FieldError, InsufficientDataError
from sqlbuffer.interchange.arrays.episodes import Tail
from sqlbuffer.interchange.arrays.exporting import flat_rows, whole_episodes
from sqlbuffer.interchange.arrays.importing import (
    ArrayOptions,
    checked_columns,
    import_source,
)
from sqlbuffer.interchange.arrays.naming import array_name, meaning_of
from sqlbuffer.interchange.arrays.sources import (
    Arrays,
    Columns,
    FlatColumn,
    FlatSource,
    Lane,
    dict_columns,
)
from sqlbuffer.interchange.output import ImportReport
from sqlbuffer.spaces import NEXT, part_names
from sqlbuffer.storage.database.urls import Database

_SB3 = ("observations", "actions", "rewards", "dones", "timeouts", "pos", "full", "n_envs")
_CPPRB = ("get_all_transitions", "get_next_index", "get_stored_size", "get_buffer_size", "add")
_WHAT_SB3 = "a ReplayBuffer of Stable-Baselines3, such as model.replay_buffer"
_WHAT_CPPRB = "a ReplayBuffer or PrioritizedReplayBuffer of cpprb"
_DONE = ("done", "dones")


def from_sb3(
    replay_buffer: Any,
    url: Database = None,
    name: str = "default",
    *,
    columns: Mapping[str, str | None] | None = None,
    tail: Tail = "cut",
    task_id: str | None = None,
    prefix: str = "",
    on_conflict: Literal["error", "skip"] = "error",
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> ImportReport:
    """Store the steps of a replay buffer of Stable-Baselines3 as episodes.

    The steps are read from the oldest to the newest, and each environment is an agent: `env-0`,
    `env-1` and so on. `done` with `timeouts` is truncated, and without it terminated; a buffer with
    `handle_timeout_termination=False` does not know truncated steps. The observation after the last
    step of an episode is its final observation, except with `optimize_memory_usage=True`: such a
    buffer has overwritten it, and with it the oldest observation if it is full. The fields are
    those of `fields_from_env`; actions of float64 are float32, as the replay buffer has them.

    Call it again to continue after an interruption, or after more steps: whole episodes are not
    stored twice. Give `tail="open"` or `"drop"` from the first call on if you mean to call it again
    after more steps. A full replay buffer has lost the first steps of its oldest episode: the rest
    of it is stored as an episode of its own, also if an earlier call has stored all of it. Episodes
    with the same first step are told apart by their order: if some of them are lost, the next call
    raises `FileImportError`, and needs another `prefix`.

    Args:
        replay_buffer: A `ReplayBuffer`, `DictReplayBuffer`, `NStepReplayBuffer` or
            `HerReplayBuffer`.
        url: The database; see `ReplayBuffer`.
        name: The buffer; a missing one is made.
        columns: Fields of other names: `{"observations/rgb": "image"}`; see `import_arrays`.
        tail: What to do with the newest steps of an episode that has not ended; see
            `import_arrays`.
        task_id: Task of all episodes; `default` if omitted.
        prefix: Text that is put before the ids of episodes, such as `run1/`.
        on_conflict: See `import_arrays`.
        on_progress: See `import_arrays`.
        **settings: Settings of the buffer; see `ReplayBuffer`.

    Raises:
        ArgumentError: An argument is invalid.
        BufferConfigError: A setting is wrong.
        FieldError: A value cannot be stored, or the buffer has other fields.
        FileImportError: The buffer has other episodes with the ids.
        InsufficientDataError: The replay buffer is empty.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> import numpy as np
        >>> from gymnasium.spaces import Box, Discrete
        >>> from stable_baselines3.common.buffers import ReplayBuffer as SB3ReplayBuffer
        >>> memory = SB3ReplayBuffer(100, Box(-1, 1, (3,)), Discrete(2), device="cpu")
        >>> obs, action = np.zeros((1, 3)), np.array([1])
        >>> memory.add(obs, obs, action, np.ones(1), np.array([True]), [{}])
        >>> from_sb3(memory, "sqlite://").n_stored
        1
    """
    options = ArrayOptions.checked(
        columns, tail, None, task_id, "default", prefix, on_conflict, on_progress
    )
    _check_is(replay_buffer, "replay_buffer", _SB3, _WHAT_SB3)
    n_envs, size = int(replay_buffer.n_envs), len(replay_buffer.rewards)
    order = np.arange(replay_buffer.pos)
    if replay_buffer.full:
        order = (np.arange(size) + replay_buffer.pos) % size
    arrays = _sb3_arrays(replay_buffer)
    is_compact = getattr(replay_buffer, "next_observations", None) is None
    if is_compact and replay_buffer.full:
        order = order[1:]  # the newest next observation is where the oldest observation was
    if not len(order):
        raise InsufficientDataError("replay_buffer is empty: there is nothing to import")
    lanes = []
    for env in range(n_envs):
        after = None
        if is_compact:
            after = {"obs": arrays["observations"][0][replay_buffer.pos, env]}
            after["obs"] = after["obs"].reshape(arrays["observations"][1])
        of_env = _env_columns(arrays, order, env)
        agent = f"env-{env}" if n_envs > 1 else None
        lanes.append(Lane(lambda of_env=of_env: iter([of_env]), agent, after))  # type: ignore[misc]
    return import_source(FlatSource("replay_buffer", lanes), url, name, options, settings)


# An array (size, n_envs, *shape), and the shape of one of its values.
_OfEnvs = tuple[Any, tuple[int, ...]]


def _sb3_arrays(replay_buffer: Any) -> dict[str, _OfEnvs]:
    """Return the arrays of a buffer of Stable-Baselines3 by their names among flat arrays."""
    spaces: dict[str, tuple[Any, Any, Any]] = {}
    following = getattr(replay_buffer, "next_observations", None)
    if isinstance(replay_buffer.observations, Mapping):
        for key, values in replay_buffer.observations.items():
            space = replay_buffer.observation_space[key]
            after = None if following is None else following[key]
            spaces[f"/{key}"] = values, after, space
    else:
        spaces[""] = replay_buffer.observations, following, replay_buffer.observation_space
    arrays: dict[str, _OfEnvs] = {}
    for key, (values, after, space) in spaces.items():
        shape = _shape_of(space, values.shape[2:])
        arrays[f"observations{key}"] = values, shape
        if after is not None:
            arrays[f"next_observations{key}"] = after, shape
    actions = replay_buffer.actions
    arrays["actions"] = actions, _shape_of(replay_buffer.action_space, actions.shape[2:])
    arrays["rewards"] = replay_buffer.rewards, ()
    timeouts = replay_buffer.timeouts != 0
    arrays["terminals"] = (replay_buffer.dones != 0) & ~timeouts, ()
    arrays["timeouts"] = timeouts, ()
    return arrays


def _shape_of(space: Any, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a space: Stable-Baselines3 stores numbers as arrays of one."""
    shape = space.shape
    is_same = shape is not None and np.prod(shape, dtype=int) == np.prod(stored, dtype=int)
    return tuple(shape) if is_same else tuple(stored)


def _env_columns(arrays: Mapping[str, _OfEnvs], order: NDArray[np.int64], env: int) -> Columns:
    """Return the arrays of one environment, in the order of time."""

    def column(values: Any, shape: tuple[int, ...]) -> FlatColumn:
        def pieces(n_rows: int) -> Iterator[NDArray[Any]]:
            for start in range(0, len(order), n_rows):
                rows = order[start : start + n_rows]
                yield values[rows, env].reshape(len(rows), *shape)

        return FlatColumn((len(order), *shape), values.dtype, pieces)

    return {name: column(values, shape) for name, (values, shape) in arrays.items()}


def to_sb3(
    buffer: ReplayBuffer,
    replay_buffer: Any,
    condition: Condition = None,
    *,
    on_progress: OnProgress | None = None,
) -> int:
    """Add the steps of a buffer to a replay buffer of Stable-Baselines3, and return their number.

    The steps are those of whole episodes, in the order in which these ended. The last step of a
    truncated episode is left out if the observation after it is unknown. A full replay buffer
    overwrites its oldest steps.

    Args:
        buffer: A buffer with the fields of `fields_from_env`, `from_sb3` or `SQLReplayBuffer`.
        replay_buffer: A `ReplayBuffer` or `DictReplayBuffer` of one environment.
        condition: Condition that all steps of an episode must match.
        on_progress: See `export_parquet`.

    Raises:
        ArgumentError: An argument is invalid, or the replay buffer is for several environments.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        FieldError: The buffer has other fields than the replay buffer.
        InsufficientDataError: The buffer has no whole episode.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> from stable_baselines3.common.buffers import ReplayBuffer as SB3ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32", "action": "int64"})
        >>> columns = {"obs": [0, 1], "action": [0, 1], "reward": [0, 1], "terminated": [0, 1]}
        >>> buffer.store_episode(columns, final={"obs": 2}).inserted
        2
        >>> memory = SB3ReplayBuffer(100, Box(-1, 1, ()), Discrete(2), device="cpu")
        >>> to_sb3(buffer, memory), memory.size()
        (2, 2)
    """
    on_progress = checked_progress(on_progress)
    _check_is(replay_buffer, "replay_buffer", _SB3, _WHAT_SB3)
    if replay_buffer.n_envs != 1:
        raise refused(
            replay_buffer.n_envs, "replay_buffer.n_envs",
            "1: episodes of a buffer are of different lengths, and the steps of several "
            "environments are added together",
        )  # fmt: skip
    is_dict = isinstance(replay_buffer.observations, Mapping)
    names: dict[str | None, str] = {None: "observations"}
    if is_dict:
        fields = part_names("obs", replay_buffer.observations)
        names = {key: array_name(field, (field,)) for key, field in fields.items()}
    n_added = 0
    for rows in _transitions(buffer, condition, on_progress):
        _check_has(rows, [*names.values(), "actions"], buffer)
        observations, following = (
            {key: rows[prefix + name] for key, name in names.items()} for prefix in ("", NEXT)
        )
        n_steps = len(rows["rewards"])
        for i in range(n_steps):
            obs, after = (
                {key: values[i : i + 1] for key, values in arrays.items()}
                for arrays in (observations, following)
            )
            is_over = bool(rows["terminals"][i] or rows["timeouts"][i])
            is_cut = bool(rows["timeouts"][i] and not rows["terminals"][i])
            replay_buffer.add(
                obs if is_dict else obs[None],
                after if is_dict else after[None],
                rows["actions"][i : i + 1],
                rows["rewards"][i : i + 1],
                np.array([is_over]),
                [{"TimeLimit.truncated": is_cut}],
            )
        n_added += n_steps
    return n_added


def _transitions(
    buffer: ReplayBuffer, condition: Condition, on_progress: OnProgress | None
) -> Iterator[Arrays]:
    """Yield the flat arrays of each whole episode, without a last step whose next observation is
    needed and unknown.
    """
    stream, fields, read = whole_episodes(buffer, condition, None, on_progress)
    observations, n_episodes = tuple(buffer.observation_fields), 0
    with stream:
        for episode in read(stream):
            n_episodes += 1
            rows = flat_rows(episode, observations, fields)
            is_whole = rows.has_next or bool(rows.arrays["terminals"][-1])
            stop = len(rows.arrays["rewards"]) - (not is_whole)
            yield {name: values[:stop] for name, values in rows.whole.items()}
    if not n_episodes:
        raise InsufficientDataError(f"buffer {buffer.name!r} has no whole episode that matches")


def from_cpprb(
    replay_buffer: Any,
    url: Database = None,
    name: str = "default",
    *,
    columns: Mapping[str, str | None] | None = None,
    tail: Tail = "cut",
    task_id: str | None = None,
    agent_id: str = "default",
    prefix: str = "",
    on_conflict: Literal["error", "skip"] = "error",
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> ImportReport:
    """Store the steps of a replay buffer of cpprb as episodes.

    The steps are read from the oldest to the newest. `obs`, `act`, `rew`, `done` and `next_obs` are
    known, with or without `next_of`; further arrays become fields of their names. `done` means
    terminated. An episode ends after such a step, and where the next observation is not that of the
    next step: there `on_episode_end` was called, or the environment reset. Priorities are not
    copied: cpprb does not return them.

    Call it again to continue after an interruption: whole episodes are not stored twice. For later
    calls, see `from_sb3`.

    Args:
        replay_buffer: A `ReplayBuffer` or `PrioritizedReplayBuffer`.
        url: The database; see `ReplayBuffer`.
        name: The buffer; a missing one is made.
        columns: Meanings of other names: `{"a": "actions", "pixels": "observations"}`; see
            `import_arrays`.
        tail: What to do with the newest steps of an episode that has not ended; see
            `import_arrays`.
        task_id: Task of all episodes; `default` if omitted.
        agent_id: Agent that acted.
        prefix: Text that is put before the ids of episodes, such as `run1/`.
        on_conflict: See `import_arrays`.
        on_progress: See `import_arrays`.
        **settings: Settings of the buffer; see `ReplayBuffer`.

    Raises:
        ArgumentError: An argument is invalid.
        BufferConfigError: A setting is wrong.
        FieldError: An array is missing, a value cannot be stored, the buffer has other fields, or
            the replay buffer has n-step returns.
        FileImportError: The buffer has other episodes with the ids.
        InsufficientDataError: The replay buffer is empty.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> import cpprb
        >>> names = {"obs": {"shape": 3}, "act": {}, "rew": {}, "done": {}}
        >>> memory = cpprb.ReplayBuffer(100, names, next_of="obs")
        >>> memory.add(obs=[0, 0, 0], act=1, rew=1, next_obs=[1, 1, 1], done=1) is None
        False
        >>> from_cpprb(memory, "sqlite://").n_stored
        1
    """
    _check_is(replay_buffer, "replay_buffer", _CPPRB, _WHAT_CPPRB)
    if replay_buffer.is_Nstep():
        raise FieldError(
            "replay_buffer has n-step returns, and a buffer has single steps: it makes n-step "
            "returns of any n when it draws. Fill a cpprb buffer without Nstep, and import that"
        )
    stored = replay_buffer.get_all_transitions()
    n_steps = replay_buffer.get_stored_size()
    if not n_steps:
        raise InsufficientDataError("replay_buffer is empty: there is nothing to import")
    if n_steps == replay_buffer.get_buffer_size():
        oldest = replay_buffer.get_next_index() % n_steps
        stored = {key: np.roll(values, -oldest, axis=0) for key, values in stored.items()}
    meanings = {key: "terminals" for key in stored if key in _DONE}
    options = ArrayOptions.checked(
        {**meanings, **checked_columns(columns)},
        tail,
        None,
        task_id,
        agent_id,
        prefix,
        on_conflict,
        on_progress,
    )
    lanes = [Lane(lambda: iter([dict_columns(stored)]))]
    return import_source(FlatSource("replay_buffer", lanes), url, name, options, settings)


def to_cpprb(
    buffer: ReplayBuffer,
    replay_buffer: Any,
    condition: Condition = None,
    *,
    columns: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> int:
    """Add the steps of a buffer to a replay buffer of cpprb, and return their number.

    The steps are those of whole episodes, in the order in which these ended, and `on_episode_end`
    is called after each. The last step of a truncated episode is left out if the observation after
    it is unknown. A full replay buffer overwrites its oldest steps.

    Args:
        buffer: A buffer with typed fields.
        replay_buffer: A `ReplayBuffer` or `PrioritizedReplayBuffer`. Its names are those that
            `from_cpprb` knows, or fields of the buffer.
        condition: Condition that all steps of an episode must match.
        columns: Meanings of other names; see `from_cpprb`.
        on_progress: See `export_parquet`.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        FieldError: The replay buffer has a name that no field has.
        InsufficientDataError: The buffer has no whole episode.

    Example:
        >>> import cpprb
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32", "action": "int64"})
        >>> values = {"obs": [0, 1], "action": [0, 1], "reward": [0, 1], "terminated": [0, 1]}
        >>> buffer.store_episode(values, final={"obs": 2}).inserted
        2
        >>> names = {"obs": {}, "act": {}, "rew": {}, "done": {}}
        >>> memory = cpprb.ReplayBuffer(100, names, next_of="obs")
        >>> to_cpprb(buffer, memory), memory.get_all_transitions()["next_obs"].tolist()
        (2, [[1.0], [2.0]])
    """
    on_progress = checked_progress(on_progress)
    _check_is(replay_buffer, "replay_buffer", _CPPRB, _WHAT_CPPRB)
    observations = tuple(checked_buffer(buffer).observation_fields)
    meanings, names = checked_columns(columns), {}
    for key in replay_buffer.get_all_transitions():
        meaning = meanings.get(key, "terminated" if key in _DONE else key)
        field = meaning_of(key if meaning is None else meaning)
        names[key] = _ROWS.get(field) or array_name(field, observations)
    n_added = 0
    for rows in _transitions(buffer, condition, on_progress):
        _check_has(rows, [*names.values()], buffer)
        if len(rows["rewards"]):
            replay_buffer.add(**{key: rows[name] for key, name in names.items()})
            replay_buffer.on_episode_end()
        n_added += len(rows["rewards"])
    return n_added


_ROWS = {"reward": "rewards", "terminated": "terminals", "truncated": "timeouts"}


def _check_is(value: Any, name: str, attributes: Sequence[str], what: str) -> None:
    if isinstance(value, type) or any(not hasattr(value, attribute) for attribute in attributes):
        raise refused(value, name, what)


def _check_has(rows: Arrays, names: Sequence[str], buffer: ReplayBuffer) -> None:
    for name in names:
        if name not in rows:
            raise FieldError(
                f"replay_buffer has {name!r}, and buffer {buffer.name!r} has the fields "
                f"{', '.join(buffer.fields) or 'none'}, which make {', '.join(rows)}"
            )
