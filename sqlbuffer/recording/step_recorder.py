"""Records few environments: each step is a step of its own."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from sqlbuffer.episode_writer import EpisodeWriter, NewEpisodes
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.processes import at_process_end
from sqlbuffer.recording.recorder import (
    Autoreset,
    EnvironmentFields,
    FinalOf,
    Flags,
    Values,
    Writing,
    no_final_observation,
)
from sqlbuffer.spaces import NEXT

logger = logging.getLogger("sqlbuffer")


class _Lane:
    """One environment: its open episode and its last observation."""

    def __init__(self, env_fields: EnvironmentFields) -> None:
        self._env_fields = env_fields
        self.episode: EpisodeWriter | None = None
        # Observation before the next step; None if no episode can continue.
        self.before: Values | None = None
        self.awaits_reset = False  # which its next step is

    def start(self, observation: Values | None) -> None:
        self.before, self.awaits_reset = observation, False

    def write(self, begin: Callable[[], EpisodeWriter], step: dict[str, Any]) -> None:
        if self.episode is None:
            self.episode = begin()
        self.episode.hold(**self.before or {}, **step)

    def following(self, after: Values | None) -> Values:
        """Return the fields that repeat the observation after the step."""
        if after is None and self._env_fields.following:
            raise no_final_observation()
        return {NEXT + name: after[name] for name in self._env_fields.following} if after else {}

    def end(self, after: Values | None) -> None:
        if self.episode is not None:
            self.episode.finish(self._final(after))
        self.episode, self.before = None, None

    def cut(self) -> None:
        if self.episode is not None:
            self.episode.cut(self._final(self.before))
        self.episode, self.before, self.awaits_reset = None, None, False

    def abort(self) -> None:
        episode, self.episode, self.before, self.awaits_reset = self.episode, None, None, False
        if episode is not None and episode.is_open:
            try:
                episode.abort()
            except SQLBufferError as error:  # the caller must see the first error
                logger.warning("episode %r waits to be stored: %s", episode.episode_id, error)

    def _final(self, observation: Values | None) -> Values | None:
        return {name: observation[name] for name in self._env_fields.final} if observation else None


class StepRecorder(NewEpisodes):
    """Stores the steps of few environments one by one; see `Recorder`.

    Args:
        writing: Writes the steps.
        flush: Stores the pending steps.
        env_fields: Fields of a step of one environment.
        n_envs: Number of environments.
        autoreset: Gymnasium's mode of automatic resets.
    """

    def __init__(
        self,
        writing: Writing,
        flush: Callable[[], None],
        env_fields: EnvironmentFields,
        n_envs: int,
        autoreset: Autoreset,
    ) -> None:
        self._begin, self._wait, self._flush = writing.begin, writing.wait, flush
        self._autoreset = autoreset
        self._lanes = [_Lane(env_fields) for _ in range(n_envs)]
        super().__init__(writing.model_version, writing.session_id)

    @property
    def acts(self) -> Flags:
        """See `Recorder`."""
        return np.array([lane.before is not None for lane in self._lanes])

    def reset(self, observations: Values, is_reset: Flags) -> None:
        """See `Recorder`."""
        for i, lane in enumerate(self._lanes):
            if is_reset[i]:
                lane.cut()
                lane.start(_row(observations, i))
        self._note_open()

    def wait(self) -> None:
        """See `Recorder`."""
        self._wait(len(self._lanes))

    def step(
        self,
        taken: Values,
        after: Values,
        outcome: tuple[Any, Any, Any],
        final: FinalOf,
    ) -> None:
        """See `Recorder`."""
        for i, lane in enumerate(self._lanes):
            if lane.before is not None:
                values = [None if column is None else column[i] for column in outcome]
                self._step_of(lane, _row(taken, i), _row(after, i), values, partial(final, i))
            elif lane.awaits_reset:
                lane.start(_row(after, i))
        self._note_open()

    def _step_of(
        self,
        lane: _Lane,
        taken: Values,
        after: Values,
        outcome: list[Any],
        final: Callable[[], Values | None],
    ) -> None:
        reward, terminated, truncated = outcome[0], bool(outcome[1]), bool(outcome[2])
        has_ended = terminated or truncated
        last = final() if has_ended and self._autoreset == "same_step" else after
        step = {
            **taken,
            **lane.following(last),
            "reward": _number(reward),
            "terminated": terminated,
            "truncated": truncated,
        }
        lane.write(
            lambda: self._begin(model_version=self.model_version, session_id=self.session_id), step
        )
        if not has_ended:
            lane.start(after)
            return
        lane.end(last)
        if self._autoreset == "same_step":
            lane.start(after)
        lane.awaits_reset = self._autoreset == "next_step"

    def cut(self) -> None:
        """See `Recorder`."""
        with self.aborting():
            for lane in self._lanes:
                lane.cut()
        self._note_open()

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """See `Recorder`."""
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Mark every open episode as one that went wrong."""
        for lane in self._lanes:
            lane.abort()
        self._note_open()

    def close(self) -> None:
        """See `Recorder`."""
        self.cut()
        self._flush()

    def forget(self) -> None:
        """Forget the open episodes: in a forked child, whose parent continues them."""
        for lane in self._lanes:
            lane.episode, lane.before = None, None

    def _note_open(self) -> None:
        if any(lane.episode is not None for lane in self._lanes):
            at_process_end(_end_all, priority=1)  # before what waits is stored
            _open.add(self)
        else:
            _open.discard(self)


def _row(values: Values, i: int) -> Values:
    return {name: value[i] for name, value in values.items()}


def _number(reward: Any) -> Any:
    """Return a reward as a number; environments give arrays of one and tensors as well."""
    if isinstance(reward, (float, int, np.number)) or reward is None:
        return reward
    array = np.asarray(reward)
    is_number = array.size == 1 and array.dtype.kind in "iuf"
    return array.reshape(())[()] if is_number else reward


# Recorders with an open episode, even if the program holds their wrapper no longer: when the
# process ends, the step that is held back is stored.
_open: set[StepRecorder] = set()


def _end_all() -> None:
    for recorder in list(_open):
        try:
            recorder.close()
        except SQLBufferError as error:
            logger.error("steps of a recorded environment were lost at the end: %s", error)


def _forget_all() -> None:
    for recorder in _open:
        recorder.forget()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
