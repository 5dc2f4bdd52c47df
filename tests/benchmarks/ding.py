"""`sqlbuffer.compat.ding` beside DI-engine itself, where that is installed.

Both are called the same way, with their defaults: transitions of CartPole, dicts of small arrays.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import sqlbuffer
from sqlbuffer.compat import ding
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Timed, Timings, in_turns
from tests.benchmarks.report import Figure, shown_time

ITEMS = 100_000
LIST = 100
BATCH = 64
CLASSES = ("NaiveReplayBuffer", "AdvancedReplayBuffer")
NAMES = "vs DI-engine"
# Pushed before the rest in lists so long.
FILLED_BY = 1_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n_items = bench.scale.times(ITEMS)
    items = _items(min(n_items, FILLED_BY))
    with bench.database() as url, ExitStack() as stack:
        sqlbuffer.ReplayBuffer(url, create=True).close()  # which makes the tables
        for name in CLASSES:
            buffers = _opened(name, url, n_items, stack)
            bench.say(f"pushing {n_items:,} items into {name} of {', '.join(buffers)}")
            for buffer in buffers.values():
                for _ in range(0, n_items, len(items)):
                    buffer.push(_fresh(items), 0)
            for what, calls, rounds, target in _calls(name, buffers, items):
                timings = in_turns(calls, bench.scale.times(rounds), bench.scale.times(3))
                yield _figure(bench, what, timings, target)


def _calls(
    name: str, buffers: dict[str, Any], items: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Timed], int, float | None]]:
    cls = name.removesuffix("ReplayBuffer").lower()

    def timed(call: Callable[[Any], Any], repeat: int = 1) -> dict[str, Timed]:
        return {
            who: Timed(lambda buffer=buffer: call(buffer), repeat=repeat)
            for who, buffer in buffers.items()
        }

    # No targets: DI-engine keeps references in the memory of one process.
    def push_list(buffer: Any) -> None:
        buffer.push(_fresh(items[:LIST]), 0)

    def push_each(buffer: Any) -> None:
        for item in _fresh(items[:LIST]):
            buffer.push(item, 0)

    yield f"`push` of a list of {LIST}, {cls}, {NAMES}", timed(push_list, 5), 20, None
    yield f"`push` of {LIST} items one by one, {cls}, {NAMES}", timed(push_each), 20, None
    yield (
        f"`sample({BATCH})`, {cls}, {NAMES}",
        timed(lambda each: each.sample(BATCH, 1), 5),
        20,
        None,
    )
    if cls == "advanced":
        yield f"`update` of {BATCH}, {cls}, {NAMES}", timed(_updating(buffers), 5), 20, None


def _updating(buffers: dict[str, Any]) -> Callable[[Any], None]:
    batches = {id(buffer): buffer.sample(BATCH, 1) for buffer in buffers.values()}
    keys = ("replay_unique_id", "replay_buffer_idx")
    infos = {
        who: {key: [item[key] for item in batch] for key in keys} for who, batch in batches.items()
    }
    rng = random_numbers()

    def update(buffer: Any) -> None:
        buffer.update({**infos[id(buffer)], "priority": rng.random(BATCH).tolist()})

    return update


def _opened(name: str, url: str, n_items: int, stack: ExitStack) -> dict[str, Any]:
    given = {"replay_buffer_size": n_items}
    ours = getattr(ding, name)({**given, "url": url, "name": name}, None, "bench", name)
    stack.callback(ours.close)
    found = {"ours": ours}
    if (peer := _peer(name)) is not None:
        config = peer.default_config()
        config.update(given)
        stack.enter_context(_elsewhere())
        found["peer"] = peer(config, None, "bench", name)
    return found


def _peer(name: str) -> Any:
    try:
        import ding.worker.replay_buffer as peers
    except ImportError:
        return None
    logging.getLogger().setLevel(logging.ERROR)
    return getattr(peers, name)


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Be in a folder of its own: DI-engine writes logs where it is, now and then."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _fresh(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    # DI-engine writes into what it is given.
    return [dict(item) for item in items]


def _items(n: int) -> list[dict[str, Any]]:
    rng = random_numbers()
    return [
        {
            "obs": rng.standard_normal(4, "f4"),
            "next_obs": rng.standard_normal(4, "f4"),
            "action": rng.integers(2, size=1),
            "reward": np.ones(1, "f4"),
            "done": False,
            "collect_iter": 1,
        }
        for _ in range(n)
    ]


def _figure(bench: Bench, what: str, timings: Timings, target: float | None) -> Figure:
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    if "peer" not in spent:
        return Figure(what, bench.label, f"{spent['ours']}; DI-engine is not installed")
    absolute = f"{spent['ours']}, DI-engine {spent['peer']}"
    return Figure(what, bench.label, absolute, timings.ratio("peer", "ours"), target)
