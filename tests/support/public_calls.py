"""The public calls of the library, found by the classes and functions of the API pages, and what
they are called with.
"""

import ast
import asyncio
import functools
import inspect
import re
import resource
import signal
import sqlite3
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import sqlbuffer
from sqlbuffer import (
    BufferConfig,
    DataRow,
    Experience,
    ExpMeta,
    FieldSpec,
    Loader,
    Mirror,
    QueryBuilder,
    QueryFilter,
    ReplayBuffer,
    Sampler,
    aio,
    fields_from_env,
    mix,
)
from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.interchange import BufferStream, RolloutRows
from sqlbuffer.llm import padded
from sqlbuffer.loading.modes import LoaderOptions
from sqlbuffer.monitoring import TensorBoardMonitor
from sqlbuffer.rate_limits import FlowCounts, RateLimiter, RatioWindow
from tests.docs.public_methods import PRIVATE, documented, function_of, named_errors, resolved
from tests.llm.templates import Characters

FIELDS = {"obs": ("float32", (2,)), "action": "int64"}
# Objects that other calls make or return: users do not call their constructors.
MADE = {
    "AsyncEpisodeWriter", "AsyncLease", "AsyncLeasedBatch", "AsyncWork", "AsyncWorkItem",
    "AtifExport", "Batch", "Candidates", "Checkpoint", "Converter",
    "CopyReport", "Distribution", "Document", "Documents", "EpisodeWriter", "ExportReport",
    "FieldSpec", "FlowState", "ImportReport", "LeasedBatch", "Loader",
    "LoggedBatch", "Mirror", "MirrorLag", "Mixture", "PriorityUpdate",
    "Removed", "Restored", "Rollout", "RolloutExport", "RowList", "Sampler", "Snapshot", "Spaces",
    "Stats", "StoreResult", "StreamPiece", "TaskList", "TaskSampler", "TokenBatch", "TokenSequence",
    "Transaction", "VectorWriter", "Work", "WorkItem",
}  # fmt: skip
SAMPLERS = (
    "FifoSampler", "LatestSampler", "PrioritizedSampler", "RandomSampler", "RandomTaskSample",
)  # fmt: skip
# The library calls these methods; users write classes that have them.
OF_CLASSES_OF_USERS = {
    "choose", "choose_tasks", "columns", "finished", "handed_out", "to_dataset_row", "describe",
}  # fmt: skip
# They have the calls of other libraries, with the errors of those; pages of maps; SQLAlchemy's.
LEFT_OUT = ("sqlbuffer.compat.", "sqlbuffer.integrations.")
HANG_S, SPARE_BYTES = 60.0, 2**31


class Writer:
    """What a monitor writes figures to."""

    def add_scalar(self, *_: Any) -> None:
        """Take a figure."""

    add_histogram = add_scalar


class Memory:
    """One step, with what is read of a replay buffer of Stable-Baselines3 or of cpprb."""

    n_envs, pos, full = 1, 1, False
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    observations = next_observations = np.zeros((1, 1, 2))
    actions = np.zeros((1, 1, 1), np.int64)
    rewards = dones = timeouts = np.zeros((1, 1))

    def add(self, *_: Any, **__: Any) -> None:
        """Take steps."""

    on_episode_end = add

    def is_Nstep(self) -> bool:
        return False

    def get_all_transitions(self) -> dict[str, Any]:
        return {"obs": np.zeros((1, 2)), "act": [0], "rew": [0.0], "done": [1.0]}

    def get_stored_size(self) -> int:
        return 1

    get_buffer_size = get_next_index = get_stored_size


FLAT = {"observations": np.zeros((1, 2)), "actions": [0], "rewards": [0.0], "terminals": [True]}


def row(layout: str) -> DataRow:
    """Return a row."""
    fields = (
        {"obs": np.zeros(2, np.float32), "action": np.int64(0)} if layout.endswith("typed") else {}
    )
    return DataRow(ExpMeta("t"), Experience(state=1), fields=fields)


class World:
    """Buffers with a few steps, and objects made of them.

    Args:
        url: The database.
        folder: Folder for files.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.rows = ReplayBuffer(url, "rows", priorities=True, create=True)
        self.typed = ReplayBuffer(url, "typed", priorities=True, fields=FIELDS)
        self.leased = ReplayBuffer(url, "leased", leases=True, track_samples=True)
        self.env = gymnasium.make("CartPole-v1")
        self.recorded = ReplayBuffer(url, "recorded", **fields_from_env(self.env))
        self.buffers = [self.rows, self.typed, self.leased]
        # For calls that store what they are given, which others need not read.
        self.written_rows = ReplayBuffer(url, "written rows", priorities=True)
        self.written_typed = ReplayBuffer(url, "written typed", priorities=True, fields=FIELDS)
        self.fill()
        self._lease = self.leased.lease(1, group_by="task_id", timeout_s=0, lease_s=3_600)
        self.held = self._lease.__enter__()
        self.rows.work.put(["t"])
        (self.item,) = self.rows.work.take(lease_s=3_600)
        self.mirror = self.typed.mirror()
        path = url.removeprefix("sqlite:///")
        self._watching = sqlite3.connect(path) if path != url else None

    def fill(self) -> None:
        """Store steps where a call has removed them."""
        for buffer in self.buffers:
            buffer.set_rate_limiter(None)
            if buffer is self.typed:
                columns = {"obs": np.zeros((4, 2)), "action": range(4), "reward": np.ones(4)}
                buffer.store_episode({**columns, "terminated": [False, False, False, True]})
            else:
                buffer.extend({"state": [1, 2, 3]}, task_id="t", step=range(3))

    def repair(self, call: "PublicCall") -> None:
        """Undo what a call may have done that was not refused."""
        if call.name in MAKING:
            with suppress(BufferNotFoundError):
                ReplayBuffer.drop(self.url, "new")
        if call.name.endswith((".resize", ".delete")):
            for buffer in self.buffers:
                buffer.resize(None)
            self.fill()

    def commits(self) -> Any:
        """Return what every commit to a SQLite file changes; on PostgreSQL, the contents."""
        if self._watching is None:
            return self.contents()
        return self._watching.execute("PRAGMA data_version").fetchone()

    def contents(self) -> Any:
        """Return the names of the buffers and what they hold."""
        held = [
            (
                [(row.seq, row.id, row.exp_data.reward_t, row.exp_data.extra) for row in buffer],
                (buffer.clock, buffer.session_id, repr(buffer.config), buffer.flow().policy),
            )
            for buffer in self.buffers
        ]
        return ReplayBuffer.list(self.url), held

    def close(self) -> None:
        """Close what was opened."""
        self.mirror.close()
        self.env.close()
        self._lease.__exit__(None, None, None)
        for buffer in (*self.buffers, self.recorded, self.written_rows, self.written_typed):
            buffer.close()
        if self._watching is not None:
            self._watching.close()


class InDraw:
    """Candidates: calls their methods in the transaction of a draw.

    Args:
        buffer: The buffer to draw from.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*by_place: Any, **by_name: Any) -> None:
            class Calling(Sampler):
                def choose(self, candidates: Any, batch_size: int) -> Any:
                    getattr(candidates, name)(*by_place, **by_name)
                    return candidates.newest(batch_size)

            self._buffer.sample(1, sampler=Calling())

        return call


class InTransaction:
    """Transactions: calls their methods in one.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*by_place: Any, **by_name: Any) -> Any:
            return self._buffer.transaction(lambda tx: getattr(tx, name)(*by_place, **by_name))

        return call


class InSnapshot:
    """Snapshots: calls their methods in one.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*by_place: Any, **by_name: Any) -> Any:
            return self._buffer.snapshot(lambda view: getattr(view, name)(*by_place, **by_name))

        return call


def made_sampler(name: str, *_: Any) -> Any:
    return resolved(f"sqlbuffer.{name}")()


# What the methods of a class are called on. A buffer of each layout has the same calls.
SUBJECTS: dict[str, Callable[[World, str], Any]] = {
    "AsyncEpisodeWriter": lambda world, _: aio.AsyncEpisodeWriter(world.written_typed.episode()),
    "AsyncLeasedBatch": lambda world, _: aio.AsyncLeasedBatch(world.held),
    "AsyncReplayBuffer": lambda world, layout: aio.AsyncReplayBuffer(getattr(world, layout)),
    "AsyncWork": lambda world, _: aio.AsyncWork(world.rows.work),
    "AsyncWorkItem": lambda world, _: aio.AsyncWorkItem(world.item),
    "Batch": lambda world, _: world.typed.sample_arrays(2),
    "BufferConfig": lambda *_: BufferConfig(),
    "Candidates": lambda world, layout: InDraw(getattr(world, layout)),
    "BufferStream": lambda world, _: BufferStream(world.typed).__enter__(),
    "Documents": lambda world, _: world.rows.documents,
    "EpisodeWriter": lambda world, layout: getattr(world, layout).episode(),
    "FieldSpec": lambda *_: FieldSpec.parse("obs", "float32"),
    "IterableDataset": lambda world, _: resolved("sqlbuffer.torch.IterableDataset")(
        world.typed.loader("step", 2, seed=1)
    ),
    "LeasedBatch": lambda world, _: world.held,
    "LoggedBatch": lambda world, _: world.leased.batch(world.held.batch_id),
    "Loader": lambda world, _: world.typed.loader("step", 2, seed=1),
    "Mirror": lambda world, _: world.mirror,
    "Mixture": lambda world, _: mix({world.typed: 1}),
    "QueryBuilder": lambda *_: QueryBuilder(),
    "QueryFilter": lambda *_: QueryFilter(None),
    **{name: functools.partial(made_sampler, name) for name in SAMPLERS},
    "Sampler": functools.partial(made_sampler, "RandomSampler"),
    "TaskList": lambda world, _: world.typed.sample_tasks(1),
    "TokenBatch": lambda *_: padded([]),
    "TaskSampler": functools.partial(made_sampler, "RandomTaskSample"),
    "RateLimiter": lambda *_: RateLimiter(1.0),
    "RatioWindow": lambda *_: RatioWindow(1.0),
    "ReplayBuffer": lambda world, layout: getattr(world, layout),
    "RolloutRows": lambda world, _: RolloutRows(world.rows),
    "Snapshot": lambda world, layout: InSnapshot(getattr(world, layout)),
    "TensorBoardMonitor": lambda world, _: TensorBoardMonitor(world.rows, Writer()),
    "Transaction": lambda world, layout: InTransaction(getattr(world, layout)),
    "VectorWriter": lambda world, _: world.typed.vector_writer(1),
    "Work": lambda world, _: world.rows.work,
    "WorkItem": lambda world, _: world.item,
}
# Others are refused by some layouts before they look at their arguments.
LAYOUT_OF = {
    "add_field": "typed", "lease": "leased", "leases": "leased", "loader": "typed",
    "mirror": "typed", "record": "recorded", "sample_transitions": "typed",
    "vector_writer": "typed",
}  # fmt: skip
LAYOUTS = {
    "Candidates": ("rows", "typed"),
    "EpisodeWriter": ("written_rows", "written_typed"),
    "Snapshot": ("rows", "typed"),
    "Transaction": ("written_rows", "written_typed"),
}
# What required parameters are given, and those without which a call would wait.
RIGHT: dict[str, Callable[[World], Any]] = {
    "arrays": lambda _: {"obs": np.zeros((1, 2)), "action": [0]},
    "block": lambda _: bytes(16),
    "buffer": lambda world: world.typed,
    "builder": lambda _: QueryBuilder().eq("step", 1),
    "by_key": lambda _: {"k": 1},
    "batch_id": lambda _: 1,
    "clock": lambda _: 1,
    "condition": lambda _: None,
    "condition_or_seqs": lambda _: [1],
    "consumer": lambda _: "c",
    "counts": lambda _: FlowCounts(1, 1),
    "declaration": lambda _: ("float32", (), 0.0),
    "device": lambda _: "cpu",
    "documents": lambda _: ["k"],
    "env": lambda world: world.env,
    "episode_id": lambda _: "e",
    "episode_ids": lambda _: ["e"],
    "exp_data": lambda _: Experience(),
    "exp_meta": lambda _: ExpMeta("t"),
    "field": lambda _: "step",
    "given": lambda _: "float32",
    "high": lambda _: 1,
    "ids": lambda _: ["k"],
    "info": lambda _: {},
    "json_data": lambda _: "{}",
    "key": lambda _: "k",
    "keys": lambda _: ["k"],
    "low": lambda _: 0,
    "metas": lambda _: [{}],
    "n": lambda _: 1,
    "name": lambda _: "new",
    "obj": lambda _: {},
    "dataset": lambda _: "no/such-v0",
    "dataset_id": lambda _: "test/door-v0",
    "limit": lambda _: 1,
    "n_envs": lambda _: 1,
    "reward_fn": lambda _: lambda *_: np.zeros(1),
    "steps": lambda _: {"obs": np.zeros((1, 2)), "action": [0]},
    "loader": lambda world: world.typed.loader("step", 2),
    "offset": lambda _: 0,
    "replace": lambda _: True,
    "options": lambda _: LoaderOptions(mode="step"),
    "other": lambda world: world.rows,
    "page": lambda _: 1,
    "page_size": lambda _: 2,
    "path": lambda world: world.folder / "out",
    "policy": lambda _: None,
    "priorities": lambda _: 1.0,
    "retry_s": lambda _: 0,
    "replay_buffer": lambda _: Memory(),
    "reward": lambda _: None,
    "row": lambda _: row(""),
    "rng": lambda _: np.random.default_rng(0),
    "rows": lambda _: [row("")],
    "samples_per_insert": lambda _: 1.0,
    "seqs": lambda _: [1],
    "settings": lambda _: {},
    "sources": lambda world: {world.typed: 1},
    "state": lambda world: world.typed.loader("step", 2, seed=1).state_dict(),
    "rewards": lambda _: [1.0],
    "rollouts": lambda _: [],
    "groups": lambda _: [0],
    "source": lambda world: world.folder / "no.json",
    "stored": lambda _: {"dtype": "<f4", "shape": []},
    "tokenizer": lambda _: Characters(),
    "task_id": lambda _: "t",
    "task_ids": lambda _: ["t"],
    "tasks": lambda _: ["t"],
    "timeout_s": lambda _: 0,
    "url": lambda world: world.url,
    "value": lambda _: 1.0,
    "values": lambda _: [1.0],
    "version": lambda _: 1,
    "work": lambda _: lambda tx: None,
    "writer": lambda _: Writer(),
}
WRITING = ("add", "extend", "store", "store_batch", "store_episode", "episode")
MAKING = (
    "ReplayBuffer", "AsyncReplayBuffer.open", "import_parquet", "insert_jsonl", "import_minari",
    "import_atif", "import_arrays", "from_sb3", "from_cpprb",
)  # fmt: skip
ALWAYS_GIVEN = ("timeout_s", "retry_s", "url")
# Otherwise it would read standard input.
OF_TOKENS = ("LeasedBatch.padded", "LoggedBatch.padded", "TaskList.padded")
NEVER_LEFT_OUT = {"insert_jsonl": ("path",), **dict.fromkeys(OF_TOKENS, ("tokenizer",))}
STEP = {"obs": [0, 0], "action": 1}
# What else a call needs.
MORE: dict[str, dict[str, Any]] = {
    "ReplayBuffer": {"name": "new"},
    "AsyncReplayBuffer.open": {"name": "new"},
    "RatioWindow": {"max_ratio": 1.0},
    **{name: {"name": "new"} for name in ("import_arrays", "from_sb3", "from_cpprb")},
    "ReplayBuffer.annotate": {"adv_t": 1.0},
    "AsyncReplayBuffer.annotate": {"adv_t": 1.0},
    "Transaction.annotate": {"adv_t": 1.0},
    "ReplayBuffer.annotate_episode": {"reward": 1.0},
    "AsyncReplayBuffer.annotate_episode": {"reward": 1.0},
    "Transaction.annotate_episode": {"reward": 1.0},
    "AsyncEpisodeWriter.append": STEP,
    "Documents.put_many": {"values": {"k": 1.0}},
    "ReplayBuffer.loader": {"mode": "step"},
    "AsyncReplayBuffer.loader": {"mode": "step"},
    "Mirror.loader": {"mode": "step"},
    "Mixture.loader": {"mode": "step"},
}


@dataclass(frozen=True)
class PublicCall:
    """A function, a class that is made, or a method.

    Attributes:
        name: Its name, such as `ReplayBuffer.sample`.
        layout: Layout of the buffer it is called on: `rows` or `typed`.
        found: Returns what is called.
        parameters: The parameters with their types.
        errors: Names of the errors that its docstring names.
    """

    name: str
    layout: str
    found: Callable[[World], Callable[..., Any]]
    parameters: tuple[inspect.Parameter, ...]
    errors: frozenset[str]

    @property
    def owner(self) -> str:
        """The class or the function."""
        return self.name.partition(".")[0]

    def _right(self, name: str, world: World) -> Any:
        """Return what a required parameter takes."""
        if name in ("data", "data_batch"):
            return row(self.layout) if name == "data" else [row(self.layout)]
        if name == "arrays" and self.name == "import_arrays":
            return FLAT
        if name == "arrays" and self.layout.endswith("rows"):
            return {"state": [1]}
        return RIGHT[name](world)

    def prepared(self, world: World, wrong: str, value: Any) -> Callable[[], Any]:
        """Return the call with a value in the place of one argument."""
        by_place, by_name = [], dict(MORE.get(self.name, {}))
        if self.layout.endswith("typed") and self.name.endswith((".add", ".append")):
            by_name = dict(STEP)
        if self.name.endswith(".loader") and wrong != "mode" and wrong in MODES_OF:
            by_name["mode"] = MODES_OF[wrong]
            if MODES_OF[wrong] == "window":
                by_name["length"] = 2
        for parameter in self.parameters:
            name, is_required = parameter.name, parameter.default is parameter.empty
            if name == wrong:
                given = value
            elif is_required or name in (*ALWAYS_GIVEN, *NEVER_LEFT_OUT.get(self.name, ())):
                given = self._right(name, world)
            else:
                continue
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                by_place.append(given)
            else:
                by_name[name] = given
        return functools.partial(self.found(world), *by_place, **by_name)


MODES_OF = {
    **dict.fromkeys(("n_step", "gamma", "sequence_fields", "stack", "terminal_field"), "n_step"),
    **dict.fromkeys(("length", "burn_in", "stride"), "window"),
    "include_partial": "trajectory",
}


def use(result: Any) -> None:
    """Begin to use the result of a call, and close it."""
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    if isinstance(result, AsyncIterator):
        asyncio.run(_first(result))
    elif isinstance(result, Loader):
        with result, closing(iter(result)) as batches:
            next(batches, None)
    elif isinstance(result, sqlbuffer.front.leasing.Lease):
        with result:
            pass
    elif isinstance(result, (Mirror, ReplayBuffer)):
        result.close()
    elif isinstance(result, Iterator):
        next(result, None)


async def _awaited(result: Any) -> Any:
    return await result


async def _first(result: Any) -> None:
    try:
        await anext(result, None)
    finally:
        await result.aclose()


@functools.cache
def public_calls() -> tuple[PublicCall, ...]:
    """Return every public call that takes arguments."""
    return tuple(call for call in _found_calls() if call.parameters)


def _found_calls() -> Iterator[PublicCall]:
    for path in documented():
        name = path.rpartition(".")[2]
        is_map = path.startswith("sqlbuffer.orm.") and name[0].isupper()
        if path.startswith(LEFT_OUT) or name.endswith("Error") or is_map:
            continue
        thing = resolved(path)
        if not isinstance(thing, type):
            yield _call(name, "", functools.partial(_constant, thing), thing, thing)
            continue
        if name not in MADE:
            yield _call(name, "", functools.partial(_constant, thing), thing, thing.__init__)
        for method in filter(functools.partial(_is_method, thing), dir(thing)):
            function = function_of(inspect.getattr_static(thing, method))
            is_static = isinstance(
                inspect.getattr_static(thing, method), (classmethod, staticmethod)
            )
            layouts = ("",) if is_static else LAYOUTS.get(name, ("",))
            if name.endswith("ReplayBuffer") and not is_static:
                layouts = _layouts(name, method)
            for layout in layouts:
                found = (
                    functools.partial(_constant, getattr(thing, method))
                    if is_static
                    else functools.partial(_method, name, method, layout)
                )
                called = getattr(thing, method)
                yield _call(f"{name}.{method}", layout, found, called, function, is_static)


def _layouts(owner: str, method: str) -> tuple[str, ...]:
    """Return the buffers of a world that a method is called on."""
    if method in LAYOUT_OF:
        return (LAYOUT_OF[method],)
    layouts = ("rows", "typed") if owner == "ReplayBuffer" else ("typed",)
    if method in WRITING:
        return tuple(f"written_{layout}" for layout in layouts)
    return layouts


def _constant(thing: Any, _: World) -> Any:
    return thing


def _method(owner: str, name: str, layout: str, world: World) -> Any:
    return getattr(SUBJECTS[owner](world, layout), name)


def _is_method(cls: type, name: str) -> bool:
    member = inspect.getattr_static(cls, name)
    function = function_of(member)
    return (
        not name.startswith("_")
        and name not in OF_CLASSES_OF_USERS
        and function is not None
        and not isinstance(member, property)
        and inspect.unwrap(function).__module__.startswith("sqlbuffer")
        and PRIVATE not in (inspect.getdoc(function) or "")
    )


def _call(
    name: str, layout: str, found: Any, called: Any, function: Any, is_bound: bool = True
) -> PublicCall:
    named = _documented_errors(called) | _documented_errors(function)
    parameters = tuple(_parameters(called, function))[0 if is_bound else 1 :]
    return PublicCall(name, layout, found, parameters, frozenset(named))


def _parameters(called: Any, function: Any) -> Iterator[inspect.Parameter]:
    """Yield parameters with their types; those that a `TypedDict` names one by one."""
    module = inspect.getmodule(inspect.unwrap(function))
    names = {name: getattr(sqlbuffer, name) for name in sqlbuffer.__all__} | {"np": np}
    names |= _names_for_types(module)
    for parameter in inspect.signature(called).parameters.values():
        hint = parameter.annotation
        if isinstance(hint, str):
            hint = eval(hint, {**vars(module), **names})
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield parameter.replace(annotation=Any if hint is parameter.empty else hint)
        for settings in typing.get_args(hint):
            if parameter.kind is parameter.VAR_KEYWORD and typing.is_typeddict(settings):
                for name, kind in typing.get_type_hints(settings).items():
                    yield inspect.Parameter(
                        name, parameter.KEYWORD_ONLY, default=None, annotation=kind
                    )


def _names_for_types(module: Any) -> dict[str, Any]:
    """Return what a module of the package imports for type checkers alone."""
    names: dict[str, Any] = {}
    if module is None or not module.__name__.startswith("sqlbuffer"):
        return names
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(ast.unparse(node.body), names)
    return names


def _documented_errors(thing: Any) -> set[str]:
    """Return the errors that a docstring names, and those of the calls that it refers to."""
    text, names = inspect.getdoc(thing) or "", named_errors(thing)
    for owner, method in re.findall(r"`(?:sqlbuffer\.)?([A-Z]\w+)(?:\.(\w+))?`", text):
        other = getattr(sqlbuffer, owner, None)
        if method:
            other = getattr(other, method, None)
        elif f"those of `sqlbuffer.{owner}`" not in text:
            continue
        if other is not None and other is not thing:
            names = names | named_errors(other)
    return names - {"SQLBufferError"}


class HangError(BaseException):
    """A call did not end."""


@contextmanager
def limits() -> Iterator[None]:
    """End calls that hang, and keep them from taking gigabytes."""

    def stop(*_: Any) -> None:
        raise HangError

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, HANG_S)
    resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_BYTES, memory[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, memory)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def is_raised_by_library(error: BaseException) -> bool:
    """Return True if a `raise` in the package made the error, so its message is the package's."""
    place = error.__traceback__
    assert place is not None
    while place.tb_next is not None:
        place = place.tb_next
    path = place.tb_frame.f_code.co_filename
    is_ours = Path(path).is_relative_to(Path(sqlbuffer.__file__).parent)
    return is_ours and place.tb_lineno in _raising_lines(path)


@functools.cache
def _raising_lines(path: str) -> set[int]:
    tree = ast.parse(Path(path).read_text())
    raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return {n for node in raises for n in range(node.lineno, (node.end_lineno or 0) + 1)}
