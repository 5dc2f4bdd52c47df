"""A replay buffer for the collectors, losses and transforms of TorchRL.

See `docs/how-to/train-with-torchrl.md`.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Unpack

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_integer
from sqlbuffer.config import OpenerSettings
from sqlbuffer.display import shown
from sqlbuffer.errors import (
    ArgumentError,
    BufferConfigError,
    BufferNotFoundError,
    DocumentChangedError,
    EpisodeRefusedError,
    FieldError,
    InsufficientDataError,
    MissingExtraError,
    SchemaMissingError,
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
from sqlbuffer.samplers import PrioritizedSampler, Sampler
from sqlbuffer.steps import Batch, StoreResult, as_tensor
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, is_memory, shown_url

try:
    import torch
    from tensordict import TensorDictBase
    from tensordict.nn.utils import _set_dispatch_td_nn_modules
    from torchrl.data import RandomSampler, TensorDictReplayBuffer

    from sqlbuffer.integrations.torchrl_steps import (
        AFTER,
        RunPlan,
        Runs,
        StepEntries,
        groups_of,
        keys_of,
        tuple_of,
    )
except ImportError:
    raise MissingExtraError(
        f"sqlbuffer.integrations.torchrl needs TorchRL 0.14 or later; run {install('torchrl')}"
    ) from None

__all__ = ["SQLReplayBuffer"]

DOCUMENT = "torchrl/entries"
COUNT_S = 0.5  # seconds for which a count of all processes is used again
MOST_ROUNDS = 100
STATE = "sqlbuffer.pt"


@dataclass(frozen=True)
class DrawOptions:
    """How items are drawn.

    Attributes:
        n_steps: Largest number of steps that an item spans.
        gamma: Discount of one step.
        slice_len: Number of steps of a slice; None: an item is one step.
    """

    n_steps: int
    gamma: float
    slice_len: int | None

    @property
    def mode(self) -> str:
        """The mode of the loader."""
        if self.slice_len is not None:
            return "window"
        return "step" if self.n_steps == 1 else "n_step"


@dataclass
class _Draws:
    """Draws of one size that go on.

    Attributes:
        batch_size: Number of steps of a draw.
        loader: Makes them.
        batches: They, without end.
    """

    batch_size: int
    loader: Loader[Batch]
    batches: Iterator[Batch]

    def position(self) -> dict[str, Any]:
        """Return where they are."""
        return {"batch_size": self.batch_size, "loader": self.loader.state_dict()}


class _Info(dict[Any, Any]):
    """Numbers and weights of a draw, with the position after it."""

    def __init__(self, values: Mapping[Any, Any], position: dict[str, Any]) -> None:
        super().__init__(values)
        self.position = position


class _These(Sampler):
    """Chooses rows by their numbers."""

    def __init__(self, seqs: list[int]) -> None:
        self._seqs = seqs

    def choose(self, candidates: Any, batch_size: int) -> list[int]:
        """Return the numbers."""
        return self._seqs


_ARGUMENTS = (
    "url", "name", "create", "example", "batch_size", "transform", "prefetch", "device",
    "generator", "n_steps", "gamma", "slice_len", "sampler", "beta", "eps",
    "priority_key", "task_id", "agent_id", "session_id", "model_version", "mirror",
)  # fmt: skip
_OF_TORCHRL = {
    "storage": "the database stores the steps: give url=... and max_capacity=...",
    "writer": "the database stores the steps: give url=... and max_capacity=...",
    "collate_fn": "draws are TensorDicts; give transform=...",
    "pin_memory": "give device=... for tensors on a device",
    "dim_extend": "the last dimension of a batch is time, and those before are environments",
    "sample_unit": "give slice_len=... or n_steps=...",
    "checkpointer": "the steps stay in the database",
    "shared": "each process opens the buffer, or gets it pickled",
    "consume_after_n_samples": "use sqlbuffer.ReplayBuffer.lease",
    "compilable": "leave it out",
    "delayed_init": "leave it out",
    "transform_factory": "give transform=...",
    "service_backend": "each process opens the database itself",
    "fields": "they are those of the first batch, or of example=...",
    "observation_fields": "they are those of the first batch, or of example=...",
    "priorities": "give alpha=... and beta=...",
    "config": "give its settings one by one",
    "connection": "give its settings one by one",
}
_IMMUTABLE = "stored steps do not change; extend the buffer with other steps"
_REFUSED = {
    "empty": (
        "it is shared, and this would delete the steps of all processes; call "
        "replay_buffer.buffer.clear() to delete them, or open a buffer of another name"
    ),
    "__setitem__": _IMMUTABLE,
    "write_all": _IMMUTABLE,
    "set_at_": _IMMUTABLE,
    "set_": _IMMUTABLE,
    "update_": _IMMUTABLE,
    "update_if_present": _IMMUTABLE,
    "submit_update_if_present": _IMMUTABLE,
    "set_storage": "the database stores the steps; open another buffer",
    "set_writer": "the database stores the steps; open another buffer",
    "set_sampler": "open it again with sampler=..., alpha=... or slice_len=...",
    "set_rng": "open it again with generator=...",
    "mark_update": "give the new priority to update_priority",
    "query": "read trajectories with replay_buffer.buffer.loader('trajectory'), or by SQL",
    "register_save_hook": "nothing of the steps is saved; they stay in the database",
    "register_load_hook": "nothing of the steps is loaded; they stay in the database",
}


class SQLReplayBuffer(StartsInEachProcess, TensorDictReplayBuffer):  # type: ignore[misc]
    """A replay buffer of TorchRL that stores its steps in a SQL database.

    Collectors extend it, and losses and transforms draw from it. Processes that open the same URL
    and name share it. Draws have the entries, shapes and dtypes of a `TensorDictReplayBuffer`. They
    come from a mirror in memory, which is read at the first `sample`.

    The first batch determines the entries of a step, unless `example` does. Each environment
    writes episodes, which go on from one `extend` to the next.

    Args:
        url: The database; see `sqlbuffer.ReplayBuffer`.
        name: Name of the buffer; one database holds many buffers.
        create: See `sqlbuffer.ReplayBuffer`. A buffer is created with the first batch, or with
            `example`.
        example: A TensorDict with the entries of a step, such as `collector.fake_tensordict()`.
        batch_size: Number of steps of a draw; `sample` may name another one.
        transform: A transform of TorchRL, or a function. Draws pass through it, and what is stored
            passes through its inverse.
        prefetch: Number of draws that threads make ahead; it needs `batch_size`.
        device: Device of the drawn tensors.
        generator: Generator of torch that repeats the draws; torch's own one if omitted.
        n_steps: Largest number of steps that a transition spans.
        gamma: Discount of one step; give that of the loss. It is required if `n_steps` is above 1.
        slice_len: Draw slices of this many steps that follow each other.
        sampler: A sampler of sqlbuffer that chooses the steps; uniform with replacement if omitted.
        beta: Exponent of the weights of priorities. A process that draws gives it with the setting
            `alpha`.
        eps: Number that is added to each priority.
        priority_key: Entry that `update_tensordict_priority` reads.
        task_id: Task of all its episodes; each episode's own id if omitted.
        agent_id: Agent that acts; `default` if omitted.
        session_id: Training session.
        model_version: See the attribute.
        mirror: True draws from a mirror, False by SQL. A dict has arguments of
            `sqlbuffer.ReplayBuffer.mirror`, such as `{"max_bytes": 2**30}`.
        **settings: Other settings of `sqlbuffer.ReplayBuffer`, such as `max_capacity` and
            `compression`. With `alpha`, the exponent of priorities, the steps have priorities.

    Attributes:
        model_version: Version of the model that acts. It is stored with the steps; None: it is not
            stored.

    Raises:
        BufferConfigError: `n_steps` without `gamma`; an argument of TorchRL's buffers that has no
            meaning here; the buffer is stored with other settings, or another class has stored its
            steps.
        BufferNotFoundError: There is no such buffer, and `create` is False.
        FieldError: The buffer is stored with other entries than those of `example`.
        StorageUnreachableError: The database does not answer; see `sqlbuffer.ReplayBuffer` for
            other errors.
        ArgumentError: An argument is unknown or invalid.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> steps = TensorDict(
        ...     {
        ...         "observation": torch.rand(10, 4),
        ...         "action": torch.zeros(10, dtype=torch.int64),
        ...         "next": {
        ...             "observation": torch.rand(10, 4),
        ...             "reward": torch.ones(10, 1),
        ...             "done": torch.zeros(10, 1, dtype=torch.bool),
        ...         },
        ...     },
        ...     batch_size=[10],
        ... )
        >>> buffer = SQLReplayBuffer("sqlite://", batch_size=4)
        >>> buffer.extend(steps).shape, len(buffer)
        (torch.Size([10]), 10)
        >>> buffer.sample()["next", "reward"].shape
        torch.Size([4, 1])
    """

    model_version: int | None

    def __init__(
        self,
        url: Database = None,
        name: str = "default",
        *,
        create: bool | None = None,
        example: "TensorDictBase | None" = None,
        batch_size: int | None = None,
        transform: Any = None,
        prefetch: int | None = None,
        device: Any = "cpu",
        generator: "torch.Generator | None" = None,
        n_steps: int = 1,
        gamma: float | None = None,
        slice_len: int | None = None,
        sampler: Sampler | None = None,
        beta: float | None = None,
        eps: float = 1e-8,
        priority_key: str = "td_error",
        task_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        model_version: int | None = None,
        mirror: bool | Mapping[str, Any] = True,
        **settings: Unpack[OpenerSettings],
    ) -> None:
        check_settings(settings, _ARGUMENTS, _OF_TORCHRL)
        if batch_size is not None:
            checked_integer(batch_size, "batch_size", 1)
        alpha = settings.get("alpha")
        sampler = checked_sampler(sampler, alpha, beta)
        self._options = checked_options(n_steps, gamma, slice_len, batch_size)
        super().__init__(
            batch_size=batch_size, transform=transform, prefetch=prefetch,
            priority_key=priority_key, delayed_init=False,
        )  # fmt: skip
        self.model_version = model_version
        self._device, self._rng, self._eps = torch.device(device), generator, float(eps)
        self._keys = {"task_id": task_id, "agent_id": agent_id, "session_id": session_id}
        self._mirror_options: Mapping[str, Any] | None = (
            None if mirror is False else {} if mirror is True else dict(mirror)
        )
        priorities: dict[str, Any] = {} if alpha is None else {"priorities": True}
        self._place: dict[str, Any] = {"url": url, "name": name}
        self._create, self._settings = create, {**settings, **priorities}
        self._own_sampler, self._beta = sampler, beta
        self._is_closed, self._position = False, None
        self._buffer: ReplayBuffer | None = None
        self._entries: StepEntries | None = None
        self._start()
        if not self._is_made():
            if example is not None:
                self._make(_checked_data(example, "example"))
        elif example is not None:
            self._opened()[1].columns(_checked_data(example, "example"))

    def _init(self) -> None:
        """Begin without a storage and a writer: the steps are in the database."""
        self._initialized = True
        self._storage = self._writer = self._collate_fn = None
        self._sampler = RandomSampler()  # for iteration alone, which never runs out
        self._dim_extend = 0
        self._transform = self._maybe_make_transform(self._init_transform, None)

    def _start(self) -> None:
        """Begin without open episodes and without a mirror, in this process."""
        super()._start()
        self._runs: Runs | None = None
        self._mirror: Mirror | None = None
        self._draws: _Draws | None = None
        self._prefetch_queue.clear()
        if self._prefetch:  # one thread, so that the queue has the order of the draws
            self._prefetch_executor = ThreadPoolExecutor(max_workers=1)
        self._draw_lock = threading.RLock()
        self._n_written, self._counted_at = 0, -math.inf
        self._version, self._looked_at = 0, -math.inf
        end_with_process(self._end_runs)

    def _is_made(self) -> bool:
        """Open the buffer; return whether it is there, and so are its entries."""
        if self._entries is not None:
            return True
        if self._buffer is None:
            try:
                self._take(ReplayBuffer(**self._place, create=False, **self._settings))
            except (BufferNotFoundError, SchemaMissingError) as error:
                is_sqlite = resolve_url(self._place["url"]).get_backend_name() == "sqlite"
                can_make = self._create or is_sqlite or isinstance(error, BufferNotFoundError)
                if self._create is False or not can_make:
                    raise
                return False
        assert self._buffer is not None
        document = self._buffer.documents.get(DOCUMENT)
        if document is None:
            if len(self._buffer):
                raise BufferConfigError(
                    f"buffer {self._place['name']!r} has steps that no SQLReplayBuffer of TorchRL "
                    f"has stored; take another name, or draw from it with "
                    f"sqlbuffer.ReplayBuffer and batch.to_tensordict()"
                )
            return False
        self._entries = StepEntries.from_json(document.value)
        self._version, self._looked_at = document.version, time.monotonic()
        return True

    def _take(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        if self._is_closed:
            buffer.close()

    def _look(self, age_s: float = COUNT_S) -> None:
        """Begin again with the entries that another process has added, after some seconds."""
        if time.monotonic() - self._looked_at > age_s:
            self._looked_at = time.monotonic()
            document = self.buffer.documents.get(DOCUMENT)
            if document is not None and document.version != self._version:
                self._reopen()

    def _reopen(self) -> None:
        with self._draw_lock:
            self._close_mirror()
            self._entries = None
            if self._buffer is not None and not is_memory(resolve_url(self._place["url"])):
                self._buffer.close()
                self._buffer = None
            self._is_made()

    def _add_entries(self, data: TensorDictBase) -> None:
        """Give the steps the entries that a batch has in addition; earlier steps have zeros."""
        buffer, entries = self._opened()
        while True:
            more = entries.with_more(data)
            for entry in more.entries[len(entries.entries) :]:
                buffer.add_field(entry.name, entry.declared())
            try:
                buffer.documents.put(DOCUMENT, more.to_json(), version=self._version)
                break
            except DocumentChangedError:  # another process has added some
                self._reopen()
                buffer, entries = self._opened()
        self._reopen()

    def _make(self, data: TensorDictBase) -> None:
        """Make the buffer with the entries of a batch."""
        entries = StepEntries.of(data)
        settings: Any = {**self._settings, **entries.declared()}
        try:
            buffer = ReplayBuffer(**self._place, create=self._create, **settings)
        except FieldError:  # another process was first, with other entries
            if self._is_made():
                return
            raise
        with suppress(DocumentChangedError):  # another process was first
            buffer.documents.put(DOCUMENT, entries.to_json(), version=0)
        self._take(buffer)
        self._is_made()

    def _opened(self) -> tuple[ReplayBuffer, StepEntries]:
        if not self._is_made():
            raise BufferNotFoundError(
                f"buffer {self._place['name']!r} is made with the first batch; extend it, or open "
                f"it with example=..., a TensorDict with the entries of a step"
            )
        assert self._buffer is not None
        assert self._entries is not None
        return self._buffer, self._entries

    @property
    def buffer(self) -> ReplayBuffer:
        """The `sqlbuffer.ReplayBuffer` that holds the steps.

        Raises:
            BufferNotFoundError: No step is stored yet, and there was no `example`.
        """
        return self._opened()[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return how the buffer was opened, for another process: no step.

        Raises:
            BufferConfigError: The database is in memory.
        """
        if is_memory(resolve_url(self._place["url"])):
            raise BufferConfigError(
                "SQLReplayBuffer with a database in memory cannot go to another process; open it "
                "with a file, such as url='sqlite:///replay.db'"
            )
        state: dict[str, Any] = super().__getstate__()
        for name in ("_mirror", "_draws", "_runs", "_draw_lock"):
            del state[name]
        return {**state, "_rng": None, "_prefetch_state": None, "_is_closed": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._start()

    def __repr__(self) -> str:
        url = shown_url(resolve_url(self._place["url"]))
        return f"SQLReplayBuffer({url!r}, name={self._place['name']!r})"

    def __enter__(self) -> "SQLReplayBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the open episodes and free the mirror.

        Draws and `[..]` are refused afterwards; `extend` and `add` still store.

        Raises:
            StorageError: The ends could not be stored.
        """
        self._is_closed = True
        if self._is_in_this_process:
            self._clear_queue()
            self._end_runs()
            self._close_mirror()
        if self._buffer is not None:
            self._buffer.close()

    def _clear_queue(self) -> None:
        """Leave out the draws that were made ahead."""
        with self._futures_lock:
            futures = list(self._prefetch_queue)
            self._prefetch_queue.clear()
        for future in futures:
            future.cancel()
        wait(futures)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BufferConfigError(
                f"buffer {self._place['name']!r} is closed, by close() or the end of its with "
                f"block, and gives no batches; draw before that, or open it again: {self!r}"
            )

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the buffer; it is not drawn from again.

        Args:
            timeout: Not used.
        """
        super().shutdown(timeout)
        self.close()

    def _close_mirror(self) -> None:
        with self._draw_lock:
            mirror, self._mirror, self._draws = self._mirror, None, None
        if mirror is not None:
            mirror.close()

    def _end_runs(self) -> None:
        with self._replay_lock:
            episodes = [] if self._runs is None else self._runs.end()
            if episodes and self._buffer is not None:
                self._end(episodes)

    def _end(self, episodes: list[str]) -> None:
        """End episodes that may be gone, or have ended elsewhere."""
        buffer, _ = self._opened()
        try:
            buffer.end_episodes(episodes)
        except EpisodeRefusedError:
            for episode in episodes:
                with suppress(EpisodeRefusedError):
                    buffer.end_episodes([episode])

    def __len__(self) -> int:
        """Return the number of stored steps, of all processes."""
        return len(self._opened()[0]) if self._is_made() else 0

    @property
    def write_count(self) -> int:
        """Number of steps that were ever stored, of all processes."""
        if not self._is_made():
            return 0
        if time.monotonic() - self._counted_at > COUNT_S:  # a collector asks before each step
            self._n_written = self._opened()[0].stats().inserted
            self._counted_at = time.monotonic()
        return self._n_written

    def stats(self) -> dict[str, int | float | bool]:
        """Return figures as TorchRL's buffers do: size, capacity, utilization and others."""
        size = len(self)
        figures: dict[str, int | float | bool] = {
            "size": size,
            "write_count": self.write_count,
            "prefetch_queue_size": len(self._prefetch_queue),
            "initialized": self._is_made(),
        }
        capacity = self._opened()[0].max_capacity if self._is_made() else None
        if capacity is not None:
            figures |= {"capacity": capacity, "utilization": size / capacity}
        return figures

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Return whether there is a step.

        Args:
            batch_size: Not used: steps are drawn with replacement.
        """
        return len(self) > 0

    @property
    def sampler(self) -> Sampler | None:
        """The sampler of sqlbuffer; None: uniform with replacement."""
        return self._own_sampler

    @property
    def storage(self) -> None:
        """None: the steps are in the database."""
        return

    @property
    def writer(self) -> None:
        """None: the steps are in the database."""
        return

    def extend(
        self, tensordicts: TensorDictBase, *, update_priority: bool | None = None
    ) -> torch.Tensor:
        """Store steps in one transaction.

        The last dimension of the batch is time, and those before are environments. A trajectory of
        a collector is an episode, which goes on with the next call. Without `("collector",
        "traj_ids")`, an episode ends where a step is done, or the next one begins elsewhere.

        Args:
            tensordicts: A TensorDict with batch size (T,) or (N, T). It gets an entry `index`.
            update_priority: False gives the steps the priority of new ones, although they have the
                entry `priority_key`.

        Returns:
            The number `seq` of each step, int64 of shape (N * T,). They do not change, and none is
            used again.

        Raises:
            FieldError: An entry of the first batch is missing, or has another dtype or shape;
                nothing is stored.
            SQLBufferError: The other errors of `sqlbuffer.ReplayBuffer.extend`.
        """
        data = _checked_data(tensordicts, "the argument of extend")
        if not data.batch_dims:
            raise FieldError("extend takes a batch of steps; give a single one to add")
        if len(self._transform):
            data = self._transform.inv(data)
        if data is None or not data.batch_size.numel():
            return torch.zeros(0, dtype=torch.int64)
        index = self._stored(data, update_priority=update_priority is not False)
        if not data.is_locked:
            data.set("index", index.reshape(data.batch_size).to(data.device))
        return index

    def add(self, data: TensorDictBase) -> Any:
        """Store a step of one environment, or of several, in a transaction; see `extend`.

        Args:
            data: A TensorDict with batch size () or (N,). It gets an entry `index`.

        Returns:
            Its number `seq`; int64 of shape (N,) for several environments.

        Raises:
            SQLBufferError: See `extend`.
        """
        data = _checked_data(data, "the argument of add")
        if len(self._transform):
            with _set_dispatch_td_nn_modules(True):
                data = self._transform.inv(data)
        if data is None or not data.batch_size.numel():
            return torch.zeros(0, dtype=torch.int64)
        index = self._stored(data.unsqueeze(-1), update_priority=True)
        if not data.is_locked:
            data.set("index", index.reshape(data.batch_size).to(data.device))
        return index if data.batch_dims else int(index)

    def _stored(self, data: TensorDictBase, *, update_priority: bool) -> torch.Tensor:
        """Store steps; return their numbers."""
        with self._replay_lock:
            self._be_in_this_process()
            if not self._is_made():
                self._make(data)
            if not set(keys_of(data)) <= self._opened()[1].keys:
                self._add_entries(data)
            buffer, entries = self._opened()
            columns = entries.columns(data)
            if self._runs is None:
                self._runs = Runs(entries.followed())
            groups, has_trajectories = groups_of(data)
            plan_runs = partial(
                self._runs.plan, columns, groups, entries.ends(columns),
                has_trajectories=has_trajectories,
            )  # fmt: skip
            arrays: dict[str, Any] = dict(columns)
            errors = columns.get(entries.name_of(tuple_of(self.priority_key)) or "")
            if update_priority and buffer.alpha is not None and errors is not None:
                arrays["priority"] = _reduced(errors, data.batch_size.numel()) + self._eps
            plan = plan_runs()
            try:
                result = self._extended(arrays, plan)
            except EpisodeRefusedError:  # ended elsewhere, or evicted in part: begin others
                self._end(self._runs.end())
                plan = plan_runs()
                result = self._extended(arrays, plan)
            self._runs.follow(plan)
            self._n_written += result.inserted
            if plan.ended:
                self._end(plan.ended)
        return torch.from_numpy(result.seqs)

    def _extended(self, arrays: dict[str, Any], plan: RunPlan) -> StoreResult:
        keys: dict[str, Any] = {"task_id": plan.episode_ids, "model_version": self.model_version}
        keys |= {name: value for name, value in self._keys.items() if value is not None}
        keys = {name: value for name, value in keys.items() if value is not None}
        return self._opened()[0].extend(arrays, episode_id=plan.episode_ids, **keys)

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> Any:
        """Draw steps, of all processes; see `TensorDictReplayBuffer.sample`.

        Args:
            batch_size: Number of steps; that of the constructor if omitted.
            return_info: True returns a tuple of the draw and its `index` and weights.
            include_info: Former name of `return_info`.

        Raises:
            InsufficientDataError: No step can be drawn.
            BufferConfigError: The buffer is closed, or priorities have no `beta`.
            MirrorFullError: The steps do not fit into the `max_bytes` of the mirror.
        """
        data, info = super().sample(batch_size, True, include_info)
        self._position = info.position  # draws that were made ahead do not count
        return (data, info) if return_info or include_info else data

    def _sample(self, batch_size: int) -> tuple[Any, "_Info"]:
        """Return a draw, and its numbers and weights; TorchRL's `sample` calls it."""
        n = checked_integer(batch_size, "batch_size", 1)
        with self._draw_lock:
            batch, position = self._drawn(n)
            data, values = self._made(batch, n)
        if len(self._transform):
            with data.unlock_(), _set_dispatch_td_nn_modules(True):
                data = self._transform(data)
        return data, _Info(values, position)

    def _drawn(self, n: int) -> tuple[Batch, dict[str, Any]]:
        """Return a batch, and the position after it."""
        self._be_in_this_process()
        self._check_open()
        if not self._is_made():
            raise InsufficientDataError(
                f"no step can be drawn: buffer {self._place['name']!r} has none yet; extend it"
            )
        self._look()
        if self._draws is None or self._draws.batch_size != n:
            self._draws = self._begun(n)
        try:
            return next(self._draws.batches), self._draws.position()
        except BaseException:
            self._draws = None  # a generator that has raised is at its end
            raise

    def _begun(self, n: int, state: Mapping[str, Any] | None = None) -> "_Draws":
        """Begin draws, or continue those of the state of a loader."""
        buffer, entries = self._opened()
        if self._mirror is None and self._mirror_options is not None:
            self._mirror = buffer.mirror(**self._mirror_options)
        source: Any = buffer if self._mirror is None else self._mirror
        options = self._chosen(state)
        draws, n_items = self._options, n
        if draws.slice_len is not None:
            n_items, options["length"] = _n_slices(n, draws.slice_len), draws.slice_len
        if draws.n_steps > 1:
            entries.check_n_steps()
            options |= {
                "n_step": draws.n_steps,
                "gamma": draws.gamma,
                "fields": [e.name for e in entries.entries if e.is_field and e.key[0] != AFTER]
                + ["truncated"],
                "sequence_fields": entries.sequences(),
            }
        loader = source.loader(draws.mode, n_items, **options)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        if draws.slice_len is not None:
            batches = _whole_slices(batches, n_items)
        return _Draws(n, loader, batches)

    def _chosen(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the options of a loader that choose the steps."""
        if self._own_sampler is not None:
            return {"sampler": self._own_sampler}
        has_priorities = self._settings.get("alpha") is not None
        if has_priorities and self._beta is None:
            raise BufferConfigError(
                f"draws by priority need beta=..., such as 0.4, next to "
                f"alpha={self._settings['alpha']}; leave both out to draw uniformly"
            )
        if state is None:  # the generator of torch repeats the draws, as those of TorchRL
            seed = int(torch.randint(2**31 - 1, (), generator=self._rng))
        else:
            seed = state["sampler"]["seed"] if "sampler" in state else state["seed"]
        if not has_priorities:
            return {"seed": seed, "replace": True}
        assert self._beta is not None
        return {"sampler": PrioritizedSampler(beta=self._beta, normalize="buffer", seed=seed)}

    def _made(self, batch: Batch, n: int) -> tuple[Any, dict[str, Any]]:
        """Return the TensorDict of a batch, and its numbers and weights."""
        _, entries = self._opened()
        draws, seqs = self._options, torch.from_numpy(np.array(batch.info["seq"]))
        info = {"index": seqs.to(self._device)}
        weights = batch.get("weights")
        if weights is not None:
            info["priority_weight"] = as_tensor(weights, self._device)
        arrays: dict[str, Any] = dict(batch)
        if draws.mode == "n_step":
            arrays |= entries.of_last_steps(batch, draws.gamma)
        data = entries.tensordict(arrays, (n,), self._device)
        if draws.mode == "n_step":
            self._tell_steps(data, batch, entries)
        if draws.slice_len is not None:
            info = {
                name: values.repeat_interleave(draws.slice_len) for name, values in info.items()
            }
            info |= _slice_ends(data, draws.slice_len)
        return data, info

    def _tell_steps(self, data: Any, batch: Batch, entries: StepEntries) -> None:
        """Add the entries that TorchRL's MultiStep makes."""
        m = as_tensor(batch.info["n_steps"], self._device)
        data.set("steps_to_next_obs", m)
        data.set("gamma", self._options.gamma**m)
        data.set("nonterminal", m != 1)
        key = entries.flags.get("reward")
        if key is not None:
            name = entries.name_of(key)
            reward = as_tensor(batch[f"seq_{name}"][:, 0], self._device)
            value = data.get(key)
            data.set((*key[:-1], "original_reward"), reward.to(value.dtype).reshape(value.shape))

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set the priorities of steps.

        Args:
            index: Their numbers `seq`: the entry `index` of a draw, or what `extend` returned.
                Those of evicted steps are left out.
            priority: A number for each, or one for all; `eps` is added.

        Raises:
            FieldError: A priority is NaN or out of range, or the buffer has no priorities.
        """
        buffer, _ = self._opened()
        if buffer.alpha is None:
            raise FieldError("the buffer has no priorities; open it with alpha=... and beta=...")
        seqs = torch.as_tensor(index).reshape(-1).cpu().numpy()
        values = torch.as_tensor(priority).detach().reshape(-1).cpu().numpy()
        if len(values) not in (1, len(seqs)):
            raise FieldError(
                f"priority: expected {len(seqs)} numbers, one for each index, or one for all; got "
                f"{len(values)}"
            )
        target: Any = buffer if self._mirror is None else self._mirror
        target.update_priorities(seqs, np.broadcast_to(values, seqs.shape), self._eps)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of drawn steps from their entry `priority_key`.

        The priority of a step, or of a slice, is the largest number of the entry. A buffer without
        priorities does nothing, as those of TorchRL.

        Args:
            data: What `sample` returned, with the entry.

        Raises:
            FieldError: The entry or `index` is missing, or a priority is NaN.
        """
        if not self._is_made() or self._opened()[0].alpha is None:
            return
        values, index = data.get(self.priority_key, None), data.get("index", None)
        for key, value in ((self.priority_key, values), ("index", index)):
            if value is None:
                raise FieldError(f"{key!r} is missing in the TensorDict; a loss or a draw sets it")
        n = data.batch_size.numel() // (self._options.slice_len or 1)
        priority = torch.from_numpy(_reduced(values.detach().cpu().numpy(), n))
        self.update_priority(index.reshape(n, -1)[:, 0], priority)

    def __getitem__(self, index: Any) -> Any:
        """Return stored steps by their numbers `seq`, all of them, or an entry of all.

        Args:
            index: A number, numbers, `:` for all steps in the order of their numbers, or the key of
                an entry.

        Raises:
            InsufficientDataError: A step is not there.
            BufferConfigError: The buffer is closed.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and isinstance(index[0], str)):
            return self[:].get(index)
        self._check_open()
        self._opened()
        self._look(0.0)
        buffer, entries = self._opened()
        if isinstance(index, slice):
            if index != slice(None):
                raise ArgumentError("steps have numbers and no positions; give [:] or their seq")
            batches = list(buffer.loader("step", 4096, epochs=1, shuffle=False))
            parts = [entries.tensordict(b, (b.n_rows,), self._device) for b in batches]
            if not parts:
                raise InsufficientDataError("the buffer has no steps")
            data = torch.cat(parts)
        else:
            numbers = torch.as_tensor(index)
            seqs = numbers.reshape(-1).tolist()
            try:
                batch = buffer.sample_arrays(len(seqs), sampler=_These(seqs))
            except InsufficientDataError:
                raise InsufficientDataError(
                    f"the buffer does not have all steps of {shown(index)}: a step has the number "
                    f"that extend() returned, the entry `index` of a draw, and no position"
                ) from None
            data = entries.tensordict(batch, tuple(numbers.shape), self._device)
        return self._transform(data) if len(self._transform) else data

    def read_all_in_order(self, end: int | None = None) -> Any:
        """Return all steps, or the first ones, in the order of their numbers.

        Args:
            end: Number of steps; None: all.
        """
        return self[:] if end is None else self[:][:end]

    def state_dict(self) -> dict[str, Any]:
        """Return the address of the buffer and the position of its draws: no step, no password.

        The position is after the last draw that `sample` returned. It does not contain the
        generator of torch itself, unless there is a `generator`.
        """
        rng = self._rng
        return {
            "url": shown_url(resolve_url(self._place["url"])),
            "name": self._place["name"],
            "_batch_size": self._batch_size,
            "_transforms": self._transform.state_dict(),
            "_position": self._position,
            "_rng": None if rng is None else (rng.get_state().clone(), str(rng.device)),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the draws of `state_dict`; the steps are those of the database.

        The next draws are the same if the steps and their priorities are.

        Raises:
            BufferConfigError: It is the state of another buffer.
            ArgumentError: Its draws have other options, such as `n_steps`, or another sampler.
        """
        own = self.state_dict()
        if any(state_dict.get(name) != own[name] for name in ("url", "name")):
            raise BufferConfigError(
                f"the state is of buffer {state_dict.get('name')!r} in {state_dict.get('url')!r}, "
                f"and this is {own['name']!r} in {own['url']!r}; open that one: its steps are in "
                f"the database, and not in the state"
            )
        self._be_in_this_process()
        position, draws = state_dict["_position"], None
        if position is not None:
            with self._draw_lock:
                draws = self._begun(position["batch_size"], position["loader"])
        self._clear_queue()  # or its threads take draws of the new ones
        with self._draw_lock:
            self._draws, self._position = draws, position
        self._transform.load_state_dict(state_dict["_transforms"])
        self._batch_size = state_dict["_batch_size"]
        if state_dict["_rng"] is not None:
            values, device = state_dict["_rng"]
            self._rng = torch.Generator(device=device)
            self._rng.set_state(values)

    def dumps(self, path: Any) -> None:
        """Write `state_dict` into a folder; the steps stay in the database.

        Args:
            path: The folder; it is made.
        """
        Path(path).mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), Path(path) / STATE)

    def loads(self, path: Any) -> None:
        """Load what `dumps` has written.

        Args:
            path: The folder.
        """
        self.load_state_dict(torch.load(Path(path) / STATE))


def _refusing(name: str, what: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise BufferConfigError(f"SQLReplayBuffer has no {name}: {what}")

    refuse.__name__ = name
    refuse.__doc__ = f"Raise: {what}.\n\nRaises:\n    BufferConfigError: Always."
    return refuse


for _name, _what in _REFUSED.items():
    setattr(SQLReplayBuffer, _name, _refusing(_name, _what))


def _checked_data(data: Any, what: str) -> TensorDictBase:
    if not isinstance(data, TensorDictBase):
        raise FieldError(f"{what} is a TensorDict, got a {type(data).__name__}")
    return data


def checked_sampler(sampler: Any, alpha: float | None, beta: float | None) -> Sampler | None:
    """Return the sampler; None: it is made later, or draws are uniform.

    Raises:
        BufferConfigError: It is not a sampler of sqlbuffer, or `alpha` and `beta` do not go with
            it.
    """
    if sampler is not None and not isinstance(sampler, Sampler):
        raise BufferConfigError(
            f"sampler is a {type(sampler).__name__}; give a sampler of sqlbuffer, alpha=... and "
            f"beta=... instead of a PrioritizedSampler, or slice_len=... instead of a SliceSampler"
        )
    if beta is not None and (alpha is None or sampler is not None):
        raise BufferConfigError("beta goes with alpha=..., and without sampler=...")
    return sampler


def checked_options(
    n_steps: int, gamma: float | None, slice_len: int | None, batch_size: int | None
) -> DrawOptions:
    """Return how items are drawn.

    Raises:
        BufferConfigError: `n_steps` without `gamma`, or with `slice_len`.
        ArgumentError: A number is invalid.
    """
    gamma = checked_gamma(n_steps, gamma, same_as="that of the loss", default=1.0)
    if slice_len is not None:
        checked_integer(slice_len, "slice_len", 1)
        if n_steps > 1:
            raise BufferConfigError("slice_len goes without n_steps: a slice has single steps")
        if batch_size is not None:
            _n_slices(batch_size, slice_len)
    return DrawOptions(int(n_steps), gamma, slice_len)


def _n_slices(batch_size: int, slice_len: int) -> int:
    if batch_size % slice_len:
        raise ArgumentError(
            f"batch_size counts steps, and {batch_size} is not a multiple of slice_len={slice_len}"
        )
    return batch_size // slice_len


def _reduced(values: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Return the largest number of each of n items."""
    largest: NDArray[np.float64] = values.reshape(n, -1).astype(np.float64).max(axis=1)
    return largest


def _whole_slices(windows: Iterator[Batch], n: int) -> Iterator[Batch]:
    """Yield batches of n windows that have all their steps.

    Raises:
        InsufficientDataError: Hardly any window has.
    """
    while True:
        parts: list[tuple[dict[str, Any], Any]] = []
        n_found = 0
        for _ in range(MOST_ROUNDS):
            batch = next(windows)
            whole = np.flatnonzero(batch.mask.all(axis=1))[: n - n_found]
            arrays = {name: values[whole] for name, values in batch.items() if values is not None}
            parts.append((arrays, batch.info["seq"][whole]))
            n_found += len(whole)
            if n_found == n:
                break
        else:
            raise InsufficientDataError(
                "hardly any episode has slice_len steps; make slice_len smaller"
            )
        names = parts[0][0]
        yield Batch(
            {name: np.concatenate([arrays[name] for arrays, _ in parts]) for name in names},
            {"seq": np.concatenate([seqs for _, seqs in parts])},
        )


def _slice_ends(data: Any, slice_len: int) -> dict[Any, Any]:
    """Return the flags of slices, which TorchRL's SliceSampler sets in the same way."""
    truncated = torch.zeros(data.batch_size[0], 1, dtype=torch.bool, device=data.device)
    truncated.view(-1, slice_len)[:, -1] = True
    done = data.get((AFTER, "done"), None)
    terminated = data.get((AFTER, "terminated"), None)
    return {
        (AFTER, "truncated"): truncated,
        (AFTER, "done"): truncated.clone() if done is None else done | truncated,
        (AFTER, "terminated"): torch.zeros_like(truncated) if terminated is None else terminated,
    }
