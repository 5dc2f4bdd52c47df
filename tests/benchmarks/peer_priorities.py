"""Prioritized replay of other buffers, and of ours beside them: a draw by priority, and new
priorities for what was drawn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from sqlbuffer.mirror.buffer_mirror import Mirror
from tests.benchmarks import machine
from tests.benchmarks.arrays import FIELDS
from tests.benchmarks.bench import Bench, Scale, random_numbers
from tests.benchmarks.measure import Timed, Timings, in_turns
from tests.benchmarks.peer_buffers import (
    BATCH,
    EPISODE,
    NOT_INSTALLED,
    Columns,
    name_of,
    transitions,
)
from tests.benchmarks.report import (
    Figure,
    aligned,
    shown_ratio,
    shown_time,
    shown_times,
    table,
)

ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
# How many times as fast as a buffer in memory a mirror has to be.
MIRROR_STEPS = {"cpprb, `PrioritizedReplayBuffer`": 1.2}
HEADER = (
    "Prioritized replay",
    f"{BATCH} by priority, and their new priorities",
    "The draw alone",
    "The new priorities alone",
)


class PrioritizedBuffer(Protocol):
    """What is measured of a buffer whose rows are drawn by priority ^ 0.6.

    Attributes:
        sample: What draws.
        update: What sets priorities.
    """

    sample: str
    update: str

    def fill(self, columns: Columns, n_episodes: int) -> None:
        """Store the same episode n times."""

    def set_priorities(self, first: int, priorities: Any) -> None:
        """Set those of the rows from one on; the first that was stored is row 0."""

    def draw(self) -> Any:
        """Return a batch of 256 rows, with their importance weights."""

    def refresh(self, batch: Any, errors: Any) -> None:
        """Set the priorities of the rows of a batch."""

    def arrays(self, batch: Any) -> dict[str, Any]:
        """Return `obs`, `row` and `weights` of a batch."""


Buffers = Mapping[str, PrioritizedBuffer]


class PrioritizedPeer(NamedTuple):
    """A buffer to measure.

    Attributes:
        name: What the table calls it.
        distribution: What is to be installed.
        open: Makes an empty one, for so many rows.
    """

    name: str
    distribution: str
    open: Callable[[int], PrioritizedBuffer]


class SQLPriorities:
    """sqlbuffer."""

    sample, update = "`sample_arrays`", "`update_priorities`"

    def __init__(self, url: str, capacity: int) -> None:
        self._buffer = ReplayBuffer(
            url, create=True, fields=FIELDS, max_capacity=capacity, priorities=True, alpha=ALPHA
        )
        self._sampler = PrioritizedSampler(beta=BETA)

    def fill(self, columns: Columns, n_episodes: int) -> None:
        kept = {name: values for name, values in columns.items() if name != "done"}
        for _ in range(n_episodes):
            self._buffer.extend({**kept, "terminated": columns["done"]})

    def set_priorities(self, first: int, priorities: Any) -> None:
        seqs = np.arange(first, first + len(priorities)) + 1
        self._buffer.update_priorities(seqs, priorities, EPS)

    def draw(self) -> Any:
        return self._buffer.sample_arrays(BATCH, sampler=self._sampler)

    def refresh(self, batch: Any, errors: Any) -> None:
        self._buffer.update_priorities(batch.seq, errors, EPS)

    def arrays(self, batch: Any) -> dict[str, Any]:
        return {"obs": batch.obs, "row": batch.seq - 1, "weights": batch.weights}

    def close(self) -> None:
        self._buffer.close()


class MirrorPriorities(SQLPriorities):
    """sqlbuffer, drawn from a mirror: new priorities are written to the database later."""

    sample, update = "`mirror.sample_arrays`", "`mirror.update_priorities`"

    def __init__(self, url: str, capacity: int) -> None:
        super().__init__(url, capacity)
        # Open once the buffer is full, and left to itself while it is timed.
        self._mirror: Mirror | None = None

    @property
    def mirror(self) -> Mirror:
        if self._mirror is None:
            self._mirror = self._buffer.mirror(refresh_s=3_600)
        return self._mirror

    def draw(self) -> Any:
        return self.mirror.sample_arrays(BATCH, sampler=self._sampler)

    def refresh(self, batch: Any, errors: Any) -> None:
        self.mirror.update_priorities(batch.seq, errors, EPS)

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        super().close()


class TorchRLPriorities:
    """torchrl.data.TensorDictPrioritizedReplayBuffer in memory."""

    sample, update = "`sample`", "`update_tensordict_priority`"

    def __init__(self, capacity: int) -> None:
        import torch

        # Its sums: a wheel made for another torch comes without them.
        import torchrl._torchrl  # noqa: F401
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        torch.set_num_threads(1)  # as for draws without priorities
        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA,
            beta=BETA,
            eps=EPS,
            storage=LazyTensorStorage(capacity),
            batch_size=BATCH,
            priority_key="td_error",
        )

    def fill(self, columns: Columns, n_episodes: int) -> None:
        from tensordict import TensorDict
        from torch import from_numpy, ones

        n = len(columns["obs"])
        steps = {name: from_numpy(values) for name, values in columns.items()}
        rows = TensorDict({**steps, "td_error": ones(n)}, [n])
        for _ in range(n_episodes):
            self._buffer.extend(rows)

    def set_priorities(self, first: int, priorities: Any) -> None:
        from torch import arange, from_numpy

        rows = arange(first, first + len(priorities))
        self._buffer.update_priority(rows, from_numpy(priorities).float())

    def draw(self) -> Any:
        return self._buffer.sample()

    def refresh(self, batch: Any, errors: Any) -> None:
        from torch import from_numpy

        batch.set("td_error", from_numpy(errors).float())
        self._buffer.update_tensordict_priority(batch)

    def arrays(self, batch: Any) -> dict[str, Any]:
        return {
            "obs": batch["obs"].numpy(),
            "row": batch["index"].numpy().reshape(-1),
            "weights": batch["priority_weight"].numpy(),
        }


class CpprbPriorities:
    """cpprb.PrioritizedReplayBuffer."""

    sample, update = "`sample`", "`update_priorities`"

    def __init__(self, capacity: int) -> None:
        import cpprb

        wide = {name: {"shape": shape, "dtype": np.float32} for name, (_, shape) in FIELDS.items()}
        env = {**wide, "reward": {}, "done": {"dtype": bool}}
        self._buffer = cpprb.PrioritizedReplayBuffer(capacity, env, alpha=ALPHA, eps=EPS)

    def fill(self, columns: Columns, n_episodes: int) -> None:
        for _ in range(n_episodes):
            self._buffer.add(**columns)
            self._buffer.on_episode_end()

    def set_priorities(self, first: int, priorities: Any) -> None:
        self._buffer.update_priorities(np.arange(first, first + len(priorities)), priorities)

    def draw(self) -> Any:
        return self._buffer.sample(BATCH, beta=BETA)

    def refresh(self, batch: Any, errors: Any) -> None:
        self._buffer.update_priorities(batch["indexes"], errors)

    def arrays(self, batch: Any) -> dict[str, Any]:
        return {"obs": batch["obs"], "row": batch["indexes"], "weights": batch["weights"]}


PRIORITIZED = (
    PrioritizedPeer("TorchRL, `TensorDictPrioritizedReplayBuffer`", "torchrl", TorchRLPriorities),
    PrioritizedPeer("cpprb, `PrioritizedReplayBuffer`", "cpprb", CpprbPriorities),
)


def measure(
    benches: Sequence[Bench], peers: Sequence[PrioritizedPeer], say: Callable[[str], None]
) -> str:
    """Return the tables of ours on each database and of the peers that are installed."""
    scale = benches[0].scale
    with ExitStack() as stack:
        buffers: dict[str, PrioritizedBuffer] = {}
        for bench in benches:
            ours = SQLPriorities(stack.enter_context(bench.database()), scale.rows)
            stack.callback(ours.close)
            buffers[name_of(bench)] = ours
            mirrored = MirrorPriorities(stack.enter_context(bench.database()), scale.rows)
            stack.callback(mirrored.close)
            buffers[_mirror_of(bench)] = mirrored
        for peer in peers:
            try:
                buffers[peer.name] = peer.open(scale.rows)
            except ImportError as error:
                say(f"{peer.name}: {NOT_INSTALLED}: {error}")
        for name, buffer in buffers.items():
            say(f"filling {name}, with priorities")
            fill(buffer, scale.rows)
        say("drawing by priority")
        timings = timed(buffers, scale)
    found = [peer for peer in peers if peer.name in buffers]
    names = [*map(name_of, benches), *map(_mirror_of, benches), *(peer.name for peer in peers)]
    parts = [
        machine.facts_beside(benches, [peer.distribution for peer in found]),
        aligned([HEADER, *_lines(names, buffers, timings)]),
    ]
    if found:
        figures = [_figure(bench, found, timings) for bench in benches]
        figures += [line for bench in benches for line in _from_mirror(bench, found, timings)]
        parts.append(table(figures, judged=scale.full))
    return "\n\n".join(parts)


def _mirror_of(bench: Bench) -> str:
    return f"{name_of(bench)}, from a mirror"


def fill(buffer: PrioritizedBuffer, n: int) -> None:
    """Fill a buffer with n rows, give them priorities like those of errors, and check a batch."""
    columns, priorities = transitions(), errors_of(random_numbers(), n)
    buffer.fill(columns, n // EPISODE)
    for first in range(0, n, EPISODE):
        buffer.set_priorities(first, priorities[first : first + EPISODE])
    assert_by_priority(buffer.arrays(buffer.draw()), columns, priorities)
    new = errors_of(random_numbers(1), BATCH)
    batch = buffer.draw()
    rows = buffer.arrays(batch)["row"]
    buffer.refresh(batch, new)
    priorities[rows] = new  # of equal rows the last counts
    assert_by_priority(buffer.arrays(buffer.draw()), columns, priorities)


def errors_of(rng: np.random.Generator, n: int) -> Any:
    return np.abs(rng.standard_normal(n))


def assert_by_priority(batch: Mapping[str, Any], columns: Columns, priorities: Any) -> None:
    """Assert that a batch holds the rows that it says, drawn rather than uniformly by their
    priorities, with their importance weights.
    """
    rows = np.asarray(batch["row"])
    assert rows.shape == (BATCH,)
    np.testing.assert_array_equal(batch["obs"], columns["obs"][rows % EPISODE])
    own = priorities[rows]
    # Of |N(0, 1)| the mean is 0.8; of rows drawn by their 0.6th power it is 1.15.
    assert own.mean() > priorities.mean() + 0.15
    # (N P)^-beta, but for what they are divided by, which is each buffer's own affair.
    constant = np.asarray(batch["weights"], np.float64) * (own + EPS) ** (ALPHA * BETA)
    np.testing.assert_allclose(constant, constant[0], rtol=1e-3)


def timed(buffers: Buffers, scale: Scale) -> Timings:
    """Time a draw and an update together, and each alone."""
    rng = random_numbers(2)

    def step(buffer: PrioritizedBuffer, errors: Any) -> None:
        buffer.refresh(buffer.draw(), errors)

    calls, repeat = {}, scale.times(10)
    for name, buffer in buffers.items():
        calls[f"{name} step"] = Timed(
            step, lambda buffer=buffer: (buffer, errors_of(rng, BATCH)), repeat
        )
        calls[f"{name} draw"] = Timed(buffer.draw, repeat=repeat)
        calls[f"{name} update"] = Timed(
            buffer.refresh, lambda buffer=buffer: (buffer.draw(), errors_of(rng, BATCH)), repeat
        )
    return in_turns(calls, scale.times(16), warmup=scale.times(2))


def _lines(names: Sequence[str], buffers: Buffers, timings: Timings) -> Iterator[tuple[str, ...]]:
    for name in names:
        if (buffer := buffers.get(name)) is None:
            yield (name, NOT_INSTALLED, *[""] * (len(HEADER) - 2))
            continue
        step, draw, update = (
            shown_times(timings.all(f"{name} {call}")) for call in ("step", "draw", "update")
        )
        yield (name, step, f"{draw} {buffer.sample}", f"{update} {buffer.update}")


def _figure(bench: Bench, peers: Sequence[PrioritizedPeer], timings: Timings) -> Figure:
    ours = f"{name_of(bench)} step"
    compared = {peer.name: timings.ratio(f"{peer.name} step", ours) for peer in peers}
    return Figure(
        f"{BATCH} by priority, and their new priorities: times as fast as each peer",
        bench.label,
        "; ".join(f"{name}: {shown_ratio(ratio)}" for name, ratio in compared.items()),
    )


def _from_mirror(
    bench: Bench, peers: Sequence[PrioritizedPeer], timings: Timings
) -> Iterator[Figure]:
    ours = f"{_mirror_of(bench)} step"
    for peer in peers:
        theirs = f"{peer.name} step"
        yield Figure(
            f"{BATCH} by priority from a mirror, and their new priorities: times as fast as "
            f"{peer.name}",
            bench.label,
            f"{shown_time(timings.median(ours))}, {shown_time(timings.median(theirs))}",
            timings.ratio(theirs, ours),
            MIRROR_STEPS.get(peer.name),
        )
