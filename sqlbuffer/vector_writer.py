"""The episodes of several environments, written together."""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.display import shown
from sqlbuffer.encoding.columns import FLAGS, GivenColumns, check_step_names
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart, pack_final
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.step_blocks import NO_EPISODE, GrowingBlock, NumberedEpisodes, StepBlock
from sqlbuffer.episode_writer import NewEpisodes
from sqlbuffer.errors import BufferConfigError, EpisodeRefusedError, FieldError, SQLBufferError
from sqlbuffer.fields import Casting
from sqlbuffer.processes import at_process_end
from sqlbuffer.spaces import NEXT
from sqlbuffer.steps import PAYLOADS
from sqlbuffer.storage.writing.write_queue import WriteQueue

logger = logging.getLogger("sqlbuffer")

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Final = Mapping[str, Any]
# Checks the columns of a block of steps, which it copies or not, and names their layout.
CheckBlock = Callable[[Mapping[str, Any], Casting, bool], tuple[GivenColumns, Layout]]
# Begins an episode of an environment.
Begin = Callable[[int, int | None, str | None], EpisodeStart]

# Columns of numbers: their number of dimensions says how many steps are given.
_NUMBERS = ("reward", "terminated", "truncated", "adv_t", "v_t", "priority")
# Each environment may have this many pending steps: shorter chunks are stored more slowly.
STEPS_OF_ENV = 256
MAX_ENVS = 1_000_000


class _PlacedSteps:
    """Where the steps of a block are in their episodes.

    Args:
        shape: T and n.
        beginnings: The episodes that are open before them, by number.

    Attributes:
        numbers: Number of the episode of each step, shape (T, n).
        places: Place of each step in its episode, shape (T, n).
        last: Of each environment its last step in the block; -1 without one.
        beginnings: The episodes of the steps by number; also others.
        begun: Those that begin in the block.
        endings: The ends.
        cut: Steps of the block after which an episode was cut, of T * n.
        cut_before: True for each environment whose episode was cut after its held step.
    """

    def __init__(self, shape: tuple[int, int], beginnings: NumberedEpisodes) -> None:
        self.numbers = np.full(shape, NO_EPISODE, np.int64)
        self.places = np.zeros(shape, np.int64)
        self.last = np.full(shape[1], -1)
        self.beginnings = beginnings
        self.begun: list[EpisodeStart] = []
        self.endings: list[EpisodeEnd] = []
        self.cut: list[int] = []
        self.cut_before = np.zeros(shape[1], bool)

    def note_cut(self, is_cut: Flags) -> None:
        """Note that the episodes of some environments are cut after their last steps."""
        within = np.flatnonzero(is_cut & (self.last >= 0))
        self.cut += (self.last[within] * len(self.last) + within).tolist()
        self.cut_before |= is_cut & (self.last < 0)


class VectorWriter(NewEpisodes):
    """Writes the steps of n environments that act together; `ReplayBuffer.vector_writer` makes one.

    Each environment has one episode after the other. A step that is `terminated` or `truncated`
    ends its episode, and the next step of the environment begins another one. Use the writer from
    one thread at a time.

    As a context manager, it is closed at the end of the block. If the block raises, the open
    episodes are marked `aborted`, and their steps are stored.

    The newest step of an open episode is held back until the next call, which shows whether the
    episode was cut after it.

    Attributes:
        n_envs: Number of environments.
        episode_ids: Id of the open episode of each environment; None where none is open.
        model_version: Version of the model that acts; a new one holds for the episodes that begin
            later.
        session_id: Training session, in the same way.

    Example:
        >>> import numpy as np
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": ("float32", (2,)), "action": "int64"})
        >>> with buffer.vector_writer(3) as writer:
        ...     for t in range(4):
        ...         writer.write(
        ...             {
        ...                 "obs": np.full((3, 2), t, np.float32),
        ...                 "action": np.array([0, 1, 0]),
        ...                 "reward": np.ones(3),
        ...                 "terminated": np.array([t == 1, False, False]),
        ...             }
        ...         )
        >>> len(buffer), buffer.stats().episodes
        (12, 4)
        >>> writer = buffer.vector_writer(2)
        >>> step = {"obs": np.zeros((2, 2), np.float32), "action": np.zeros(2, np.int64)}
        >>> writer.write(step)
        >>> writer.cut([True, False], final={"obs": np.ones((2, 2))})
        >>> writer.episode_ids[0] is None
        True
        >>> writer.abort()
        >>> writer.close()
    """

    def __init__(
        self,
        n_envs: int,
        begin: Begin,
        check: CheckBlock,
        layout: Layout,
        observation: Layout,
        queue: WriteQueue[Any, Any],
        casting: Casting,
        model_version: int | None,
        session_id: str | None,
    ) -> None:
        self.n_envs, self._begin, self._check, self._layout = n_envs, begin, check, layout
        self._observation, self._queue, self._casting = observation, queue, casting
        super().__init__(model_version, session_id)
        # Of each environment the number of its open episode, and the place of its next step.
        self._numbers = np.full(n_envs, NO_EPISODE, np.int64)
        self._places = np.zeros(n_envs, np.int64)
        self._envs = np.arange(n_envs)
        self._beginnings = NumberedEpisodes()  # of open ones; replaced, never changed
        self._n_begun = 0
        self._held: list[StepBlock] = []
        self._is_open = True
        # Called when the process ends while an episode is open.
        self.at_end: Callable[[], None] = self.close

    @property
    def episode_ids(self) -> list[str | None]:
        """Id of the open episode of each environment; None where none is open."""
        return [
            None if number == NO_EPISODE else self._beginnings[number].key
            for number in self._numbers.tolist()
        ]

    def write(
        self,
        steps: Mapping[str, Any],
        *,
        final: Final | None = None,
        reset: Any = None,
        mask: Any = None,
    ) -> None:
        """Add a step of each environment, or T steps of each.

        Args:
            steps: For each declared field an array of shape (n_envs, *shape) or (T, n_envs,
                *shape); for a field of varying length lists of arrays in the same order. Optional
                are `reward`, `terminated`, `truncated`, `adv_t`, `v_t`, `priority`, `state`,
                `actions`, `messages` and `extra`, likewise. The values are copied.
            final: Observations after the steps, for each observation field in the same form. Those
                of steps that end an episode are stored as its final observation.
            reset: Flags of shape (n_envs,) or (T, n_envs): True where the environment was reset
                before the step. An episode that is open there ends as truncated.
            mask: Flags of the same shape: False where the environment took no step, as where a step
                only resets it (gymnasium's `AutoresetMode.NEXT_STEP`).

        Raises:
            FieldError: A field is unknown or missing, a shape does not fit n_envs, a value cannot
                be stored. No step is added.
            BufferConfigError: The writer is closed.
            FlowControlError: The rate limiter allowed none of the pending steps in time; no step is
                added.
            StorageError: Earlier steps could not be stored. They stay pending, and no step is
                added.
            EpisodeTakenError: Another writer has continued an episode. No step is added; what was
                pending of the episode is lost, and the next call begins another one there.
            EpisodeEndedError: The episode was ended elsewhere, in the same way.
        """
        self._write(steps, final, reset, mask, copy=True)

    def take(self, steps: Mapping[str, Any], final: Final | None, mask: Flags) -> None:
        """Add steps as `write` does, without a copy of their arrays.

        :meta private:
        """
        self._write(steps, final, None, mask, copy=False)

    def _write(
        self, steps: Mapping[str, Any], final: Final | None, reset: Any, mask: Any, *, copy: bool
    ) -> None:
        self._check_open()
        lead = self._lead(steps)
        is_reset = self._flags(reset, "reset", lead, default=False)
        is_step = self._flags(mask, "mask", lead, default=True)
        n_steps = int(np.count_nonzero(is_step))
        flat, rows = self._flat(steps, lead), None
        if n_steps < len(is_step):  # the others need not be values at all
            rows = np.flatnonzero(is_step)
            flat = {name: _rows_of(values, rows) for name, values in flat.items()}
        columns, layout = self._check(flat, self._casting, copy and rows is None)
        ends = np.zeros(len(is_step), bool)
        for flags in (columns.terminated, columns.truncated):
            if flags is not None:
                ends[slice(None) if rows is None else rows] |= flags
        finals = self._finals(final, lead, ends)
        self._check_episodes()
        if not len(is_step):
            return
        self.wait_for_room(n_steps)
        state = self._numbers.copy(), self._places.copy(), self._beginnings, [*self._held]
        try:
            blocks, begun, endings = self._blocks(columns, layout, is_step, is_reset, ends, finals)
        except BaseException:  # an interrupt: as if the call had not been
            self._numbers, self._places, self._beginnings, self._held = state
            raise
        self._queue.add_blocks(blocks, begun, endings)
        if self._beginnings:
            _note_open(self)
        else:
            _open.discard(self)

    def wait_for_room(self, n: int) -> None:
        """Wait until n more steps may be pending; raise the error that an earlier write met.

        :meta private:
        """
        self._queue.wait_for_room(n)
        self._queue.raise_error()

    def forget(self) -> None:
        """Forget the open episodes: in a forked child, whose parent continues them.

        :meta private:
        """
        self._numbers[:] = NO_EPISODE
        self._beginnings, self._held = NumberedEpisodes(), []

    def cut(self, chosen: Any = None, final: Final | None = None) -> None:
        """End open episodes as truncated after their last step: the environments were reset.

        Args:
            chosen: Flags of shape (n_envs,): True for an environment that was reset; all by
                default.
            final: Observations after the last steps, for each observation field an array of shape
                (n_envs, *shape).

        Raises:
            FieldError: The flags or the observations do not fit.
            BufferConfigError: The writer is closed.
            StorageError: Earlier steps could not be stored. They stay pending.
        """
        self._check_open()
        self._cut(self._flags(chosen, "chosen", (self.n_envs,), default=True), final)

    def _cut(self, chosen: Flags, final: Final | None) -> None:
        is_cut = chosen & (self._numbers != NO_EPISODE)
        finals = self._finals(final, (self.n_envs,), is_cut)
        self._truncate_held(is_cut)
        endings = self._ended(is_cut, "complete", finals)
        self._queue.add_blocks(self._released(is_cut), (), endings)

    def abort(self) -> None:
        """End the open episodes as aborted: their steps are stored, and not drawn as transitions.

        Raises:
            BufferConfigError: The writer is closed.
            StorageError: The steps could not be stored; they stay pending.
        """
        self._check_open()
        is_open = self._numbers != NO_EPISODE
        endings = self._ended(is_open, "aborted", {})
        self._queue.add_blocks(self._released(is_open), (), endings)
        self._queue.flush()
        self._queue.check_all()

    def abort_after_error(self) -> None:
        """Abort the open episodes; log an error instead of raising it.

        :meta private:
        """
        try:
            self.abort()
        except SQLBufferError as error:  # the caller must see the first error
            logger.warning("steps of aborted episodes wait to be stored: %s", error)

    def close(self, final: Final | None = None) -> None:
        """End the open episodes as truncated, and store all steps; a second call does nothing.

        Args:
            final: Observations after the last steps; see `cut`.

        Raises:
            FieldError: The observations do not fit; the writer stays open.
            StorageError: The steps could not be stored; they stay pending.
        """
        if not self._is_open:
            return
        self._cut(np.ones(self.n_envs, bool), final)
        self._is_open = False
        _open.discard(self)
        self._queue.flush()
        self._queue.check_all()

    def __enter__(self) -> "VectorWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_open:
            return
        if kind is None:
            self.close()
            return
        self.abort_after_error()
        self._is_open = False
        _open.discard(self)

    def _blocks(
        self,
        columns: GivenColumns,
        layout: Layout,
        is_step: Flags,
        is_reset: Flags,
        ends: Flags,
        finals: Mapping[int, bytes | None],
    ) -> tuple[list[StepBlock], list[EpisodeStart], list[EpisodeEnd]]:
        """Place checked steps in their episodes; return what the queue gets of them."""
        made_at = np.full(columns.n_steps, time.time())

        def block(
            envs: Integers,
            numbers: Integers,
            places: Integers,
            beginnings: NumberedEpisodes,
        ) -> StepBlock:
            return StepBlock(
                self, columns, envs, numbers, places, made_at, beginnings, layout.number,
                layout.size_bytes,
            )  # fmt: skip

        if self._is_quiet(is_step, is_reset, ends):
            newest = block(self._envs, self._numbers.copy(), self._places.copy(), self._beginnings)
            self._places += 1
            ready, self._held = self._held, [newest]
            return ready, [], []
        placed = self._placed(is_step, is_reset, ends, finals)
        rows = np.flatnonzero(is_step)
        envs = rows % self.n_envs
        numbers, places = placed.numbers.ravel()[rows], placed.places.ravel()[rows]
        steps = block(envs, numbers, places, placed.beginnings)
        if placed.cut:
            steps = steps.truncated(np.searchsorted(rows, placed.cut))
        self._truncate_held(placed.cut_before)
        ready = self._released((placed.last >= 0) | placed.cut_before)
        is_last = placed.last[envs] == rows // self.n_envs
        is_held = is_last & (self._numbers[envs] != NO_EPISODE)
        if (earlier := steps.of_steps(~is_held)) is not None:
            ready.append(earlier)
        if (held := steps.of_steps(is_held)) is not None:
            self._held.append(held)
        return ready, placed.begun, placed.endings

    def _placed(
        self, is_step: Flags, is_reset: Flags, ends: Flags, finals: Mapping[int, bytes | None]
    ) -> "_PlacedSteps":
        """Place steps in their episodes; begin episodes, and end them."""
        n = self.n_envs
        shape = len(is_step) // n, n
        placed = _PlacedSteps(shape, self._beginnings)
        rows = zip(*(flags.reshape(shape) for flags in (is_step, is_reset, ends)), strict=True)
        for t, (acts, resets, has_ended) in enumerate(rows):
            if np.count_nonzero(resets):
                is_cut = resets & (self._numbers != NO_EPISODE)
                placed.note_cut(is_cut)
                placed.endings += self._ended(is_cut, "complete", {})
            is_new = acts & (self._numbers == NO_EPISODE)
            if np.count_nonzero(is_new):
                starts = self._begun(np.flatnonzero(is_new).tolist())
                placed.begun += starts.values()
                placed.beginnings = NumberedEpisodes(placed.beginnings | starts)
            np.copyto(placed.numbers[t], self._numbers, where=acts)
            placed.places[t] = self._places
            self._places += acts
            placed.last[acts] = t
            if np.count_nonzero(has_ended):
                of_envs = {i: finals[t * n + i] for i in range(n) if t * n + i in finals}
                placed.endings += self._ended(has_ended, "complete", of_envs)
        return placed

    def _is_quiet(self, is_step: Flags, is_reset: Flags, ends: Flags) -> bool:
        """Return True for one step of each environment that begins and ends nothing."""
        return (
            np.count_nonzero(is_step) == len(is_step) == self.n_envs
            and not np.count_nonzero(is_reset)
            and not np.count_nonzero(ends)
            and NO_EPISODE not in self._numbers.tolist()
        )

    def _begun(self, envs: Sequence[int]) -> dict[int, EpisodeStart]:
        """Begin an episode of some environments; return the beginnings by number."""
        starts = {
            self._n_begun + k: self._begin(i, self._model_version, self._session_id)
            for k, i in enumerate(envs)
        }
        self._numbers[envs] = [*starts]
        self._places[envs] = 0
        self._n_begun += len(envs)
        self._beginnings = NumberedEpisodes(self._beginnings | starts)
        return starts

    def _ended(
        self, chosen: Flags, status: str, finals: Mapping[int, bytes | None]
    ) -> list[EpisodeEnd]:
        """End the episodes of some environments, given by flags; return their ends."""
        ended = np.flatnonzero(chosen).tolist()
        if not ended:
            return []
        beginnings = NumberedEpisodes(self._beginnings)
        endings = []
        for i, number in zip(ended, self._numbers[ended].tolist(), strict=True):
            beginning = beginnings.pop(number)
            endings.append(EpisodeEnd(beginning.key, beginning.task_id, status, finals.get(i)))
        self._beginnings = beginnings
        self._numbers[ended] = NO_EPISODE
        return endings

    def _truncate_held(self, chosen: Flags) -> None:
        """Mark the held steps of some environments as truncated."""
        if not chosen.any():
            return
        for k, block in enumerate(self._held):
            places = np.flatnonzero(chosen[block.envs] & block.is_step)
            if len(places):
                self._held[k] = block.truncated(places)

    def _released(self, chosen: Flags) -> list[StepBlock]:
        """Take the held steps of some environments."""
        if chosen.all():
            released, self._held = self._held, []
            return released
        released, still_held = [], []
        for block in self._held:
            of_chosen = chosen[block.envs]
            if (ready := block.of_steps(of_chosen)) is not None:
                released.append(ready)
            if ready is not block and (rest := block.of_steps(~of_chosen)) is not None:
                still_held.append(rest)
        self._held = still_held
        return released

    def _check_open(self) -> None:
        if not self._is_open:
            raise BufferConfigError(
                "the vector writer was closed; make another with vector_writer()"
            )

    def _check_episodes(self) -> None:
        """Raise the error of an open episode that takes no more steps; forget the episode."""
        try:
            self._queue.check_each(self._beginnings.values())
        except EpisodeRefusedError as refusal:
            keys = set(refusal.episodes)
            lost = [n for n, of in self._beginnings.items() if (of.key, of.task_id) in keys]
            is_lost = np.isin(self._numbers, lost)
            self._ended(is_lost, "aborted", {})
            self._released(is_lost)
            raise

    def _lead(self, steps: Any) -> tuple[int, ...]:
        """Return the first axes of given steps: (n_envs,) or (T, n_envs)."""
        if not isinstance(steps, Mapping):
            raise FieldError(
                f"steps is a dict of arrays, a value for each declared field, got {shown(steps)}"
            )
        for name, values in steps.items():
            if isinstance(values, Mapping):
                raise FieldError(
                    f"{name}: a dict has no shape; give each part as the array of its field, such "
                    f"as {name}_{next(iter(values), 'part')}"
                )
            spec = self._layout.specs.get(name)
            if values is None or (name not in _NUMBERS and (spec is None or spec.is_variable)):
                continue
            shape = np.shape(values)
            if name in _NUMBERS and len(shape) > 1 and shape[-1] == 1 and self.n_envs != 1:
                shape = shape[:-1]
            lead = shape[: max(0, len(shape) - (0 if spec is None else len(spec.shape)))]
            if lead[-1:] == (self.n_envs,) and len(lead) <= 2:
                return lead
            raise self._wrong(name, shape)
        raise FieldError("give reward, terminated or truncated: they say how many steps these are")

    def _flat(self, steps: Mapping[str, Any], lead: tuple[int, ...]) -> dict[str, Any]:
        """Return the columns of all steps, one environment after the other within a step."""
        columns: dict[str, Any] = {}
        check_step_names(steps, self._layout.specs.keys())
        for name, values in steps.items():
            spec = self._layout.specs.get(name)
            if values is None:
                continue
            if name in PAYLOADS or (spec is not None and spec.is_variable):
                columns[name] = self._listed(name, values, lead)
                continue
            array = values if hasattr(values, "reshape") else np.asarray(values)
            if name in _NUMBERS:
                array = self._numbers_of(name, array, lead)
            if tuple(array.shape[: len(lead)]) != lead:
                raise self._wrong(name, tuple(array.shape), lead)
            if len(lead) == 2:
                array = array.reshape((math.prod(lead), *array.shape[2:]))
            columns[name] = array
        return columns

    def _numbers_of(self, name: str, values: Any, lead: tuple[int, ...]) -> Any:
        """Return numbers of shape (.., n_envs); simulators give one axis more, and float flags."""
        if tuple(values.shape) == (*lead, 1):
            values = values.reshape(lead)
        if name in FLAGS:
            flags = np.asarray(values)
            if flags.dtype.kind == "f" and np.isin(flags, (0, 1)).all():
                return flags.astype(bool)
        return values

    def _listed(self, name: str, values: Any, lead: tuple[int, ...]) -> list[Any]:
        """Return a list with a value for each step."""
        rows = [values] if len(lead) == 1 else values
        is_list = isinstance(rows, (list, tuple, np.ndarray))
        is_whole = is_list and all(isinstance(row, (list, tuple, np.ndarray)) for row in rows)
        if not is_whole or [len(row) for row in rows] != [self.n_envs] * (math.prod(lead[:-1])):
            raise FieldError(
                f"{name}: expected a list with a value for each of {self.n_envs} environments, or "
                f"T of these lists, got {shown(values)}"
            )
        return [value for row in rows for value in row]

    def _flags(self, flags: Any, name: str, lead: tuple[int, ...], *, default: bool) -> Flags:
        """Return flags of all steps, shape (T * n_envs,)."""
        if flags is None:
            return np.full(math.prod(lead), default)
        array = np.asarray(flags)
        if array.dtype == bool and array.shape == lead:
            return array.reshape(-1)
        if array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
            array = array.astype(bool)
        if array.dtype != bool or array.shape != lead:
            raise FieldError(
                f"{name}: expected flags of shape {lead}, one for each step, got {shown(flags)}"
            )
        return array.reshape(-1)

    def _finals(
        self, final: Final | None, lead: tuple[int, ...], ends: Flags
    ) -> dict[int, bytes | None]:
        """Return the final observations by step, packed."""
        if final is None:
            return {}
        specs = self._observation.specs
        if not isinstance(final, Mapping) or final.keys() != specs.keys():
            named = shown(list(final)) if isinstance(final, Mapping) else shown(final)
            raise FieldError(
                f"final is a dict with the observation fields {', '.join(specs) or 'none'}, each "
                f"an array as in the steps, got {named}"
            )
        for name, values in final.items():
            if not specs[name].is_variable and np.shape(values)[: len(lead)] != lead:
                raise self._wrong(name, np.shape(values), lead)
        if not np.count_nonzero(ends):
            return {}
        columns = self._flat(final, lead)
        return {
            place: pack_final(
                self._observation,
                {name: values[place] for name, values in columns.items()},
                self._casting,
            )
            for place in np.flatnonzero(ends).tolist()
        }

    def _wrong(
        self, name: str, shape: tuple[int, ...], lead: tuple[int, ...] | None = None
    ) -> FieldError:
        spec = self._layout.specs.get(name)
        one = () if spec is None else spec.shape
        n = self.n_envs
        if lead is not None and len(lead) == 2:
            return FieldError(
                f"{name}: expected shape {(*lead, *one)}, as the other arrays have {lead[0]} steps "
                f"of {n} environments; got {shape}"
            )
        return FieldError(
            f"{name}: expected shape {(n, *one)}, or T steps of that shape, of n_envs={n}; got "
            f"{shape}"
        )

    def __getstate__(self) -> Any:
        raise TypeError("a vector writer belongs to one process; pickle the buffer instead")

    def __repr__(self) -> str:
        n_open = int(np.count_nonzero(self._numbers != NO_EPISODE))
        state = f"{n_open} episodes open" if self._is_open else "closed"
        return f"VectorWriter({self.n_envs} environments, {state})"


class RowWriter:
    """Writes the steps of n environments, one step of each at a time, in a few microseconds.

    Unlike `VectorWriter`, it takes arrays of known shapes, holds no step back, and needs
    `next_<name>` of each observation: a step that does not begin with the observation after the
    last one begins another episode. Use it from one thread at a time.

    Args:
        names: The fields of a step, all of fixed shape; others have their default.
        n_envs: Number of environments.
        begin: Begins an episode of an environment.
        check: Checks the columns of a block of steps.
        layout: The typed fields of the buffer.
        queue: Stores the steps.
    """

    def __init__(
        self,
        names: Sequence[str],
        n_envs: int,
        begin: Callable[[int], EpisodeStart],
        check: CheckBlock,
        layout: Layout,
        queue: WriteQueue[Any, Any],
    ) -> None:
        self._names, self._n_envs, self._begin = names, n_envs, begin
        self._check, self._layout, self._queue = check, layout, queue
        self._checked = -1  # number of the layout whose steps are not too large
        self._pairs = [
            (i, names.index(NEXT + name)) for i, name in enumerate(names) if NEXT + name in names
        ]
        self._n_begun = 0
        self._forget()

    def _forget(self) -> None:
        # Of each environment the number of its open episode, and the place of the block's row 0 in
        # it, which is negative where it began later. Replaced, never changed.
        self._numbers = np.full(self._n_envs, NO_EPISODE, np.int64)
        self._firsts = np.zeros(self._n_envs, np.int64)
        self._beginnings = NumberedEpisodes()  # of open ones; replaced, never changed
        self._block: GrowingBlock | None = None

    def add(
        self,
        values: Sequence[NDArray[Any]],
        reward: NDArray[Any],
        terminated: Sequence[bool],
        truncated: Sequence[bool],
    ) -> None:
        """Add a step of each environment.

        Args:
            values: For each of the names an array of shape (n_envs, *shape), which is cast.
            reward: Real numbers of shape (n_envs,).
            terminated: Flags of episodes that end.
            truncated: Flags of episodes that a time limit cuts.

        Raises:
            SQLBufferError: Earlier steps could not be stored, or an episode takes no more steps. No
                step is added, and all open episodes end before it.
        """
        try:
            self._check_episodes()
            block = last = self._block
            if block is None:
                block = self._new_block()
            for rows, dtype, value in zip(block.values, block.dtypes, values, strict=True):
                rows.append((value if value.dtype == dtype else value.astype(dtype)).tobytes())
            block.rewards += reward.tolist()
            block.terminated += terminated
            block.truncated += truncated
            block.times.append(time.time())
            numbers, beginnings = self._numbers, self._beginnings
            endings: list[EpisodeEnd] = []
            if last is not None and (resets := self._resets(block, last)):
                numbers, beginnings = _without(numbers, beginnings, resets, endings)
            begun: Sequence[EpisodeStart] = ()
            if len(beginnings) < self._n_envs:
                numbers, beginnings, begun = self._begun(block, numbers, beginnings)
            if True in terminated or True in truncated:
                ends = [env for env in range(self._n_envs) if terminated[env] or truncated[env]]
                numbers, beginnings = _without(numbers, beginnings, ends, endings)
            if not self._queue.grow(block, begun, endings):
                block = self._queued(block, begun, endings)
            self._numbers, self._beginnings, self._block = numbers, beginnings, block
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End all open episodes where they are."""
        ended = self._beginnings.values()
        self._forget()
        if ended:
            self._queue.add_blocks((), (), list(map(_end_of, ended)))

    def _begun(
        self, block: GrowingBlock, numbers: Integers, beginnings: NumberedEpisodes
    ) -> tuple[Integers, NumberedEpisodes, list[EpisodeStart]]:
        """Begin episodes with the next row of a block, for environments without an open one."""
        envs = np.flatnonzero(numbers == NO_EPISODE).tolist()
        starts = {self._n_begun + k: self._begin(env) for k, env in enumerate(envs)}
        self._n_begun += len(envs)
        numbers, firsts = numbers.copy(), self._firsts.copy()
        numbers[envs], firsts[envs] = [*starts], -block.n_rows
        self._firsts = firsts
        block.beginnings = NumberedEpisodes(block.beginnings | starts)
        block.runs.append((block.n_rows, numbers, firsts))
        return numbers, NumberedEpisodes(beginnings | starts), [*starts.values()]

    def _queued(
        self, block: GrowingBlock, begun: Sequence[EpisodeStart], endings: Sequence[EpisodeEnd]
    ) -> GrowingBlock:
        """Return a new block with the row that a block does not have yet; it waits."""
        self._queue.wait_for_room(self._n_envs)
        self._queue.raise_error()
        if block.n_rows:
            self._firsts = self._firsts + block.n_rows
            block = block.next_block()
        block.n_rows = 1
        self._queue.add_blocks([block], begun, endings)
        return block

    def _new_block(self) -> GrowingBlock:
        layout = self._layout.fixed
        if layout.number != self._checked:
            one = {name: np.zeros((1, *layout.specs[name].shape)) for name in self._names}
            _, layout = self._check(one, "unsafe", False)
            self._checked = layout.number
        return GrowingBlock(self, layout, self._names, self._n_envs, self._beginnings)

    def _resets(self, block: GrowingBlock, last: GrowingBlock) -> list[int]:
        """Return the environments with an open episode that the next row of a block does not
        continue, given the block of the row before.
        """
        resets: list[int] = []
        row, row_before = block.n_rows, last.n_rows - 1
        for observed, following in self._pairs:
            now, then = block.values[observed][row], last.values[following][row_before]
            if now != then:  # bytes, because NaN does not equal itself
                size = len(now) // self._n_envs
                resets += [
                    env
                    for env, number in enumerate(self._numbers.tolist())
                    if number != NO_EPISODE
                    and now[env * size :][:size] != then[env * size :][:size]
                ]
        return list(dict.fromkeys(resets))

    def _check_episodes(self) -> None:
        """Raise the error of an open episode that takes no more steps; forget the episode."""
        try:
            self._queue.check_each(self._beginnings.values())
        except EpisodeRefusedError as refusal:
            keys = set(refusal.episodes)
            self._beginnings = NumberedEpisodes(
                (number, of)
                for number, of in self._beginnings.items()
                if (of.key, of.task_id) not in keys
            )
            raise


def _without(
    numbers: Integers,
    beginnings: NumberedEpisodes,
    envs: Sequence[int],
    endings: list[EpisodeEnd],
) -> tuple[Integers, NumberedEpisodes]:
    """Return the episodes of environments without those of some, whose ends are noted."""
    numbers, beginnings = numbers.copy(), NumberedEpisodes(beginnings)
    for env in envs:
        endings.append(_end_of(beginnings.pop(int(numbers[env]))))
        numbers[env] = NO_EPISODE
    return numbers, beginnings


def _end_of(beginning: EpisodeStart) -> EpisodeEnd:
    return EpisodeEnd(beginning.key, beginning.task_id, "complete", None)


def _rows_of(values: Any, rows: Integers) -> Any:
    """Return some rows of an array, a tensor or a list."""
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


# Writers with an open episode, even if the program holds them no longer: when the process ends, the
# steps that are held back are stored.
_open: set[VectorWriter] = set()


def _note_open(writer: VectorWriter) -> None:
    at_process_end(_end_all, priority=1)  # before what waits is stored
    _open.add(writer)


def _forget_all() -> None:
    for writer in _open:
        writer.forget()
    _open.clear()


def _end_all() -> None:
    for writer in list(_open):
        try:
            writer.at_end()
        except SQLBufferError as error:
            logger.error("steps of several environments were lost at the end: %s", error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
