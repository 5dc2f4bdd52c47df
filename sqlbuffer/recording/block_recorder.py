"""Records many environments: the steps that they take together are one block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.recording.recorder import (
    Autoreset,
    EnvironmentFields,
    FinalOf,
    Flags,
    Values,
    no_final_observation,
)
from sqlbuffer.spaces import NEXT
from sqlbuffer.vector_writer import VectorWriter


class BlockRecorder:
    """Stores the steps of many environments as blocks; see `Recorder`.

    Args:
        writer: Writes the steps.
        env_fields: Fields of a step of one environment.
        autoreset: Gymnasium's mode of automatic resets.

    Attributes:
        writer: The writer.
    """

    def __init__(
        self, writer: VectorWriter, env_fields: EnvironmentFields, autoreset: Autoreset
    ) -> None:
        self.writer, self._env_fields, self._autoreset = writer, env_fields, autoreset
        # The observations before the next step; those of environments that do not act mean nothing.
        self._before: Values = {}
        self._acts = np.zeros(writer.n_envs, bool)  # in an episode
        self._awaits_reset = np.zeros(writer.n_envs, bool)  # which the next step is
        writer.at_end = self.close
        _recorders.add(self)

    def reset(self, observations: Values, is_reset: Flags) -> None:
        """See `Recorder`."""
        self.cut(is_reset)
        self._start(observations, is_reset)

    @property
    def acts(self) -> Flags:
        """See `Recorder`."""
        return self._acts

    @property
    def model_version(self) -> int | None:
        """See `Recorder`."""
        return self.writer.model_version

    @model_version.setter
    def model_version(self, version: int | None) -> None:
        self.writer.model_version = version

    @property
    def session_id(self) -> str | None:
        """See `Recorder`."""
        return self.writer.session_id

    @session_id.setter
    def session_id(self, session_id: str | None) -> None:
        self.writer.session_id = session_id

    def wait(self) -> None:
        """See `Recorder`."""
        self.writer.wait_for_room(self.writer.n_envs)

    def step(
        self,
        taken: Values,
        after: Values,
        outcome: tuple[Any, Any, Any],
        final: FinalOf,
    ) -> None:
        """See `Recorder`."""
        reward, terminated, truncated = self._outcome(*outcome)
        acts, awaited_reset = self._acts, self._awaits_reset
        ends = acts & (terminated | truncated)
        step = {**taken, "reward": reward, "terminated": terminated, "truncated": truncated}
        last, lacks_final = after, None
        if self._autoreset == "same_step" and np.count_nonzero(ends):
            last, lacks_final = self._last(after, ends, final)
        step = {**self._before, **step}
        if lacks_final is not None and np.count_nonzero(lacks_final):
            self._write(step, last, acts & ~lacks_final)
            self._write(step, None, acts & lacks_final)
        elif np.count_nonzero(acts):
            self._write(step, last, acts)
        if self._autoreset != "same_step":
            self._acts = acts & ~ends
        self._awaits_reset = ends if self._autoreset == "next_step" else np.zeros_like(acts)
        self._start(after, self._acts | awaited_reset)

    def cut(self, chosen: Flags | None = None) -> None:
        """End open episodes as truncated: those of some environments, or all."""
        self.writer.cut(chosen, self._final(self._before))
        if chosen is None:
            chosen = np.ones_like(self._acts)
        self._acts, self._awaits_reset = self._acts & ~chosen, self._awaits_reset & ~chosen

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """See `Recorder`."""
        try:
            yield
        except BaseException:
            self._acts[:], self._awaits_reset[:] = False, False
            self.writer.abort_after_error()
            raise

    def close(self) -> None:
        """See `Recorder`."""
        self._acts[:], self._awaits_reset[:] = False, False
        self.writer.close(self._final(self._before))

    def forget(self) -> None:
        """Forget the open episodes: in a forked child, whose parent continues them."""
        self._acts[:], self._awaits_reset[:] = False, False

    def _write(self, step: Values, after: Values | None, mask: Flags) -> None:
        following = self._env_fields.following
        if after is None and following:
            raise no_final_observation()
        repeated = {NEXT + name: after[name] for name in following} if after else {}
        self.writer.take({**step, **repeated}, self._final(after), mask)

    def _start(self, observations: Values, chosen: Flags) -> None:
        """Take the observations before the next steps of some environments."""
        if self._before and np.count_nonzero(chosen) < len(chosen):
            observations = {
                name: _where(chosen, values, self._before[name])
                for name, values in observations.items()
            }
        self._before = observations
        self._acts = self._acts | chosen

    def _last(self, after: Values, ends: Flags, final: FinalOf) -> tuple[Values, Flags]:
        """Return the observations after the steps, with the final ones of ended episodes; and True
        for each of these that is not known.
        """
        last = {name: values.copy() for name, values in after.items()}
        is_unknown = np.zeros_like(ends)
        for i in np.flatnonzero(ends).tolist():
            observed = final(i)
            is_unknown[i] = observed is None
            for name, value in (observed or {}).items():
                if last[name].dtype.kind == "U":  # as long as the longest text in it
                    last[name] = last[name].astype(np.promote_types(last[name].dtype, value.dtype))
                last[name][i] = value
        return last, is_unknown

    def _final(self, observations: Values | None) -> Values | None:
        names = self._env_fields.final
        return {name: observations[name] for name in names} if observations and names else None

    def _outcome(self, rewards: Any, terminated: Any, truncated: Any) -> tuple[Any, Flags, Flags]:
        n = self.writer.n_envs
        flags = (np.asarray(values, bool).reshape(n) for values in (terminated, truncated))
        return _numbers(rewards, n), *flags


def _where(chosen: Flags, values: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the values of chosen environments, and the others of the rest."""
    return np.where(chosen.reshape(-1, *[1] * (values.ndim - 1)), values, others)


def _numbers(rewards: Any, n: int) -> Any:
    """Return rewards as numbers; environments give arrays of one and tensors as well."""
    if rewards is None or all(reward is None for reward in rewards):
        return None
    array = np.asarray(rewards)
    if array.dtype.kind in "iufb" and array.size == n:
        return array.reshape(n).astype(np.float64)
    return rewards


_recorders: "WeakSet[BlockRecorder]" = WeakSet()


def _forget_all() -> None:
    for recorder in _recorders:
        recorder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
