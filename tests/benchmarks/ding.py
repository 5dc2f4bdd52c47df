"""`sqlbuffer.compat.ding` beside DI-engine itself, where that is installed: at a URL, and private.

Both are called the same way, with their defaults: transitions of CartPole, dicts of small arrays.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
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
PRIVATE = "memory, private"
# How many times the time of DI-engine a private buffer may take.
MOST_PUSH, MOST_SAMPLE = 3, 2
# Pushed before the rest in lists so long.
FILLED_BY = 1_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database; with those of SQLite, the figures of private buffers."""
    with bench.database() as url:
        sqlbuffer.ReplayBuffer(url, create=True).close()  # which makes the tables
        yield from _measured(bench, url)
    if bench.kind == "sqlite":
        yield from _measured(bench, None)


def _measured(bench: Bench, url: str | None) -> Iterator[Figure]:
    n_items = bench.scale.times(ITEMS)
    for name in CLASSES:
        with ExitStack() as stack:
            buffers = _opened(name, url, n_items, stack)
            bench.say(f"pushing {n_items:,} items into {name} of {', '.join(buffers)}")
            for buffer in buffers.values():
                for _ in range(0, n_items, FILLED_BY):
                    buffer.push(_items(FILLED_BY), 0)
            for what, calls, rounds, most in _calls(name, buffers):
                timings = in_turns(calls, bench.scale.times(rounds), bench.scale.times(3))
                if url is None:
                    yield _private_figure(what, timings, most)
                else:
                    yield _figure(bench, what, timings)


def _calls(
    name: str, buffers: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Timed], int, float | None]]:
    """Yield what is called, the calls, the number of rounds, and how many times the time of
    DI-engine a private buffer may take.
    """
    cls = name.removesuffix("ReplayBuffer").lower()

    def timed(call: Callable[[Any], Any], repeat: int = 1) -> dict[str, Timed]:
        return {
            who: Timed(lambda buffer=buffer: call(buffer), repeat=repeat)
            for who, buffer in buffers.items()
        }

    def pushed(call: Callable[[Any, Any], Any], repeat: int = 1) -> dict[str, Timed]:
        """Each push brings arrays of its own, as a collector does."""
        return {
            who: Timed(
                lambda new, buffer=buffer: call(buffer, new), lambda: (_items(LIST),), repeat
            )
            for who, buffer in buffers.items()
        }

    def push_list(buffer: Any, new: Any) -> None:
        buffer.push(new, 0)

    def push_each(buffer: Any, new: Any) -> None:
        for item in new:
            buffer.push(item, 0)

    yield f"`push` of a list of {LIST}, {cls}, {NAMES}", pushed(push_list, 5), 20, MOST_PUSH
    yield f"`push` of {LIST} items one by one, {cls}, {NAMES}", pushed(push_each), 20, None
    yield (
        f"`sample({BATCH})`, {cls}, {NAMES}",
        timed(lambda each: each.sample(BATCH, 1), 5),
        20,
        MOST_SAMPLE,
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


def _opened(name: str, url: str | None, n_items: int, stack: ExitStack) -> dict[str, Any]:
    given = {"replay_buffer_size": n_items}
    place = {} if url is None else {"url": url, "name": name}
    ours = getattr(ding, name)({**given, **place}, None, "bench", name)
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


def _figure(bench: Bench, what: str, timings: Timings) -> Figure:
    # No targets: DI-engine keeps references in the memory of one process.
    ratio = timings.ratio("peer", "ours") if "peer" in timings.rounds else None
    return Figure(what, bench.label, _absolute(timings), ratio)


def _private_figure(what: str, timings: Timings, most: float | None) -> Figure:
    what = f"private: {what}"
    if "peer" not in timings.rounds:
        return Figure(what, PRIVATE, _absolute(timings))
    return Figure(
        what, PRIVATE, _absolute(timings), timings.ratio("ours", "peer"), most, at_most=True
    )


def _absolute(timings: Timings) -> str:
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    peer = f"DI-engine {spent['peer']}" if "peer" in spent else "DI-engine is not installed"
    return f"{spent['ours']}, {peer}"
