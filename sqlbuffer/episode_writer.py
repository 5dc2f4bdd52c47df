"""One episode, written step by step."""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from sqlbuffer.arguments import checked_session
from sqlbuffer.encoding.column_chunks import PackedStep
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart, pack_final
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import Record, encode_step
from sqlbuffer.errors import FieldError, SQLBufferError
from sqlbuffer.fields import Casting
from sqlbuffer.steps import DataRow, takes, values_of_step
from sqlbuffer.storage.episode_changes import Continued
from sqlbuffer.storage.labels.values import checked_reward
from sqlbuffer.storage.writing.write_queue import WriteQueue

logger = logging.getLogger("sqlbuffer")

# Checks and encodes a step by its place within the episode.
Encode = Callable[[int, Mapping[str, Any]], Record | PackedStep]
# Makes that of an episode which began so.
Encoding = Callable[[EpisodeStart], Encode]


class NewEpisodes:
    """What the episodes that begin from now on have in common.

    Args:
        model_version: Version of the model that acts.
        session_id: Training session.
    """

    def __init__(self, model_version: int | None, session_id: str | None) -> None:
        self.model_version, self.session_id = model_version, session_id

    @property
    def model_version(self) -> int | None:
        """Version of the model that acts."""
        return self._model_version

    @model_version.setter
    def model_version(self, version: int | None) -> None:
        self._model_version = None if version is None else encode_step(version, "model_version")

    @property
    def session_id(self) -> str | None:
        """The training session."""
        return self._session_id

    @session_id.setter
    def session_id(self, session_id: str | None) -> None:
        self._session_id = None if session_id is None else checked_session(session_id)


class EpisodeWriter:
    """An open episode, made by `ReplayBuffer.episode`. Use it from one thread at a time.

    As a context manager, it ends the episode at the end of the block. If the block raises, the
    episode is marked `aborted`, and its steps are stored.

    Attributes:
        episode_id: Id of the episode.
        task_id: Task of the episode.
        agent_id: Agent that acts.
        attempt: 1, and one more with each writer that continues the episode.
        length: Number of steps so far, also of those that earlier writers stored.
        episode_return: Sum of the steps' rewards; None if no step has a reward.
        is_open: True until the episode ends.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": ("float32", (2,)), "action": "int64"})
        >>> with buffer.episode(level=3) as episode:
        ...     episode.append(obs=[0.0, 0.0], action=1, reward=1.0)
        ...     episode.append(obs=[0.0, 1.0], action=0, reward=0.5, terminated=True)
        ...     episode.end(obs=[1.0, 1.0])
        >>> len(buffer), episode.length, episode.episode_return
        (2, 2, 1.5)
        >>> [row.exp_data.reward_t for row in episode.steps()]
        [1.0, 0.5]
        >>> episode = buffer.episode(level=1)
        >>> episode.append(obs=[0.0, 0.0], action=1, truncated=True)
        >>> episode.finish({"obs": [0.0, 1.0]})
        >>> buffer.episode(level=1).abort()
    """

    def __init__(
        self,
        encoding: Encoding,
        observation: Layout,
        queue: WriteQueue[Any, Any],
        continued: Continued,
        casting: Casting,
        read: Callable[[], list[DataRow]],
    ) -> None:
        beginning = continued.beginning
        self._encoding, self._observation, self._read = encoding, observation, read
        self._encode = encoding(beginning)
        self._queue, self._casting, self._beginning = queue, casting, beginning
        self.attempt = beginning.attempt
        self.episode_id, self.task_id = beginning.key, beginning.task_id
        self.agent_id = beginning.agent_id
        self.length = continued.n_steps
        self.episode_return = continued.total
        self.is_open = True
        self._held: Record | PackedStep | None = None
        self._pid = os.getpid()

    @property
    def t(self) -> int:
        """Number of the next step: 0, 1, 2 and so on, also where earlier steps were evicted."""
        return self.length

    def steps(self) -> list[DataRow]:
        """Return the steps that the buffer holds of the episode, in their order.

        They are read from the primary, with those of this writer that were pending.
        """
        self._queue.flush()
        self._queue.check(self._beginning)
        return self._read()

    @takes(values_of_step)
    def append(self, /, **step: Any) -> None:
        """Add a step; it is stored within the buffer's `flush_s`, unless the database or the rate
        limiter holds it up. Wait before that, if `max_pending` steps are pending.

        Args:
            **step: A value for each declared field. Optional are `reward`, `adv_t`, `v_t`,
                `terminated`, `truncated`, `state`, `actions`, `messages` and `extra`, and
                `priority` if the buffer has priorities. `model_version` holds for this step and
                those after it. The values are copied.

        Raises:
            FieldError: A field is unknown or missing, a value cannot be stored, or the episode has
                ended. The step is not added.
            FlowControlError: The rate limiter allowed none of the pending steps in time; this step
                is not added.
            StorageError: Earlier steps could not be stored. They stay pending, and this step is not
                added.
            EpisodeExistsError: Another writer has stored earlier steps of this episode; this step
                is not added.
            EpisodeTakenError: Another writer has continued the episode; this step is not added, and
                those that were pending are lost.
            EpisodeEndedError: The episode was ended elsewhere, in the same way.
        """
        self._check_open()
        encoded = self._encoded(step)
        if self._held is not None:
            self._release()
        self._queue.add(encoded, self._beginning)
        self._count(encoded.reward_t)

    def hold(self, **step: Any) -> None:
        """Add a step as `append` does, but keep it in this object until the next call, which may be
        `cut`.

        :meta private:
        """
        self._check_open()
        encoded = self._encoded(step)
        self._release()
        self._held = encoded
        self._count(encoded.reward_t)

    def end(self, *, reward: float | None = None, **final: Any) -> None:
        """End the episode and store all of it.

        Args:
            reward: The episode's own reward, a finite number: a score for the whole episode. It is
                stored in addition to the sum of the steps' rewards (`reward` in `v_episodes`).
            **final: Observation after the last step, a value for each observation field. Omit it if
                there is none.

        Raises:
            FieldError: Fields are missing or unknown, a field cannot hold a value, or the reward is
                not a finite number; the episode stays open. Or it has ended already.
            StorageError: The episode could not be stored; it stays pending.
        """
        self.finish(final, reward=reward)
        self._queue.flush()
        self._queue.check(self._beginning)

    def finish(self, final: dict[str, Any] | None = None, *, reward: float | None = None) -> None:
        """End the episode without a wait: its end is stored within the buffer's `flush_s`.

        Args:
            final: Observation after the last step, by field; None if there is none.
            reward: The episode's own reward; see `end`.

        Raises:
            FieldError: As `end`; the episode stays open, unless it has ended already.
        """
        self._check_open()
        reward = checked_reward(reward, "reward")
        final_arrays = pack_final(self._observation, final, self._casting)
        self._release()
        self._close("complete", final_arrays, reward)

    def cut(self, final: dict[str, Any] | None = None) -> None:
        """End the episode as truncated after the held step, without a wait.

        :meta private:
        """
        self._check_open()
        final_arrays = pack_final(self._observation, final, self._casting)
        if self._held is not None:
            self._held = self._held._replace(truncated=True)
        self._close("complete", final_arrays)

    def abort(self) -> None:
        """End the episode as aborted: its steps are stored, but not drawn as transitions.

        Raises:
            FieldError: The episode has ended, or another process began it.
            StorageError: The episode could not be stored; it stays pending.
        """
        self._check_open()
        self._close("aborted", None)
        self._queue.flush()
        self._queue.check(self._beginning)

    def leave(self) -> None:
        """Store the steps, and close this object: another transaction ends the episode.

        :meta private:
        """
        self._check_open()
        self._release()
        self.is_open = False
        self._queue.leave(self._beginning)

    def __enter__(self) -> "EpisodeWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.is_open and kind is None:
            self.end()
        elif self.is_open:
            try:
                self.abort()
            except SQLBufferError as error:  # the caller must see the first error
                logger.warning("episode %r waits to be stored: %s", self.episode_id, error)

    def _close(self, status: str, final_arrays: bytes | None, reward: float | None = None) -> None:
        ending = EpisodeEnd(self.episode_id, self.task_id, status, final_arrays, reward)
        self._queue.end(ending, self._beginning, self._held)
        self.is_open, self._held = False, None

    def _release(self) -> None:
        if self._held is not None:
            self._queue.add(self._held, self._beginning)
            self._held = None

    def _encoded(self, step: dict[str, Any]) -> Record | PackedStep:
        if "model_version" in step:
            version = step.pop("model_version")
            version = None if version is None else encode_step(version, "model_version")
            if version != self._beginning.model_version:
                beginning = self._beginning._replace(model_version=version)
                encode = self._encoding(beginning)
                encoded = encode(self.length, step)  # which may raise
                self._beginning, self._encode = beginning, encode
                return encoded
        return self._encode(self.length, step)

    def _count(self, reward: float | None) -> None:
        self.length += 1
        if reward is not None:
            self.episode_return = (self.episode_return or 0.0) + reward

    def _check_open(self) -> None:
        if not self.is_open:
            raise FieldError(f"episode {self.episode_id!r} has ended; begin another one")
        if self._pid != os.getpid():
            raise FieldError(
                f"episode {self.episode_id!r} is written by the process that began it; begin "
                f"another one here"
            )

    def __getstate__(self) -> Any:
        raise TypeError("an episode is written by one process; pickle the buffer instead")

    def __repr__(self) -> str:
        state = "open" if self.is_open else "ended"
        return f"EpisodeWriter({self.episode_id!r}, {self.length} steps, {state})"
