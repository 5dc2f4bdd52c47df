"""`sqlbuffer.compat.minestudio`: what it costs to fetch chunks, and to add and load fragments.

Beside a plain file, and beside diskcache, which MineStudio keeps its fragments in, where that is
installed: it is called as MineStudio calls it, with the same fragments.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.minestudio import FragmentMetadata, ReplayBufferInterface, SampleFragment
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Timed, Timings, in_turns
from tests.benchmarks.report import Figure, shown_time

AT_ONCE = 4
HELD = 24
MANY, FEW, FETCHED = 4_800, 100, 64
STEPS, SIZE = 128, 144
SHARDS = 8
WORKER = "worker-0"


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield _fetching(bench)
    yield from _transfers(bench)


def _fetching(bench: Bench) -> Figure:
    times, many = bench.scale.times, max(FEW, bench.scale.times(MANY))
    with bench.database() as url, bench.database() as small_url:
        bench.say(f"filling two databases with fragments: {many:,} and {FEW}")
        buffers = {"many": _filled(url, many), "few": _filled(small_url, FEW)}
        timings = in_turns(
            {
                name: Timed(lambda b=buffer: b.fetch_fragments(FETCHED), repeat=times(10))
                for name, buffer in buffers.items()
            },
            times(16),
            warmup=times(2),
        )
        for buffer in buffers.values():
            buffer.close()
    return Figure(
        f"`fetch_fragments({FETCHED})` of {MANY:,} chunks vs of {FEW}",
        bench.label,
        f"{shown_time(timings.median('many'))}, {shown_time(timings.median('few'))}",
        timings.ratio("many", "few"),
        2,
        at_most=True,
    )


def _transfers(bench: Bench) -> Iterator[Figure]:
    fragment, times = _fragment(), bench.scale.times
    n_bytes = _n_bytes(fragment)
    held = max(AT_ONCE, times(HELD))
    with bench.database() as url, tempfile.TemporaryDirectory() as name:
        buffer = _opened(url, held)
        adders = {"ours": _adder(buffer, fragment), "file": _file_adder(Path(name), n_bytes)}
        if (cache := _diskcache(Path(name) / "cache")) is not None:
            adders["peer"] = lambda: _add_to(cache, fragment)
        bench.say(f"adding and loading fragments of {n_bytes / 1e6:.0f} MB")
        ids: dict[str, list[Any]] = {key: [] for key in adders}
        for _ in range(held):
            for key, add in adders.items():
                ids[key].append(add())
        ids["ours"] = [id_ for _, id_ in buffer.fetch_fragments(held)]
        loaders: dict[str, Callable[[Any], Any]] = {
            "ours": buffer.load_fragment,
            "file": lambda path: np.fromfile(path, np.uint8),
            "peer": lambda key: cache[key],
        }
        loading = in_turns(
            {key: Timed(_each(loaders[key], ids[key])) for key in adders}, times(24), warmup=1
        )
        buffer.fetch_fragments(0)  # which nothing is kept for any more
        adding = in_turns(
            {key: Timed(_repeatedly(add)) for key, add in adders.items()}, times(24), warmup=1
        )
        buffer.close()
    yield _transfer(bench, adding, n_bytes, "`add_fragment` of 8 MB vs a plain file with fsync")
    yield _transfer(bench, loading, n_bytes, "`load_fragment` of 8 MB vs a plain file")


def _transfer(bench: Bench, timings: Timings, n_bytes: int, what: str) -> Figure:
    shown = {}
    for name in timings.rounds:
        seconds = timings.median(name) / AT_ONCE
        shown[name] = f"{shown_time(seconds)}, {n_bytes / seconds / 1e6:,.0f} MB/s"
    peer = f"diskcache {shown['peer']}" if "peer" in shown else "diskcache is not installed"
    absolute = f"{shown['ours']}; a file {shown['file']}; {peer}"
    return Figure(what, bench.label, absolute, timings.ratio("file", "ours"))


def _each(load: Callable[[Any], Any], ids: list[Any]) -> Callable[[], None]:
    """Return what loads a few fragments after those of the last time."""
    turn = count()

    def load_some() -> None:
        for _ in range(AT_ONCE):
            assert load(ids[next(turn) % len(ids)]) is not None

    return load_some


def _repeatedly(add: Callable[[], Any]) -> Callable[[], None]:
    def add_some() -> None:
        for _ in range(AT_ONCE):
            add()

    return add_some


def _adder(buffer: ReplayBufferInterface, fragment: SampleFragment) -> Callable[[], None]:
    numbers = count()

    def add() -> None:
        fragment.fid_in_worker = next(numbers)
        buffer.add_fragment(fragment, _metadata(fragment.fid_in_worker))

    return add


def _file_adder(folder: Path, n_bytes: int) -> Callable[[], Path]:
    numbers, content = count(), random_numbers().bytes(n_bytes)

    def add() -> Path:
        # As the buffer does, once it is full, this takes the place of an older one.
        path = folder / str(next(numbers) % (2 * HELD))
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return path

    return add


def _add_to(cache: Any, fragment: SampleFragment) -> int:
    key = len(cache) % (2 * HELD)
    cache[key] = fragment
    return key


def _diskcache(folder: Path) -> Any:
    try:
        from diskcache import FanoutCache
    except ImportError:
        return None
    return FanoutCache(str(folder), shards=SHARDS, eviction_policy="none")


def _filled(url: str, n: int) -> ReplayBufferInterface:
    """Return a buffer that is full of small fragments, which may be fetched without end."""
    buffer, fragment = _opened(url, n), _fragment(steps=4, size=8)
    add = _adder(buffer, fragment)
    for _ in range(n):
        add()
    return buffer


def _opened(url: str, max_chunks: int) -> ReplayBufferInterface:
    ReplayBuffer(url, create=True).close()  # which makes the tables
    config = {
        "max_chunks": max_chunks,
        "max_staleness": 2,
        "max_reuse": 1_000_000,
        "fragments_per_chunk": 1,
        "database_config": {"url": url},
    }
    return ReplayBufferInterface(config)


def _metadata(fid: int) -> FragmentMetadata:
    return FragmentMetadata(model_version=-1, session_id="", worker_uuid=WORKER, fid_in_worker=fid)


def _fragment(steps: int = STEPS, size: int = SIZE) -> SampleFragment:
    """Return a fragment of noise, which is 8 MB unless it is to be smaller."""
    rng = random_numbers()
    return SampleFragment(
        obs={"image": rng.integers(0, 256, (steps, size, size, 3), np.uint8)},
        action={"camera": rng.random((steps, 2)), "buttons": rng.integers(0, 2, (steps, 20))},
        reward=rng.random(steps, np.float32),
        next_done=np.zeros(steps, bool),
        first=np.zeros(steps, bool),
        in_state=[rng.random((1, 128, 64), np.float32) for _ in range(4)],
        next_obs={"image": rng.integers(0, 256, (size, size, 3), np.uint8)},
        episode_uuids=["episode-0"] * steps,
        worker_uuid=WORKER,
        fid_in_worker=0,
    )


def _n_bytes(fragment: SampleFragment) -> int:
    arrays = [
        *fragment.obs.values(),
        *fragment.action.values(),
        *fragment.next_obs.values(),
        *fragment.in_state,
        fragment.reward,
        fragment.next_done,
        fragment.first,
    ]
    return sum(array.nbytes for array in arrays)
