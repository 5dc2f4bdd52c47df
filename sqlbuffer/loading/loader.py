"""`Loader`: batches, one after the other, made ahead of their use by a thread."""

import keyword
import os
import secrets
import threading
from collections import deque, namedtuple
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Self, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from sqlbuffer.checks import checked_dict, checked_integer, checked_names, refused
from sqlbuffer.display import shown
from sqlbuffer.errors import ArgumentError, BufferConfigError, FieldError
from sqlbuffer.loading.modes import LoaderOptions
from sqlbuffer.loading.plans import (
    Agree,
    BatchPlan,
    Draws,
    LoaderRun,
    Passes,
    Progress,
    alone,
    is_count,
    this_process,
)
from sqlbuffer.loading.ranks import Rank, ShardedPasses, ShardSource, group_of
from sqlbuffer.steps import (
    Batch,
    as_tensor,
    batch_with,
    check_device,
    common_structure,
    nested_names,
)
from sqlbuffer.storage.draws import stacked
from sqlbuffer.storage.store import BufferStore

Item = TypeVar("Item")

# Seconds that leaving a loop waits for the item that the thread has begun.
LEAVING_S = 5.0


class _Channel(Generic[Item]):
    """A queue of made items between the thread that makes them and the thread that takes them."""

    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._made: deque[Item] = deque()
        self._size, self._is_closed, self._is_finished = size, False, False
        self._error: BaseException | None = None

    def wait_for_room(self) -> bool:
        """Wait until another one may be made; False: none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._made) < self._size)
            return not self._is_closed

    def put(self, item: Item) -> None:
        with self._changed:
            self._made.append(item)
            self._changed.notify_all()

    def finish(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._is_finished, self._error = True, error
            self._changed.notify_all()

    def take(self) -> tuple[Item] | None:
        """Return the next one, or None after the last.

        Raises:
            BaseException: The exception that the maker raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._is_finished)
            if self._made:
                item = self._made.popleft()
                self._changed.notify_all()
                return (item,)
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._made.clear()
            self._changed.notify_all()


def prefetched(items: Callable[[], Iterator[Item]], ahead: int) -> Generator[Item, None, None]:
    """Yield the items of an iterator that a thread advances up to `ahead` items further.

    The thread starts when the first item is taken. It ends when the generator is closed: at the end
    of its items, by an exception, by a loop that is left early, or by the garbage collector.
    """
    channel: _Channel[Item] = _Channel(ahead)
    pid = os.getpid()
    thread = threading.Thread(
        target=copy_context().run,
        args=(_fill, channel, items),
        name="sqlbuffer-prefetch",
        daemon=True,
    )
    thread.start()
    try:
        while True:
            if os.getpid() != pid:
                raise RuntimeError(
                    "a loop over prefetched batches continues only in the process that began it; "
                    "begin another one after the fork"
                )
            taken = channel.take()
            if taken is None:
                return
            yield taken[0]
    finally:
        if os.getpid() == pid:  # or the lock may be held by a thread that is not there
            channel.close()
            if thread is not threading.current_thread():
                thread.join(LEAVING_S)


def _fill(channel: _Channel[Item], items: Callable[[], Iterator[Item]]) -> None:
    try:
        iterator = items()
        while channel.wait_for_room():
            try:
                item = next(iterator)
            except StopIteration:
                break
            channel.put(item)
            del item  # or it would live until the next one is made
        channel.finish()
    except BaseException as error:
        channel.finish(error)


INFO = "info"
_PARTS = (
    INFO,
    "n_rows",
    "keys",
    "values",
    "items",
    "get",
    "to",
    "to_torch",
    "to_pandas",
    "to_tensordict",
)


@dataclass(frozen=True)
class Output:
    """The form in which batches are handed out.

    Attributes:
        fieldname_map: `{name: other name}` of arrays.
        to_named_tuple: Names of the parts of a named tuple, in order; None: a `Batch`.
        device: Where arrays become tensors; None: they stay arrays.

    Raises:
        FieldError: Names that cannot be, or that collide.
        MissingExtraError: A device, and torch is not installed.
        ValueError: A device that is not there.
    """

    fieldname_map: Mapping[str, str] | None = None
    to_named_tuple: Sequence[str] | None = None
    device: Any = None

    def __post_init__(self) -> None:
        if self.fieldname_map is not None:
            _check_map(self.fieldname_map)
        if self.to_named_tuple is not None:
            _check_parts(self.to_named_tuple)
        if self.device is not None:
            check_device(self.device)

    def __call__(self, batch: Batch) -> Any:
        """Return a batch as it is handed out."""
        if self.fieldname_map:
            batch = batch_with(batch, renamed(batch, self.fieldname_map))
        keys = None
        if self.to_named_tuple is not None:
            keys = [_key(name, batch) for name in self.to_named_tuple]
        if self.device is not None:
            # A part that is nested is of several arrays.
            is_flat = keys is not None and all(name in batch or name == INFO for name in keys)
            kept = [name for name in keys or () if name != INFO] if is_flat else batch
            batch = batch_with(batch, {name: as_tensor(batch[name], self.device) for name in kept})
        if keys is None:
            return batch
        parts = [batch[name] if name in batch else getattr(batch, name) for name in keys]
        return made_tuple(tuple(map(_attribute, self.to_named_tuple or ())), parts)


def renamed(arrays: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return arrays under other names.

    Raises:
        FieldError: A name that no array has, or that two would have.
    """
    for name in names:
        if name not in arrays:
            raise FieldError(
                f"fieldname_map names {shown(name)}, and the batch has {', '.join(arrays)}"
            )
    by_name = {names.get(name, name): array for name, array in arrays.items()}
    if len(by_name) < len(arrays):
        named = [names.get(name, name) for name in arrays]
        double = next(name for name in named if named.count(name) > 1)
        both = [name for name in arrays if names.get(name, name) == double]
        raise FieldError(f"fieldname_map gives {' and '.join(both)} the same name {shown(double)}")
    return by_name


def made_tuple(names: tuple[str, ...], parts: Sequence[Any]) -> Any:
    """Return a named tuple; it can be pickled, as batches of worker processes are."""
    return _tuple_type(names)(*parts)


@lru_cache(maxsize=128)
def _tuple_type(names: tuple[str, ...]) -> Any:
    make: Any = namedtuple  # the type checker wants the names written out
    base: Any = make("Batch", names)

    class NamedBatch(base):  # type: ignore[misc]
        __slots__ = ()

        def __reduce__(self) -> tuple[Any, ...]:
            return made_tuple, (names, list(self))

    NamedBatch.__name__ = NamedBatch.__qualname__ = "Batch"
    return NamedBatch


def _attribute(name: str) -> str:
    return name.lstrip("_")


def _key(name: str, batch: Batch) -> str:
    nested = nested_names(batch)
    for key in (name, _attribute(name)):
        if key in batch or key == INFO or key in nested:
            return key
    names = ", ".join([*nested, *batch])
    raise FieldError(f"to_named_tuple names {shown(name)}, and the batch has {names} and info")


def _check_map(names: Any) -> None:
    checked_dict(names, "fieldname_map", "{'obs': 'state'}", error=FieldError)
    for name in (*names, *names.values()):
        if not isinstance(name, str) or not name:
            raise FieldError(f"fieldname_map is a dict of names, got {shown(name)} in it")
    for name in names.values():
        if name in _PARTS:
            raise FieldError(
                f"fieldname_map: {shown(name)} is a part of every batch; choose another"
            )
    if len(set(names.values())) < len(names):
        raise FieldError(f"fieldname_map gives two fields the same name: {shown(dict(names))}")


def _check_parts(parts: Any) -> None:
    names = checked_names(parts, "to_named_tuple", "('obs',)")
    if not names:
        raise FieldError("to_named_tuple is a list of one name or more, such as ('obs',), got none")
    for name in names:
        if not _attribute(name).isidentifier() or keyword.iskeyword(_attribute(name)):
            raise FieldError(f"to_named_tuple: {shown(name)} cannot be the name of a part")
    attributes = [_attribute(name) for name in names]
    double = next((name for name in attributes if attributes.count(name) > 1), None)
    if double is not None:
        raise FieldError(f"to_named_tuple has two parts named {shown(double)}")


def joined(batches: Sequence[Batch], labels: Sequence[str]) -> Batch:
    """Return the rows of batches of several sources, one after the other, with their sources in
    `info`; lengths that differ are padded with zeros.
    """
    named = [
        batch_with(batch, batch, {**batch.info, "source": np.array([label] * batch.n_rows, object)})
        for label, batch in zip(labels, batches, strict=True)
    ]
    first = named[0]
    return Batch(
        {name: _joined(name, named) for name in first},
        {
            name: stacked([batch.info[name] for batch in named])
            for name in first.info
            if all(name in batch.info for batch in named)  # not every buffer notes its batches
        },
        common_structure(named),
    )


def _joined(name: str, batches: Sequence[Batch]) -> NDArray[Any] | None:
    """Return one array of those of several batches; None where one of them is not known."""
    arrays = [batch[name] for batch in batches if batch[name] is not None or batch.n_rows]
    values: NDArray[Any] | None = stacked(arrays) if arrays else None
    return values


T = TypeVar("T", default=Batch)
_VERSION = 1
_KEYS = ("version", "loader", "seed", "run", "rank")


class Loader(Generic[T]):
    """An iterable of batches, made by `ReplayBuffer.loader` or `Mixture.loader`.

    Each `iter` starts an iteration with its own random numbers. The first one after
    `load_state_dict` continues where the state was taken. A loader pickles without data; a loader
    of a mirror cannot be pickled.

    Attributes:
        on_close: Function that `close` calls; None: nothing.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
        >>> buffer.extend({"x": range(6)}).inserted
        6
        >>> loader = buffer.loader("step", 4, epochs=1, shuffle=False)
        >>> [batch.x.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
        >>> first = next(iter(loader))
        >>> again = buffer.loader("step", 4, epochs=1, shuffle=False)
        >>> again.load_state_dict(loader.state_dict())
        >>> [batch.x.tolist() for batch in again]
        [[4, 5]]
    """

    def __init__(
        self,
        plan: BatchPlan,
        identity: Mapping[str, Any],
        *,
        seed: int | None,
        output: Output,
        prefetch: int,
        rank: Rank | None = None,
    ) -> None:
        self._plan, self._identity = plan, dict(identity)
        self._output, self._prefetch = output, checked_integer(prefetch, "prefetch", 0)
        self._rank, self._process = rank, this_process()
        self._is_seeded = seed is not None
        self.seed = secrets.randbits(53) if seed is None else int(seed)
        self._run, self._progress = 0, Progress()
        self._next_run, self._is_resumed = 0, False
        self.on_close: Callable[[], None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """Refuse further batches, and close the mirror that the loader opened, if it did."""
        self._is_closed = True
        if self.on_close is not None:
            self.on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Generator[T, None, None]:
        """Begin an iteration; the generator may be closed before its end.

        Raises:
            BufferConfigError: The loader is closed; or, with a batch, its buffer is.
        """
        self._check_open()
        if self._is_resumed:
            run, progress, self._is_resumed = self._run, self._progress, False
        else:
            run, progress = self._next_run, Progress()
        self._run, self._progress, self._next_run = run, progress, run + 1
        return self._noted(self.run_of(run), progress)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BufferConfigError(
                "the loader is closed, by close() or the end of its with block; make another one "
                "with buffer.loader()"
            )

    def __len__(self) -> int:
        """Return the number of batches of an iteration over passes, for the rows stored now.

        In modes other than `step` it reads the steps, about as long as a pass does, since some of
        them are the first of nothing: that of a transition whose next observation is missing.

        Raises:
            TypeError: The iteration has no end.
        """
        n_batches = self._plan.n_batches()
        if n_batches is None:
            raise TypeError("the loader has no end, and so no len; give epochs=... for passes")
        return n_batches

    def __bool__(self) -> bool:
        return True  # also if it is empty or has no length

    @property
    def next_run(self) -> int:
        """Number of the next iteration.

        Raises:
            ValueError: A state was loaded, and the next iteration must continue from it.

        :meta private:
        """
        if self._is_resumed:
            raise ValueError(
                "a state was loaded, and worker processes cannot continue from it: iterate in this "
                "process (num_workers=0), or save and load the state of torchdata's "
                "StatefulDataLoader, which has one for each worker"
            )
        return self._next_run

    def run_of(
        self, number: int, worker: int = 0, n_workers: int = 0, agree: Agree = alone
    ) -> LoaderRun:
        """Return an iteration; see `LoaderRun`.

        :meta private:
        """
        rank, world = (self._rank.rank, self._rank.world) if self._rank is not None else (0, 0)
        return LoaderRun(self.seed, number, worker, n_workers, rank, world, self._process, agree)

    def part(self, run: LoaderRun, progress: Progress) -> Generator[tuple[T, Progress], None, None]:
        """Begin or continue a worker's part of an iteration; `state_dict` does not know of it.

        Each batch comes with the progress after it.

        :meta private:
        """
        self._check_open()
        return self._batches(run, progress)

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress of an iteration before its first batch.

        :meta private:
        """
        return self._plan.begin(run)

    def state_of(self, number: int, progress: Progress) -> dict[str, Any]:
        """Return the position of an iteration as JSON.

        :meta private:
        """
        return {
            "version": _VERSION,
            "loader": dict(self._identity),
            "seed": self.seed,
            "run": number,
            **({} if self._rank is None else {"rank": self._rank.rank}),
            **progress,
        }

    def resumed(self, state: Mapping[str, Any]) -> tuple[int, Progress]:
        """Return the iteration and the progress of a state, and take over its seed.

        Raises:
            ArgumentError: See `load_state_dict`.

        :meta private:
        """
        self._check_state(state)
        self.seed = state["seed"]
        return state["run"], _progress_in(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest iteration as JSON.

        The position is after the last batch that was handed out; batches fetched ahead do not
        count.
        """
        return self.state_of(self._run, self._progress)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Make the next `iter` continue where a state was taken, perhaps by another process. It
        gives the batches that would have come next, if the buffer has not changed.

        Args:
            state: The state; or, with `shard`, a list of the states of all ranks that divided a
                pass. Then there may be another number of ranks now: they divide the rows that are
                left. All of them load the same states.

        Raises:
            ArgumentError: It is not a state, or its loader has other rows, batches or seed; the
                message names the difference. Or states of ranks do not belong together.
        """
        if isinstance(state, (list, tuple)):
            self._run, self._progress = self._divided(state)
        else:
            self._run, self._progress = self.resumed(cast("Mapping[str, Any]", state))
        self._next_run, self._is_resumed = self._run + 1, True

    def _divided(self, states: Any) -> tuple[int, Progress]:
        """Return the iteration and the progress of the states of all ranks of a pass."""
        if not isinstance(self._plan, ShardedPasses):
            raise ArgumentError(
                "states of several ranks divide the rest of a pass: make the loader with "
                "shard=(rank, world), for one process shard=(0, 1), and epochs=... or shuffle=False"
            )
        if not states:
            raise refused(states, "state", "a list of the states of all ranks")
        for state in states:
            self._check_state(state, other_world=len(states))
        ranks = [state.get("rank") for state in states]
        if set(ranks) != {*range(len(states))}:
            raise ArgumentError(
                f"the states are of ranks {shown(ranks)}; give one of each rank from 0 to "
                f"{len(states) - 1}"
            )
        states = sorted(states, key=lambda state: int(state["rank"]))
        run = min(state["run"] for state in states)
        positions = [_progress_in(s) if s["run"] == run else None for s in states]
        if any(s["run"] > run + 1 or (s["run"] > run and _progress_in(s)) for s in states):
            raise ArgumentError(
                "the states are of several iterations of the loader; save those of all ranks in "
                "the same iteration"
            )
        progress = self._plan.divided_again(positions)
        self.seed = states[0]["seed"]
        return run, progress

    def _check_state(self, state: Any, *, other_world: int | None = None) -> None:
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise refused(state, "state", "the result of state_dict() of a loader")
        theirs, seed = state.get("loader"), state.get("seed")
        if not isinstance(theirs, Mapping) or not is_count(seed) or not is_count(state.get("run")):
            raise ArgumentError(f"the state is damaged: {shown(state)}")
        identity = dict(self._identity)
        if other_world is not None:
            identity["world"] = other_world
        differing = [
            f"{name}={shown(theirs.get(name))}, and here it is {shown(identity.get(name))}"
            for name in dict.fromkeys((*identity, *theirs))
            if theirs.get(name) != identity.get(name)
        ]
        if self._is_seeded and seed != self.seed:
            differing.append(f"seed={seed}, and here it is {self.seed}")
        if differing:
            worlds = theirs.get("world"), identity["world"]
            is_other = None not in worlds and worlds[0] != worlds[1]
            way = (
                f"; another number of ranks goes on from the states of all {worlds[0]}, "
                f"load_state_dict([...])"
            )
            raise ArgumentError(
                f"the state is of a loader with {'; '.join(differing)}{way if is_other else ''}"
            )
        if not self._plan.knows(_progress_in(state)):
            raise ArgumentError(f"the state is damaged: {shown(_progress_in(state))}")

    def _noted(self, run: LoaderRun, progress: Progress) -> Generator[T, None, None]:
        self._check_open()
        with closing(self._batches(run, progress)) as batches:
            for batch, behind in batches:
                self._run, self._progress = run.number, behind
                yield batch
                self._check_open()
        self._run, self._progress = run.number + 1, Progress()

    def _batches(
        self, run: LoaderRun, progress: Progress
    ) -> Generator[tuple[T, Progress], None, None]:
        plan, output = self._plan, self._output

        def make() -> Generator[tuple[T, Progress], None, None]:
            for batch, behind in plan.batches(run, progress):
                yield output(batch), behind

        return prefetched(make, self._prefetch) if self._prefetch else make()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._identity.items() if value)
        return f"Loader({shown}, seed={self.seed})"


def _progress_in(state: Mapping[str, Any]) -> Progress:
    return {name: value for name, value in state.items() if name not in _KEYS}


def open_loader(
    store: BufferStore, options: LoaderOptions, output: Output, prefetch: Any
) -> Loader[Any]:
    """Return a loader of a buffer."""
    source = options.source(store.drawing)
    identity = {"buffer": store.info.name, **options.identity(source.node)}
    plan: BatchPlan
    if options.is_drawn:
        n, replace = int(options.batch_size), bool(options.replace)
        plan = Draws(source, n, options.sampler, replace)
    else:
        plan = passes_of(store, source, options, identity)
    return Loader(
        plan, identity, seed=options.seed, output=output, prefetch=prefetch, rank=options.rank
    )


def passes_of(
    store: BufferStore, source: ShardSource, options: LoaderOptions, identity: Mapping[str, Any]
) -> BatchPlan:
    """Return the passes over a source, divided between ranks if there are several.

    Args:
        store: The buffer.
        source: Where the passes read.
        options: Options of the loader.
        identity: What decides which rows each batch contains.
    """
    n, shuffle, drop_last = int(options.batch_size), bool(options.shuffle), bool(options.drop_last)
    rank = options.rank
    if rank is None:
        return Passes(source, n, options.epochs, shuffle, drop_last)
    group = group_of((dict(identity), options.seed), rank.launch)
    return ShardedPasses(
        source, store.agreements, rank, group, n, options.epochs, shuffle, drop_last,
        bool(options.even),
    )  # fmt: skip
