"""`SQLReplayBuffer`: the replay buffer of an algorithm of Stable-Baselines3, in a database."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn, Unpack

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer as SB3ReplayBuffer
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.utils import get_device
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_integer
from sqlbuffer.config import OpenerSettings
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import BufferConfigError, URLError
from sqlbuffer.integrations.sb3.arguments_refused import (
    ARRAYS,
    HER,
    NO_ARRAYS,
    check_arguments,
    checked_gamma,
)
from sqlbuffer.integrations.sb3.env_episodes import EnvEpisodes
from sqlbuffer.integrations.sb3.sample_making import SampleMaker, Samples
from sqlbuffer.integrations.sb3.space_fields import ACTION, NEXT, SpaceFields
from sqlbuffer.mirror.buffer_mirror import MAX_BYTES, Mirror
from sqlbuffer.steps import Batch
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, is_memory, parsed_url, shown_url


class SQLReplayBuffer(SB3ReplayBuffer):  # type: ignore[misc]
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
        url: The database; see `sqlbuffer.ReplayBuffer`.
        name: Name of the buffer; one database holds many buffers.
        create: See `sqlbuffer.ReplayBuffer`.
        n_steps: Largest number of steps that a sample spans. The algorithm does not pass its own
            `n_steps` to the class in `replay_buffer_class`.
        gamma: Discount of one step; give the algorithm's own `gamma`. It is required if `n_steps`
            is above 1.
        task_id: Task of all its episodes; each episode's own id if omitted.
        agent_id: Agent that acts; `default` if omitted.
        session_id: Training session.
        mirror: Arguments of `sqlbuffer.ReplayBuffer.mirror`, such as `{"max_bytes": 2**30}`.
        **settings: Other settings of `sqlbuffer.ReplayBuffer`, such as `compression`.

    Attributes:
        buffer: The `sqlbuffer.ReplayBuffer` that holds the steps.
        model_version: Version of the model that acts. It is stored with the episodes that begin
            later; None: it is not stored.

    Raises:
        BufferConfigError: HER or `optimize_memory_usage`; `n_steps` without `gamma`; or the buffer
            is stored with other settings.
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
        **settings: Unpack[OpenerSettings],
    ) -> None:
        if isinstance(self, HerReplayBuffer):
            raise BufferConfigError(HER)
        check_arguments(settings, optimize_memory_usage=optimize_memory_usage)
        checked_integer(buffer_size, "buffer_size", 1)
        checked_integer(n_envs, "n_envs", 1)
        gamma = checked_gamma(n_steps, gamma)
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
        self._fields = SpaceFields.of(
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
        }  # fmt: skip
        own: Any = {**settings, "max_capacity": int(buffer_size), **self._fields.declared()}
        self.buffer = ReplayBuffer(url, name, create=create, **own)
        self._maker = SampleMaker(
            self._fields,
            self.n_steps,
            self.gamma,
            ends_at_limits=not self.handle_timeout_termination,
        )
        self._start()
        self._begin(0)  # keys are checked now, and not after the first step

    def _start(self) -> None:
        """Be without an open episode and without a mirror, in this process."""
        self._pid = os.getpid()
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
        """End the open episodes, store what waits, and free the mirror; a later call opens again.

        Raises:
            StorageError: It could not be stored, and waits.
        """
        if self._pid == os.getpid():
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
                self._arguments["buffer_size"], options.get("max_bytes", MAX_BYTES)
            )
            self._mirror = self.buffer.mirror(**options)
        # The algorithm's own seed has seeded this generator, and so repeats the draws.
        seed = int(np.random.randint(2**31 - 1))  # noqa: NPY002
        return self._maker.batches(self._mirror, batch_size, seed)

    def _be_in_this_process(self) -> None:
        """Begin again in a process that was forked."""
        if self._pid != os.getpid():
            self._start()

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


def _with_password(url: str) -> Database:
    """Return what opens a database that was saved without its password: `SQLBUFFER_URL`, if that is
    the same database. Otherwise the driver looks for a password.
    """
    with suppress(URLError):
        if shown_url(resolve_url(None)) == url:
            return None
    return url
