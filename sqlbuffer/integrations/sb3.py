"""A replay buffer for the algorithms of Stable-Baselines3.

See `docs/how-to/train-with-stable-baselines3.md`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Unpack
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import MIRROR_BYTES
from sqlbuffer.batches.hindsight import HindsightGoals
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_integer
from sqlbuffer.config import OpenerSettings
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import (
    BufferConfigError,
    FieldError,
    MissingExtraError,
    URLError,
    install,
)
from sqlbuffer.integrations.training_buffers import (
    StartsInEachProcess,
    check_settings,
    checked_gamma,
    end_with_process,
)
from sqlbuffer.loading.loader import Loader
from sqlbuffer.mirror.buffer_mirror import Mirror
from sqlbuffer.spaces import NEXT, part_names
from sqlbuffer.steps import Batch
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, is_memory, parsed_url, shown_url

try:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import (
        BaseBuffer,
        NStepReplayBuffer,  # noqa: F401
    )
    from stable_baselines3.common.buffers import ReplayBuffer as SB3ReplayBuffer
    from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.common.utils import get_device
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
except ImportError:
    raise MissingExtraError(
        f"sqlbuffer.integrations.sb3 needs Stable-Baselines3 2.7 or later; run {install('sb3')}"
    ) from None

__all__ = ["SQLHerReplayBuffer", "SQLReplayBuffer"]

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int, ...]

OBS, ACTION = "obs", "action"
OF_A_STEP = 100  # bytes that a mirror takes for a step next to its fields, about


@dataclass(frozen=True)
class ObservationPart:
    """An array of an observation.

    Attributes:
        key: Its key in a Dict observation; None: it is the whole observation.
        field: Its field.
        shape: Its shape, of one environment.
        dtype: Its dtype.
    """

    key: str | None
    field: str
    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class StepFields:
    """The fields that the spaces of an environment mean; made with `of`.

    Attributes:
        parts: The arrays of an observation.
        action: Shape and dtype of an action.
        n_envs: Number of environments.
    """

    parts: tuple[ObservationPart, ...]
    action: tuple[Shape, np.dtype[Any]]
    n_envs: int

    @classmethod
    def of(
        cls, space: spaces.Space[Any], shapes: Any, action: tuple[Shape, Any], n_envs: int
    ) -> "StepFields":
        """Return the fields of spaces.

        Args:
            space: The space of an observation.
            shapes: The shape that Stable-Baselines3 gives it; a dict of those of a Dict space.
            action: Shape and dtype of an action.
            n_envs: Number of environments.
        """
        if isinstance(space, spaces.Dict):
            parts = tuple(
                ObservationPart(key, field, tuple(shapes[key]), np.dtype(space[key].dtype))
                for key, field in part_names(OBS, shapes).items()
            )
        else:
            parts = (ObservationPart(None, OBS, tuple(shapes), np.dtype(space.dtype)),)
        return cls(parts, (action[0], np.dtype(action[1])), n_envs)

    @property
    def is_dict(self) -> bool:
        """Whether an observation is a dict."""
        return self.parts[0].key is not None

    def declared(self) -> dict[str, Any]:
        """Return the declaration of the fields, for `sqlbuffer.ReplayBuffer`."""
        shape, dtype = self.action
        observed = {part.field: (part.dtype, part.shape) for part in self.parts}
        after = {NEXT + name: declaration for name, declaration in observed.items()}
        return {
            "fields": {**observed, ACTION: (dtype, shape), **after},
            "observation_fields": [*observed],
        }

    def warn_of_size(self, n_steps: int, max_bytes: int) -> None:
        """Warn if n_steps steps do not fit into a mirror: its draws would fail when they are
        stored.
        """
        shape, dtype = self.action
        arrays = [(shape, dtype), *2 * [(part.shape, part.dtype) for part in self.parts]]
        n_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays) + OF_A_STEP
        if n_steps * n_bytes > max_bytes:
            warn(
                f"{n_steps:,} steps take {n_steps * n_bytes / 2**30:,.1f} GiB of memory to draw "
                f"from, and max_bytes allows {max_bytes / 2**30:,.1f} GiB, which is "
                f"{max_bytes // n_bytes:,} steps; draws raise MirrorFullError when there are more: "
                f"make buffer_size smaller, or pass mirror={{'max_bytes': ...}} in "
                f"replay_buffer_kwargs",
                stacklevel=4,
            )

    def observations(self, values: Any, what: str) -> Arrays:
        """Return copies of the observations of all environments, by field.

        Args:
            values: An array of shape (n_envs, *shape), or a dict of them.
            what: Name of the observations, for messages.

        Raises:
            FieldError: The shape is wrong, or the key does not exist.
        """
        columns = {}
        for part in self.parts:
            array, name = values, what
            if part.key is not None:
                name = f"{what}[{part.key!r}]"
                if not isinstance(values, Mapping) or part.key not in values:
                    raise FieldError(f"{name} is missing; the space of observations has it")
                array = values[part.key]
            columns[part.field] = self._rows(array, part.shape, part.dtype, name)
        return columns

    def actions(self, values: Any) -> NDArray[Any]:
        """Return a copy of the actions of all environments, of shape (n_envs, action_dim).

        Raises:
            FieldError: Another shape.
        """
        shape, dtype = self.action
        array = np.array(values, dtype)
        is_of_all = self.n_envs == 1 or array.shape[:1] == (self.n_envs,)
        if is_of_all and array.size == self.n_envs * math.prod(shape):
            return array.reshape(self.n_envs, *shape)
        raise self._wrong("action", array, shape)

    def numbers(self, values: Any, dtype: Any, what: str) -> NDArray[Any]:
        """Return one number of each environment, of shape (n_envs,).

        Raises:
            FieldError: Another shape.
        """
        return self._rows(values, (), dtype, what)

    def _rows(self, values: Any, shape: Shape, dtype: Any, what: str) -> NDArray[Any]:
        array, n = np.array(values, dtype), self.n_envs
        # A single environment may leave out its axis, and a number its own.
        flat = shape[:-1] if shape[-1:] == (1,) else shape
        accepted = [(n, *shape), (n, *flat), *([shape, flat] if n == 1 else [])]
        if array.shape not in accepted:
            raise self._wrong(what, array, shape)
        return array.reshape(n, *shape)

    def _wrong(self, what: str, array: NDArray[Any], shape: Shape) -> FieldError:
        return FieldError(
            f"{what}: expected shape {(self.n_envs, *shape)}, of n_envs={self.n_envs}, got "
            f"{array.shape}; give a step of each environment"
        )


_OWN = {
    "fields": "they are those of the spaces; leave it out",
    "observation_fields": "they are those of the spaces; leave it out",
    "max_capacity": "it is the algorithm's `buffer_size`; leave it out",
    "config": "give its settings one by one; leave it out",
    "connection": "give its settings one by one; leave it out",
}
# Arguments in `replay_buffer_kwargs`; the algorithm gives the others.
_ARGUMENTS = (
    "url", "name", "create", "n_steps", "gamma", "task_id", "agent_id", "session_id",
    "model_version", "mirror", "handle_timeout_termination", "n_sampled_goal",
    "goal_selection_strategy", "copy_info_dict",
)  # fmt: skip
N_SAMPLED_GOAL = 4  # of HerReplayBuffer
INFOS = (
    "SQLReplayBuffer does not take copy_info_dict=True, because it stores no info: compute_reward "
    "is called with an empty dict for each transition, as HerReplayBuffer does by default"
)
SEVERAL_STEPS = (
    "goals in hindsight go with n_steps=1, got n_steps={}: the rewards of the steps between are "
    "those for the stored goal"
)
NO_GOALS = (
    "goals in hindsight need a Dict space of observations with achieved_goal and desired_goal, got "
    "{}; leave n_sampled_goal and goal_selection_strategy out, or take SQLReplayBuffer"
)
NO_ENV = (
    "there is no environment to compute the rewards for goals in hindsight: take "
    "SQLHerReplayBuffer, to which the algorithm gives its environment, or call "
    "replay_buffer.set_env(model.get_env())"
)
MEMORY = (
    "SQLReplayBuffer does not take optimize_memory_usage=True, because each step is stored with "
    "the observation after it; leave it out, and pass compression='zstd' in replay_buffer_kwargs "
    "to store large observations in less space"
)
GAMMA = (
    "the algorithm's own gamma, which does not reach the buffer: give gamma=0.99 in "
    "replay_buffer_kwargs where that is 0.99"
)
# Arrays of SB3's own buffers.
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
NO_ARRAYS = (
    "SQLReplayBuffer has no array {!r}: its steps are in a database; read them with "
    "replay_buffer.buffer.sample_arrays(), or by SQL"
)


Flags = NDArray[np.bool_]


class EnvEpisodes:
    """Writes the steps of each environment as episodes; for one thread.

    Args:
        begin: Begins an episode of an environment, given by its number.
        n_envs: Number of environments.
    """

    def __init__(self, begin: Callable[[int], EpisodeWriter], n_envs: int) -> None:
        self._begin = begin
        self._episodes: list[EpisodeWriter | None] = [None] * n_envs
        self._after: Arrays = {}
        end_with_process(self.end)

    def add(self, step: Arrays, before: Sequence[str], terminated: Flags, truncated: Flags) -> None:
        """Add a step of each environment.

        Args:
            step: Fields of all environments, each of shape (n_envs, *shape), and `reward`.
            before: Fields of the observation before the step; `next_<name>` is the one after.
            terminated: Flags of episodes that end, shape (n_envs,).
            truncated: Flags of episodes that a time limit cuts, shape (n_envs,).

        Raises:
            SQLBufferError: Earlier steps could not be stored. Episodes of environments whose step
                was not added end before it.
        """
        if self._after:
            self._end_where_reset({name: step[name] for name in before})
        self._after = {name: step[NEXT + name] for name in before}
        rewards, n_added = step["reward"].tolist(), 0
        try:
            for i, ends in enumerate(zip(terminated.tolist(), truncated.tolist(), strict=True)):
                step_values: dict[str, Any] = {name: values[i] for name, values in step.items()}
                step_values["reward"] = rewards[i]
                step_values["terminated"], step_values["truncated"] = ends
                episode = self._episodes[i]
                if episode is None:
                    episode = self._episodes[i] = self._begin(i)
                episode.append(**step_values)
                n_added += 1
                if any(ends):
                    self._end(i)
        except BaseException:
            for i in range(n_added, len(rewards)):  # a later step would not follow their last one
                self._end(i)
            raise

    def end(self) -> None:
        """End all open episodes where they are."""
        for i in range(len(self._episodes)):
            self._end(i)

    def _end(self, i: int) -> None:
        episode, self._episodes[i] = self._episodes[i], None
        if episode is not None:
            episode.finish()

    def _end_where_reset(self, observed: Arrays) -> None:
        """End the episodes of environments that do not continue from their last observation."""
        for name, current in observed.items():
            then = self._after[name]
            if current.tobytes() == then.tobytes():  # bytes, because NaN does not equal itself
                continue
            for i in range(len(current)):
                if self._episodes[i] is not None and current[i].tobytes() != then[i].tobytes():
                    self._end(i)


Samples = Any  # ReplayBufferSamples, or DictReplayBufferSamples
Floats = NDArray[np.float32]


class SampleMaker:
    """Makes samples as the replay buffers of Stable-Baselines3 do, with the same arithmetic.

    Args:
        fields: The fields of a step.
        n_steps: Largest number of steps that a transition spans.
        gamma: Discount of one step.
        ends_at_limits: Whether an episode that was cut at a time limit counts as done.
        goals: Goals in hindsight; None for none.
    """

    def __init__(
        self,
        fields: StepFields,
        n_steps: int,
        gamma: float,
        *,
        ends_at_limits: bool,
        goals: HindsightGoals | None,
    ) -> None:
        self._fields, self._n_steps, self._gamma = fields, n_steps, gamma
        self._ends_at_limits, self._goals = ends_at_limits, goals

    def batches(self, mirror: Mirror, batch_size: int, seed: int) -> Iterator[Batch]:
        """Return batches drawn from a mirror with replacement, without end."""
        loader: Loader[Batch]
        observed = [part.field for part in self._fields.parts]
        if self._goals is not None:
            loader = mirror.loader(
                "transition", batch_size, replace=True, relabel=self._goals, seed=seed,
                fields=[*observed, ACTION, "truncated"],
            )  # fmt: skip
        elif self._n_steps == 1:
            loader = mirror.loader("step", batch_size, replace=True, seed=seed)
        else:
            loader = mirror.loader(
                "n_step", batch_size, n_step=self._n_steps, gamma=self._gamma, replace=True,
                fields=[*observed, ACTION, "truncated"], sequence_fields=["reward"], seed=seed,
            )  # fmt: skip
        return iter(loader)

    def samples(self, batch: Batch, buffer: BaseBuffer, env: Any) -> Samples:
        """Return a batch as samples.

        Args:
            batch: The batch.
            buffer: Makes tensors.
            env: The `VecNormalize` that normalizes; None: nothing is normalized.
        """

        def tensor(array: NDArray[Any]) -> Any:
            return buffer.to_torch(array, copy=False)  # a batch shares no memory with the mirror

        before, after = (
            self._observation(batch, prefix, buffer, env, tensor) for prefix in ("", NEXT)
        )
        is_done = batch.terminated
        if self._ends_at_limits:
            is_done = is_done | batch.truncated
        dones = is_done.astype(np.float32).reshape(-1, 1)
        samples_type = DictReplayBufferSamples if self._fields.is_dict else ReplayBufferSamples
        if self._n_steps == 1:
            rewards = buffer._normalize_reward(batch.reward.reshape(-1, 1), env)
            discounts = None
        else:
            rewards, discounts = self._returns(batch, buffer, env)
            discounts = tensor(discounts)
        return samples_type(
            before, tensor(batch[ACTION]), after, tensor(dones), tensor(rewards), discounts
        )

    def _observation(
        self, batch: Batch, prefix: str, buffer: BaseBuffer, env: Any, tensor: Any
    ) -> Any:
        parts = self._fields.parts
        if not self._fields.is_dict:
            return tensor(buffer._normalize_obs(batch[prefix + parts[0].field], env))
        values = {part.key: batch[prefix + part.field] for part in parts}
        return {key: tensor(array) for key, array in buffer._normalize_obs(values, env).items()}

    def _returns(self, batch: Batch, buffer: BaseBuffer, env: Any) -> tuple[Floats, Floats]:
        """Return the discounted sums of rewards, and the discounts of what follows.

        The operations are those of `NStepReplayBuffer`, in its order, so that results are equal to
        the last bit. Rewards are normalized one by one.
        """
        n_steps, gamma = batch.info["n_steps"].reshape(-1, 1), self._gamma
        rewards = buffer._normalize_reward(batch.seq_reward, env)
        mask = np.arange(self._n_steps).reshape(1, -1) < n_steps
        discounts = gamma ** np.arange(self._n_steps, dtype=np.float32).reshape(1, -1)
        returns: Floats = (rewards * discounts * mask).sum(axis=1, keepdims=True)
        return returns, gamma ** n_steps.astype(np.float32)


def goals_of(
    fields: StepFields,
    space: Any,
    n_sampled_goal: Any,
    strategy: Any,
    rewards: Callable[[NDArray[Any], NDArray[Any], Any], NDArray[Any]],
) -> HindsightGoals:
    """Return goals in hindsight as the arguments of `HerReplayBuffer` mean them.

    Args:
        fields: The fields of the spaces.
        space: The space of an observation.
        n_sampled_goal: Number of relabelled transitions for each other one.
        strategy: A `GoalSelectionStrategy`, or its name.
        rewards: Computes rewards.

    Raises:
        BufferConfigError: The space has no goals.
        ArgumentError: An argument is invalid.
    """
    field_of = {part.key: part.field for part in fields.parts}
    if not {"achieved_goal", "desired_goal"} <= field_of.keys():
        raise BufferConfigError(NO_GOALS.format(space))
    name = strategy.name if isinstance(strategy, GoalSelectionStrategy) else strategy
    named: dict[str, Any] = {"strategy": name.lower() if isinstance(name, str) else name}
    return HindsightGoals(
        **named,
        reward_fn=rewards,
        n_sampled_goal=n_sampled_goal,
        achieved_goal=field_of["achieved_goal"],
        desired_goal=field_of["desired_goal"],
    )


class SQLReplayBuffer(StartsInEachProcess, SB3ReplayBuffer):  # type: ignore[misc]
    """A replay buffer for DQN, SAC, TD3 and other algorithms that stores its steps in a SQL
    database.

    Processes that open the same URL and name share it: collectors add steps, and a learner draws
    from all of them. Samples are those of Stable-Baselines3's `ReplayBuffer`, `DictReplayBuffer`
    and, with `n_steps`, `NStepReplayBuffer`. They are drawn from a mirror in memory, which is read
    at the first `sample`.

    Args:
        buffer_size: Largest number of steps, of all environments and processes together.
        observation_space: Space of an observation; may be a Dict space.
        action_space: Space of an action.
        device: Device of torch for samples.
        n_envs: Number of environments whose steps this process adds in one call.
        optimize_memory_usage: Refused; see `docs/how-to/train-with-stable-baselines3.md`.
        handle_timeout_termination: Whether an episode that a time limit has cut counts as not done
            in samples. It is always stored as truncated.
        url: The database; see `sqlbuffer.ReplayBuffer`. Without it and without `SQLBUFFER_URL`, a
            warning says where the steps are stored.
        name: Name of the buffer; one database holds many buffers.
        create: See `sqlbuffer.ReplayBuffer`.
        n_steps: Largest number of steps that a sample spans. The algorithm does not pass its own
            `n_steps` to the class in `replay_buffer_class`.
        gamma: Discount of one step; give the algorithm's own `gamma`. It is required if `n_steps`
            is above 1.
        task_id: Task of all its episodes; each episode's own id if omitted.
        agent_id: Agent that acts; `default` if omitted.
        session_id: Training session.
        model_version: See the attribute.
        mirror: Arguments of `sqlbuffer.ReplayBuffer.mirror`, such as `{"max_bytes": 2**30}`.
        n_sampled_goal: Number of transitions with a goal in hindsight for each other one, as of
            `HerReplayBuffer`. None: no goals are relabelled, unless `goal_selection_strategy` is
            given. It needs an environment; see `SQLHerReplayBuffer`.
        goal_selection_strategy: `future`, `final` or `episode`, as of `HerReplayBuffer`.
        copy_info_dict: Refused if True, because infos are not stored.
        env: The environment that computes rewards for goals in hindsight.
        **settings: Other settings of `sqlbuffer.ReplayBuffer`, such as `compression`.

    Attributes:
        buffer: The `sqlbuffer.ReplayBuffer` that holds the steps.
        model_version: Version of the model that acts. It is stored with the episodes that begin
            later; None: it is not stored.

    Raises:
        BufferConfigError: `optimize_memory_usage` or `copy_info_dict`; `n_steps` without `gamma`;
            goals in hindsight with several steps, or without goals in the space; or the buffer is
            stored with other settings.
        FieldError: The buffer is stored with other fields than those of the spaces.
        StorageUnreachableError: The database does not answer; see `sqlbuffer.ReplayBuffer` for
            other errors.
        TypeError: The argument is unknown.

    Example:
        >>> from stable_baselines3 import DQN
        >>> model = DQN(
        ...     "MlpPolicy",
        ...     "CartPole-v1",
        ...     learning_starts=50,
        ...     replay_buffer_class=SQLReplayBuffer,
        ...     replay_buffer_kwargs={"url": "sqlite://"},
        ... )
        >>> _ = model.learn(100)
        >>> model.replay_buffer.size(), len(model.replay_buffer.buffer)
        (100, 100)
        >>> model.replay_buffer.set_env(model.get_env())  # for goals in hindsight
    """

    buffer: ReplayBuffer
    model_version: int | None
    _arguments: dict[str, Any]
    _maker: SampleMaker

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        url: Database = None,
        name: str = "default",
        create: bool | None = None,
        n_steps: int = 1,
        gamma: float | None = None,
        task_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        model_version: int | None = None,
        mirror: Mapping[str, Any] | None = None,
        n_sampled_goal: int | None = None,
        goal_selection_strategy: Any = None,
        copy_info_dict: bool = False,
        env: Any = None,
        **settings: Unpack[OpenerSettings],
    ) -> None:
        if copy_info_dict:
            raise BufferConfigError(INFOS)
        if optimize_memory_usage:
            raise BufferConfigError(MEMORY)
        check_settings(settings, _ARGUMENTS, _OWN)
        checked_integer(buffer_size, "buffer_size", 1)
        checked_integer(n_envs, "n_envs", 1)
        # That of the algorithms; one step has no discount.
        gamma = checked_gamma(n_steps, gamma, same_as=GAMMA, default=0.99)
        # The attributes of SB3's buffers without their arrays, which hold all steps.
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_shape = get_obs_shape(observation_space)
        self.action_dim = get_action_dim(action_space)
        self.device, self.n_envs = get_device(device), int(n_envs)
        self.buffer_size: int = max(int(buffer_size) // self.n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = bool(handle_timeout_termination)
        self.n_steps, self.gamma = int(n_steps), float(gamma)
        self.model_version = model_version
        self._fields = StepFields.of(
            observation_space,
            self.obs_shape,
            ((self.action_dim,), self._maybe_cast_dtype(action_space.dtype)),
            self.n_envs,
        )
        self._arguments = {
            "name": name, "n_steps": self.n_steps, "gamma": self.gamma, "task_id": task_id,
            "agent_id": agent_id, "session_id": session_id, "mirror": mirror, **settings,
            "buffer_size": int(buffer_size), "observation_space": observation_space,
            "action_space": action_space, "n_envs": self.n_envs,
            "handle_timeout_termination": self.handle_timeout_termination,
            "n_sampled_goal": n_sampled_goal, "goal_selection_strategy": goal_selection_strategy,
        }  # fmt: skip
        self.env, goals = env, None
        if n_sampled_goal is not None or goal_selection_strategy is not None:
            if self.n_steps > 1:
                raise BufferConfigError(SEVERAL_STEPS.format(self.n_steps))
            n = N_SAMPLED_GOAL if n_sampled_goal is None else n_sampled_goal
            strategy = goal_selection_strategy or "future"
            goals = goals_of(self._fields, observation_space, n, strategy, self._rewards)
        declared = self._fields.declared()
        all_settings: Any = {**settings, "max_capacity": int(buffer_size), **declared}
        self.buffer = ReplayBuffer(url, name, create=create, **all_settings)
        self._maker = SampleMaker(
            self._fields,
            self.n_steps,
            self.gamma,
            ends_at_limits=not self.handle_timeout_termination,
            goals=goals,
        )
        self._start()
        self._begin(0)  # keys are checked now, and not after the first step

    def _start(self) -> None:
        """Begin without an open episode and without a mirror, in this process."""
        super()._start()
        self._episodes = EnvEpisodes(self._begin, self.n_envs)
        self._mirror: Mirror | None = None
        self._batches: tuple[int, Iterator[Batch]] | None = None

    def _begin(self, env: int) -> EpisodeWriter:
        keys = {name: self._arguments[name] for name in ("task_id", "agent_id", "session_id")}
        return self.buffer.episode(
            **keys, model_version=self.model_version, casting="unsafe", env=env
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the address of the buffer and how it was opened: no step, and no password.

        Raises:
            BufferConfigError: The database is in memory.
            StorageError: Steps that wait could not be stored.
        """
        if is_memory(parsed_url(self.buffer.url)):
            raise BufferConfigError(
                "SQLReplayBuffer with a database in memory cannot be saved: it ends with the "
                "process; open it with a file, such as url='sqlite:///replay.db'"
            )
        self.buffer.flush()
        return {
            **self._arguments,
            "url": self.buffer.url,
            "device": self.device,
            "model_version": self.model_version,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A database that is gone is an error, and not a new one without steps.
        self.__init__(**{**state, "url": _with_password(state["url"]), "create": False})  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        """Raise for a missing attribute; say where the arrays of SB3's buffers are."""
        kind = type(self).__name__
        known = NO_ARRAYS.format(name) if name in ARRAYS else f"{kind!r} has no {name!r}"
        raise AttributeError(known)

    def __repr__(self) -> str:
        return f"SQLReplayBuffer({self.buffer.url!r}, name={self.buffer.name!r})"

    def __enter__(self) -> "SQLReplayBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the open episodes, store what waits, and free the mirror.

        Samples are refused afterwards; `add` still stores.

        Raises:
            StorageError: It could not be stored, and waits.
        """
        if self._is_in_this_process:
            self._episodes.end()
            self._close_mirror()
        self.buffer.close()

    def _close_mirror(self) -> None:
        mirror, self._mirror, self._batches = self._mirror, None, None
        if mirror is not None:
            mirror.close()

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: Any,
        done: Any,
        infos: list[dict[str, Any]],
    ) -> None:
        """Add a step of each environment; it is stored within `flush_s` as part of its episode.

        An episode ends where `done` is set. It also ends if the environment was reset: the next
        step does not start from the observation after the last one.

        Args:
            obs: Observations before the step, of shape (n_envs, *shape); or a dict of them.
            next_obs: Observations after it; the final ones of episodes that ended.
            action: Actions, of shape (n_envs, action_dim).
            reward: Rewards, of shape (n_envs,).
            done: Flags of episodes that ended, shape (n_envs,).
            infos: A dict for each environment; `TimeLimit.truncated` is true if a time limit has
                cut the episode.

        Raises:
            FieldError: Another shape, or another number of environments; nothing is added.
            StorageError: Earlier steps could not be stored; they stay pending. If a step is not
                added, the episode ends before it.
        """
        fields = self._fields
        before, after = fields.observations(obs, "obs"), fields.observations(next_obs, "next_obs")
        ended = fields.numbers(done, np.bool_, "done")
        cut = fields.numbers(
            [info.get("TimeLimit.truncated", False) for info in infos], np.bool_, "infos"
        )
        step = {
            **before,
            ACTION: fields.actions(action),
            **{NEXT + name: values for name, values in after.items()},
            "reward": fields.numbers(reward, np.float64, "reward"),
        }
        self._be_in_this_process()
        self._episodes.add(step, tuple(before), ended & ~cut, cut)

    def sample(self, batch_size: int, env: Any = None) -> Samples:
        """Draw steps uniformly with replacement, of all processes.

        Steps of this process are part of a draw as `sqlbuffer.ReplayBuffer` says: all but one in 64
        of those stored, and all that are older than `flush_s`. With `n_steps`, steps are drawn once
        those that follow them are stored.

        Args:
            batch_size: Number of items.
            env: A `VecNormalize` that normalizes observations and rewards.

        Returns:
            Tensors of shape (batch_size, ...), as the buffers of Stable-Baselines3 return them.

        Warns:
            UserWarning: The first time, where the buffer will not fit into the mirror when it is
                full.

        Raises:
            InsufficientDataError: No step can be drawn.
            MirrorFullError: The steps do not fit into the `max_bytes` of the mirror.
        """
        self._be_in_this_process()
        if self._batches is None or self._batches[0] != batch_size:
            self._batches = batch_size, self._drawn(batch_size)
        try:
            batch = next(self._batches[1])
        except BaseException:
            self._batches = None  # a generator that has raised is at its end
            raise
        return self._maker.samples(batch, self, env)

    def _drawn(self, batch_size: int) -> Iterator[Batch]:
        if self._mirror is None:
            options = self._arguments["mirror"] or {}
            self._fields.warn_of_size(
                self._arguments["buffer_size"], options.get("max_bytes", MIRROR_BYTES)
            )
            self._mirror = self.buffer.mirror(**options)
        # The algorithm's own seed has seeded this generator, and so repeats the draws.
        seed = int(np.random.randint(2**31 - 1))  # noqa: NPY002
        return self._maker.batches(self._mirror, batch_size, seed)

    def set_env(self, env: Any) -> None:
        """Set the environment that computes rewards for goals in hindsight.

        Args:
            env: A `VecEnv`; the method `compute_reward` of its first environment is called.

        Raises:
            ValueError: The buffer has one already.
        """
        if self.env is not None:
            raise ValueError("the replay buffer has an environment already")
        self.env = env

    def _rewards(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], infos: Any
    ) -> NDArray[Any]:
        """Return the rewards that the environment computes; see `HindsightGoals`."""
        if self.env is None:
            raise BufferConfigError(NO_ENV)
        n = len(achieved_goal)
        (rewards,) = self.env.env_method(
            "compute_reward", achieved_goal, desired_goal, [{} for _ in range(n)], indices=[0]
        )
        rewards = np.asarray(rewards)
        return rewards.reshape(n) if rewards.size == n else rewards

    def size(self) -> int:
        """Return how many steps of each environment there are, at most `buffer_size`: the steps of
        all processes, divided by `n_envs`.
        """
        return min(len(self.buffer) // self.n_envs, self.buffer_size)

    @property
    def full(self) -> bool:
        """Whether new steps evict old ones."""
        return self.size() == self.buffer_size

    @property
    def pos(self) -> int:
        """`size()`, or 0 once the buffer is full."""
        return self.size() % self.buffer_size

    def reset(self) -> NoReturn:
        """Raise: the steps belong to all processes that share the buffer.

        Raises:
            BufferConfigError: Always; says how to delete them.
        """
        raise BufferConfigError(
            "SQLReplayBuffer is shared, and a reset would delete the steps of all processes; call "
            "replay_buffer.buffer.clear() to delete them, or open a buffer of another name"
        )

    def _get_samples(self, batch_inds: Any, env: Any = None) -> NoReturn:
        raise BufferConfigError(
            "steps of SQLReplayBuffer have no fixed index, because other processes add and evict; "
            "call sample(), or read steps by their number with replay_buffer.buffer"
        )


class SQLHerReplayBuffer(SQLReplayBuffer, HerReplayBuffer):  # type: ignore[misc]
    """A `SQLReplayBuffer` that relabels goals in hindsight (HER), in place of `HerReplayBuffer`.

    An algorithm of Stable-Baselines3 gives its environment only to classes that are derived from
    `HerReplayBuffer`, so goals in hindsight have a class of their own. The environment's method
    `compute_reward` computes the rewards for new goals. Only transitions of episodes that have
    ended are drawn: `learning_starts` is more than the steps of the longest episode.

    Flags `dones` are those that are stored, as `HerReplayBuffer` has them. Rows with new goals are
    at random places of a batch; `HerReplayBuffer` puts them last.

    Args:
        *args: Arguments of `SQLReplayBuffer`.
        n_sampled_goal: Number of transitions with a goal in hindsight for each other one.
        goal_selection_strategy: `future`, `final` or `episode`.
        **options: Further arguments of `SQLReplayBuffer`.

    Raises:
        BufferConfigError: The space of observations has no goals, or `n_steps` is above 1; see
            `SQLReplayBuffer` for other errors.

    Example:
        >>> from stable_baselines3 import DQN
        >>> from stable_baselines3.common.envs import BitFlippingEnv
        >>> model = DQN(
        ...     "MultiInputPolicy",
        ...     BitFlippingEnv(n_bits=4),
        ...     learning_starts=20,
        ...     replay_buffer_class=SQLHerReplayBuffer,
        ...     replay_buffer_kwargs={"url": "sqlite://", "n_sampled_goal": 4},
        ... )
        >>> _ = model.learn(40)
        >>> model.replay_buffer.sample(8).observations["desired_goal"].shape
        torch.Size([8, 4])
    """

    def __init__(
        self,
        *args: Any,
        n_sampled_goal: int = N_SAMPLED_GOAL,
        goal_selection_strategy: Any = "future",
        **options: Any,
    ) -> None:
        super().__init__(
            *args,
            n_sampled_goal=n_sampled_goal,
            goal_selection_strategy=goal_selection_strategy,
            **options,
        )

    def truncate_last_trajectory(self) -> None:
        """End the open episodes of this process; loading a replay buffer calls it."""
        self._episodes.end()


def _with_password(url: str) -> Database:
    """Return `SQLBUFFER_URL` if it is the database of a URL that was saved without a password."""
    with suppress(URLError):
        if shown_url(resolve_url(None)) == url:
            return None
    return url
