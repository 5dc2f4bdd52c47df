"""Measure other replay buffers beside this one on the same transitions, those that are installed:
`python -m tests.benchmarks.peers --help`.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import machine, peer_priorities
from tests.benchmarks.arrays import APPENDS_PER_S
from tests.benchmarks.bench import FULL_ROWS, Bench, Scale
from tests.benchmarks.measure import Timed, Timings, in_turns, ratio_of
from tests.benchmarks.peer_buffers import (
    BATCH,
    EPISODE,
    FROM_MIRROR,
    GAMMA,
    N_STEP,
    NOT_INSTALLED,
    Columns,
    Cpprb,
    Draws,
    Memmap,
    PeerBuffer,
    SQLBuffer,
    TorchRL,
    name_of,
    transitions,
)
from tests.benchmarks.peer_priorities import PRIORITIZED, PrioritizedPeer
from tests.benchmarks.peer_reverb import Reverb
from tests.benchmarks.report import (
    Figure,
    aligned,
    shown_ratio,
    shown_time,
    shown_times,
    table,
    write_between_markers,
)
from tests.support.markdown import ROOT
from tests.support.postgres import PostgresServer, running_server

DOCUMENT = ROOT / "docs" / "contributing" / "benchmarks.md"
KINDS = ("sqlite", "postgresql")
# Each section has its own place in the document.
SECTIONS = ("replay", "priorities")
BEGIN, END = "<!-- begin peers -->", "<!-- end peers -->"
BEGIN_PRIORITIES, END_PRIORITIES = (
    "<!-- begin prioritized peers -->",
    "<!-- end prioritized peers -->",
)
HEADER = (
    "Buffer",
    "One step at a time, each",
    "One step until it outlives the process",
    f"{EPISODE:,} steps in one call",
    f"{BATCH} at random",
    f"{BATCH} at random, {N_STEP}-step",
    "After `kill -9`",
)
OURS = "every step that a call returned for, but for those appended in the last `flush_s`"
EPISODES_A_ROUND = 5
DRAWS = 30
# How many times as fast as a buffer in memory draws from a mirror have to be.
MIRROR_DRAWS = {"cpprb": 2.5, "TorchRL, `LazyMemmapStorage`": 6.0}
MIRROR_N_STEP = {"cpprb": 1.2}


@dataclass(frozen=True)
class Peer:
    """A buffer to measure.

    Attributes:
        name: What the table calls it.
        distribution: What is to be installed.
        open: Makes an empty one in a folder, for so many steps.
        kept: What is left of it after kill -9.
    """

    name: str
    distribution: str
    open: Callable[[Path, int], PeerBuffer]
    kept: str


PEERS = (
    Peer(
        "TorchRL, `LazyTensorStorage`",
        "torchrl",
        partial(TorchRL, "LazyTensorStorage"),
        "what the last `dumps` saved",
    ),
    Peer(
        "TorchRL, `LazyMemmapStorage`",
        "torchrl",
        partial(TorchRL, "LazyMemmapStorage"),
        "what the last `dumps` saved; of later steps the arrays, but not which of them are valid",
    ),
    Peer("cpprb", "cpprb", Cpprb, "what the last `save_transitions` saved"),
    Peer(
        "dm-reverb, server in this process",
        "dm-reverb",
        partial(Reverb, True),
        "what the last `checkpoint` saved",
    ),
    Peer(
        "dm-reverb, server of its own",
        "dm-reverb",
        partial(Reverb, False),
        "everything, if a client dies; if the server dies, what the last `checkpoint` saved",
    ),
    Peer(
        "memmap-replay-buffer",
        "memmap-replay-buffer",
        Memmap,
        "every step; after a power cut those before the last `flush`",
    ),
)
REVERB = "dm-reverb"


@dataclass(frozen=True)
class Measured:
    """What the buffers took, by name: of the draws, by name and what drew."""

    one: Timings
    lasting: Timings
    many: Timings
    draws: Timings
    n_step: Timings


def main(
    arguments: Sequence[str] | None = None,
    server: PostgresServer | None = None,
    peers: Sequence[Peer] = PEERS,
    prioritized: Sequence[PrioritizedPeer] = PRIORITIZED,
) -> None:
    """Run what the arguments name; on a server of the caller if given."""
    options, started = _options(arguments), time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {what}", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        if server is None and "postgresql" in options.database:
            server = stack.enter_context(running_server())
        benches = [
            Bench(kind, Scale(options.rows), server if kind == "postgresql" else None, None, say)
            for kind in options.database
        ]
        texts = []
        if "replay" in options.section:
            texts.append((_replay(benches, peers, say), BEGIN, END))
        if "priorities" in options.section:
            text = peer_priorities.measure(benches, prioritized, say)
            texts.append((text, BEGIN_PRIORITIES, END_PRIORITIES))
    print("\n\n".join(text for text, _, _ in texts))
    if options.write:
        for text, first, last in texts:
            write_between_markers(options.write, text, first, last)


def _replay(benches: Sequence[Bench], peers: Sequence[Peer], say: Callable[[str], None]) -> str:
    scale = benches[0].scale
    with ExitStack() as stack:
        buffers: dict[str, PeerBuffer] = {
            name_of(bench): _opened(stack, bench, scale.rows) for bench in benches
        }
        for peer in peers:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-")))
            try:
                buffers[peer.name] = peer.open(folder, scale.rows)
            except ImportError as error:
                say(f"{peer.name}: {NOT_INSTALLED}: {error}")
                continue
            stack.callback(buffers[peer.name].close)
        columns = transitions()
        for name, buffer in buffers.items():
            say(f"filling {name}")
            buffer.fill(columns, scale.rows // EPISODE)
            _check(buffer, columns)
        measured = _measure(buffers, columns, scale, say)
        return "\n\n".join(_sections(benches, peers, buffers, measured))


def _opened(stack: ExitStack, bench: Bench, capacity: int) -> SQLBuffer:
    buffer = SQLBuffer(stack.enter_context(bench.database()), capacity)
    stack.callback(buffer.close)
    return buffer


def _check(buffer: PeerBuffer, columns: Columns) -> None:
    """Draw once each way and see that those are transitions that were stored."""
    for draw in buffer.draws.values():
        assert_stored(buffer.arrays(next(draw(1))), columns, 1)
    for draw in buffer.n_step_draws.values():
        assert_stored(buffer.arrays(next(draw(1))), columns, N_STEP)


def assert_stored(batch: dict[str, Any], columns: Columns, n_step: int) -> None:
    """Assert that a batch holds n-step transitions of the episode; how those shorter than n at
    its end look is each buffer's own affair.
    """
    places = {row.tobytes(): t for t, row in enumerate(columns["obs"])}
    drawn = np.array([places[row.tobytes()] for row in np.asarray(batch["obs"])])
    assert drawn.shape == (BATCH,)
    whole = drawn < EPISODE - n_step
    t = drawn[whole]
    discounts = GAMMA ** np.arange(n_step)
    rewards = columns["reward"][t[:, None] + np.arange(n_step)] @ discounts
    np.testing.assert_array_equal(batch["action"][whole], columns["action"][t])
    np.testing.assert_array_equal(batch["next_obs"][whole], columns["next_obs"][t + n_step - 1])
    np.testing.assert_allclose(batch["reward"][whole], rewards, rtol=1e-5)


def _measure(
    buffers: dict[str, PeerBuffer], columns: Columns, scale: Scale, say: Callable[[str], None]
) -> Measured:
    say("drawing at random")
    draws = _drawn(scale, {name: buffer.draws for name, buffer in buffers.items()})
    say(f"drawing {N_STEP} steps")
    n_step = _drawn(scale, {name: buffer.n_step_draws for name, buffer in buffers.items()})
    say(f"storing {EPISODE:,} steps in one call")
    extends = {
        name: Timed(buffer.extend, lambda buffer=buffer: (buffer.prepared(columns),))
        for name, buffer in buffers.items()
    }
    many = in_turns(extends, _rounds(scale, 30), warmup=1)
    say("storing one step at a time")
    steps = {name: buffer.prepared_steps(columns) for name, buffer in buffers.items()}
    n = _rounds(scale, EPISODES_A_ROUND)
    writes = {
        name: Timed(buffer.write, lambda name=name: ([steps[name]] * n,))
        for name, buffer in buffers.items()
    }
    one = in_turns(writes, _rounds(scale, 8), warmup=1)
    say("storing one step until it outlives the process")
    stores = {
        f"{name} {call}": Timed(store, lambda name=name: (steps[name][0],))
        for name, buffer in buffers.items()
        for call, store in buffer.lasting.items()
    }
    lasting = in_turns(stores, _rounds(scale, 5), warmup=0)
    return Measured(_divided(one, n * EPISODE), lasting, many, draws, n_step)


def _drawn(scale: Scale, draws: dict[str, dict[str, Draws]]) -> Timings:
    """Time draws by buffer and call: many after the other, since some buffers fetch ahead."""
    n = min(DRAWS, scale.rows // EPISODE)

    def begun(draw: Draws) -> tuple[Iterator[Any]]:
        batches = draw(n + 1)
        next(batches)
        return (batches,)

    def go_on(batches: Iterator[Any]) -> None:
        for _ in range(n):  # and not to the end: closing a dataset of dm-reverb takes up to 200 ms
            next(batches)

    calls = {
        f"{name} {call}": Timed(go_on, partial(begun, draw))
        for name, found in draws.items()
        for call, draw in found.items()
    }
    return _divided(in_turns(calls, _rounds(scale, 12), warmup=1), n)


def _rounds(scale: Scale, n: int) -> int:
    """Return how many rounds there are where a run of more than a hundred thousand rows has n."""
    return min(n, max(1, scale.rows // 10_000))


def _divided(timings: Timings, n: int) -> Timings:
    """Return the times of single calls, of n of which each time was."""
    return Timings(
        {
            name: [[seconds / n for seconds in one_round] for one_round in rounds]
            for name, rounds in timings.rounds.items()
        }
    )


def _sections(
    benches: Sequence[Bench],
    peers: Sequence[Peer],
    buffers: dict[str, PeerBuffer],
    measured: Measured,
) -> Iterator[str]:
    yield machine.facts_beside(
        benches, [peer.distribution for peer in peers if peer.name in buffers]
    )
    lines = [_line(name_of(bench), OURS, buffers, measured) for bench in benches]
    lines += [_line(peer.name, peer.kept, buffers, measured) for peer in peers]
    yield aligned([HEADER, *lines])
    figures = [figure for bench in benches for figure in _figures(bench, buffers, measured)]
    order = list(dict.fromkeys(figure.what for figure in figures))
    figures.sort(key=lambda figure: order.index(figure.what))
    yield table(figures, judged=benches[0].scale.full)


def _line(
    name: str, kept: str, buffers: dict[str, PeerBuffer], measured: Measured
) -> tuple[str, ...]:
    buffer = buffers.get(name)
    if buffer is None:
        return (name, NOT_INSTALLED, *[""] * (len(HEADER) - 2))

    def cell(timings: Timings, call: str, key: str = name) -> str:
        return f"{shown_times(timings.all(key))} {call}"

    def each(timings: Timings, calls: Sequence[str]) -> str:
        return "; ".join(cell(timings, call, f"{name} {call}") for call in calls)

    return (
        name,
        cell(measured.one, buffer.one),
        each(measured.lasting, list(buffer.lasting)),
        cell(measured.many, buffer.many),
        each(measured.draws, list(buffer.draws)),
        each(measured.n_step, list(buffer.n_step_draws)),
        kept,
    )


def _figures(bench: Bench, buffers: dict[str, PeerBuffer], measured: Measured) -> Iterator[Figure]:
    ours = name_of(bench)
    others = [name for name in buffers if not name.startswith("sqlbuffer, ")]

    def keys(kind: str) -> dict[str, str]:
        return {
            name: f"{name} {next(iter(getattr(buffer, kind)))}" for name, buffer in buffers.items()
        }

    draws = keys("draws")
    for name in others:
        if name.startswith(REVERB):
            yield Figure(
                f"`sample_arrays({BATCH})`: times faster than the `TrajectoryDataset` of {name}",
                bench.label,
                f"{shown_time(measured.draws.median(draws[ours]))}, "
                f"{shown_time(measured.draws.median(draws[name]))}",
                measured.draws.ratio(draws[name], draws[ours]),
                4,
            )
    yield from _from_mirror(bench, others, keys, measured)
    rates = {name: 1 / measured.one.median(name) for name in buffers}
    beside = [name for name in others if not name.startswith((REVERB, "cpprb"))]
    yield Figure(
        f"`append` of one step after the other: steps a second over {APPENDS_PER_S:,}",
        bench.label,
        "; ".join(f"{name}: {round(rates[name], -2):,.0f} steps/s" for name in [ours, *beside]),
        ratio_of([1 / spent / APPENDS_PER_S for spent in measured.one.all(ours)]),
        1,
    )
    for what, timings, names in (
        ("one step at a time", measured.one, {name: name for name in buffers}),
        (f"{EPISODE:,} steps in one call", measured.many, {name: name for name in buffers}),
        (f"{BATCH} at random", measured.draws, draws),
        (f"{BATCH} at random, {N_STEP}-step", measured.n_step, keys("n_step_draws")),
    ):
        if others:
            yield Figure(
                f"{what}: times as fast as each peer",
                bench.label,
                "; ".join(
                    f"{name}: {shown_ratio(timings.ratio(names[name], names[ours]))}"
                    for name in others
                ),
            )


def _from_mirror(
    bench: Bench,
    others: Sequence[str],
    keys: Callable[[str], dict[str, str]],
    measured: Measured,
) -> Iterator[Figure]:
    """Yield how draws from a mirror compare to those of the buffers in memory."""
    ours = f"{name_of(bench)} {FROM_MIRROR}"
    for call, timings, kind, targets in (
        (f"sample_arrays({BATCH})", measured.draws, "draws", MIRROR_DRAWS),
        (f"sample_transitions({BATCH}, n_step={N_STEP})", measured.n_step, "n_step_draws",
         MIRROR_N_STEP),
    ):  # fmt: skip
        theirs = keys(kind)
        for name in others:
            if name in targets:
                yield Figure(
                    f"`mirror.{call}`: times as fast as {name}",
                    bench.label,
                    f"{shown_time(timings.median(ours))}, "
                    f"{shown_time(timings.median(theirs[name]))}",
                    timings.ratio(theirs[name], ours),
                    targets[name],
                )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument(
        "--rows",
        type=_rows,
        default=FULL_ROWS,
        help="transitions in each buffer, a multiple of 1,000 (default: %(default)s)",
    )
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--database", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=DOCUMENT,
        metavar="FILE",
        help="put the tables between their markers of a document, and into the JSON next to it "
        "(docs/contributing/benchmarks.md)",
    )
    return parser.parse_args(arguments)


def _rows(text: str) -> int:
    n = int(text)
    if n < EPISODE or n % EPISODE:
        raise argparse.ArgumentTypeError(f"{text} is no positive multiple of {EPISODE}")
    return n


if __name__ == "__main__":
    main()
