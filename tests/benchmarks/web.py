"""How fast the pages of `sqlbuffer ui` are, and what they cost those who write."""

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.benchmarks import arrays
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.painting import base_of, paint_times
from tests.benchmarks.processes import write_at_once
from tests.benchmarks.report import Figure, shown_rate, shown_time
from tests.benchmarks.writers import extended
from tests.support.storage_hooks import close_pool
from tests.support.web_pages import one_of_each_kind, other_views

STEPS_OF_EPISODE = 10
FIRST_BYTE_S, PAINTED_S = 0.2, 1.0
LARGE_CHARACTERS = 2_000_000
LARGE = "large"
JSON_SHARE = 10  # of the typed episodes; as rows of JSON all of them would take minutes to store
N_BATCHES, N_SHOWN = 100, 5
CLIENTS, CLICK_S = 5, 2.0
WRITERS, BATCH = 2, 64
SECONDS, ROUNDS, REPEATS = 8.0, 6, 5


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n_episodes = max(bench.scale.rows // STEPS_OF_EPISODE, 40)
    with bench.database() as url:
        bench.say(f"{n_episodes:,} episodes of {STEPS_OF_EPISODE} steps")
        fill(url, n_episodes)
        with _server(url) as address:
            yield from _opened(bench, address, n_episodes)
            yield _beside_writers(bench, url, address)


def fill(url: str, n_episodes: int) -> None:
    """Store episodes of typed steps, and a long conversation."""
    rng, n = random_numbers(), STEPS_OF_EPISODE
    with tempfile.TemporaryDirectory(prefix="sqlbuffer-bench-") as folder:
        # One episode a transaction: on a server a copy is ten times faster.
        source = url if url.startswith("sqlite") else f"sqlite:///{folder}/source.db"
        settings: dict[str, Any] = {"fields": arrays.FIELDS, "track_samples": True}
        with ReplayBuffer(source, "arrays", durability="relaxed", **settings) as buffer:
            for number in range(n_episodes):
                columns = {**arrays.steps(rng, n), "reward": rng.normal(size=n)}
                buffer.store_episode(columns, task_id=f"task {number // 4}", model_version=number)
            if source != url:
                with ReplayBuffer(url, "arrays", create=True, **settings) as copy:
                    buffer.copy_to(copy)
        close_pool(source)
    _store_rows(url, max(n_episodes // JSON_SHARE, 40))
    with ReplayBuffer(url, "arrays") as buffer:
        for _ in range(N_BATCHES):
            buffer.sample_arrays(BATCH)
    said = [{"role": "user", "content": "All work. " * (LARGE_CHARACTERS // 10)}]
    with ReplayBuffer(url, "talks") as buffer:
        meta = ExpMeta(LARGE, "chat", "agent", 0, time.time(), episode_id=LARGE)
        buffer.store(DataRow(meta, Experience({}, ["say"], 1.0, messages=said, terminated=True)))
    ReplayBuffer(url, fields=arrays.FIELDS, max_capacity=100_000).close()  # of the writers


def _store_rows(url: str, n_episodes: int) -> None:
    """Store episodes of JSON rows, and draw batches of them."""
    with ReplayBuffer(url, "rows", durability="relaxed", track_samples=True) as buffer:
        for first in range(0, n_episodes, 500):
            buffer.store_batch(
                DataRow(
                    ExpMeta(f"row {n // 4}", "bench", f"agent {n % 9}", step, episode_id=str(n)),
                    Experience({"obs": [step, n]}, [n % 4], float(n % 7), terminated=step == 9),
                )
                for n in range(first, min(first + 500, n_episodes))
                for step in range(STEPS_OF_EPISODE)
            )
        for _ in range(N_BATCHES):
            buffer.sample(BATCH)


@dataclass(frozen=True)
class PageTimes:
    """Seconds until a page was there.

    Attributes:
        path: Its address.
        first_bytes: Until the first byte came, each time.
        whole: Until the last byte came, each time.
    """

    path: str
    first_bytes: list[float]
    whole: list[float]


def times_of(client: httpx.Client, path: str, repeats: int) -> PageTimes:
    """Open a page several times; the first time it is cold, and does not count."""
    found = PageTimes(path, [], [])
    for number in range(repeats + 1):
        started = time.perf_counter()
        with client.stream("GET", path) as response:
            parts = response.iter_raw()
            next(parts, b"")
            first = time.perf_counter() - started
            for _ in parts:
                pass
        if response.status_code != 200:
            raise RuntimeError(f"{path}: {response.status_code}")
        if number:
            found.first_bytes.append(first)
            found.whole.append(time.perf_counter() - started)
    return found


def _opened(bench: Bench, address: str, n_episodes: int) -> Iterator[Figure]:
    repeats = bench.scale.times(REPEATS)
    with _client(address) as client:
        paths = _paths(client)
        bench.say(f"{len(paths)} pages: {' '.join(paths)}")
        first_bytes = {path: times_of(client, path, repeats).first_bytes for path in paths}
        large = _large(client)
        conversation = times_of(client, large, repeats)
    of = f"{n_episodes * STEPS_OF_EPISODE:,} rows"
    what = f"first byte of the slowest page over {FIRST_BYTE_S * 1000:g} ms, {of}"
    yield _slowest(bench, what, first_bytes, FIRST_BYTE_S)
    shown = paths[: bench.scale.times(len(paths))]
    painted = paint_times(address, [*shown, large], repeats)
    if painted:
        yield _slowest(bench, f"paint of the slowest page over 1 s, {of}", painted, PAINTED_S)
    else:
        bench.say("no paint times: pip install '.[integrations]'; apt-get install chromium")
    yield Figure(
        "last byte of a conversation of 2 MB over 1 s",
        bench.label,
        shown_time(median(conversation.whole)),
        ratio_of([each / PAINTED_S for each in conversation.whole]),
        1,
        at_most=True,
    )


def _paths(client: httpx.Client) -> list[str]:
    """Return an address of each kind of page, and of views of typed steps and of JSON rows."""

    def text_of(path: str) -> str:
        return client.get(path).text

    kinds = one_of_each_kind(text_of)
    views = [path for name in ("arrays", "rows") for path in other_views(text_of, name)]
    return list(dict.fromkeys([*kinds, *views]))


def _slowest(bench: Bench, what: str, times: dict[str, list[float]], limit_s: float) -> Figure:
    """Return the figure of the slowest of several pages, which shows the slowest few."""
    order = sorted(times, key=lambda path: median(times[path]), reverse=True)
    shown = "; ".join(f"{path} {shown_time(median(times[path]))}" for path in order[:N_SHOWN])
    ratio = ratio_of([each / limit_s for each in times[order[0]]])
    text = f"{shown}; the slowest of {len(times)}"
    return Figure(what, bench.label, text, ratio, 1, at_most=True)


def _large(client: httpx.Client) -> str:
    """Return the address of the long conversation: the newest episode."""
    question = "SELECT max(id) FROM episodes"
    number = client.get("/sql.csv", params={"q": question}).text.split()[-1]
    return f"/buffers/talks/episodes/{number}"


def _beside_writers(bench: Bench, url: str, address: str) -> Figure:
    """Compare writers with and without people who look."""
    alone: list[float] = []
    beside: list[float] = []
    n_pages: list[int] = []
    seconds = bench.scale.seconds(SECONDS)
    for number in range(bench.scale.times(ROUNDS)):
        bench.say(f"{WRITERS} writers next to {CLIENTS} clients, round {number + 1}")
        order = [(alone, 0), (beside, CLIENTS)]
        for rates, n_clients in order if number % 2 else order[::-1]:
            with clicking(address, n_clients) as clicked:
                written = write_at_once(url, WRITERS, BATCH, seconds=seconds, opened=extended)
            rates.append(sum(one.rows_per_s for one in written))
            n_pages += [len(clicked)] if n_clients else []
    return Figure(
        f"{WRITERS} writers next to {CLIENTS} clients of the page vs alone",
        bench.label,
        f"{shown_rate(median(beside))}, alone {shown_rate(median(alone))}; "
        f"{median(n_pages):g} pages in {seconds:g} s",
        ratio_of([a / b for a, b in zip(beside, alone, strict=True)]),
        0.9,
    )


@contextmanager
def clicking(address: str, n_clients: int) -> Iterator[list[str]]:
    """Open the pages in turn with clients that each click every two seconds, until the end of the
    block; yield the list of what they opened.
    """
    stop, opened = threading.Event(), []

    def click(place: int) -> None:
        stop.wait(place * CLICK_S / n_clients)
        while not stop.is_set():
            path = paths[(len(opened) + place) % len(paths)]
            clients[place].get(path)
            opened.append(path)
            stop.wait(CLICK_S)

    with ExitStack() as stack:
        # A browser that is open has logged in before.
        clients = [stack.enter_context(_client(address)) for _ in range(n_clients)]
        paths = one_of_each_kind(lambda path: clients[0].get(path).text) if clients else []
        threads = [threading.Thread(target=click, args=(place,)) for place in range(n_clients)]
        for thread in threads:
            thread.start()
        try:
            yield opened
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)


@contextmanager
def _client(address: str) -> Iterator[httpx.Client]:
    base = base_of(address)
    with httpx.Client(base_url=base, timeout=60, follow_redirects=True) as client:
        client.get(address)
        yield client


@contextmanager
def _server(url: str) -> Iterator[str]:
    """Run `sqlbuffer ui` for a database; yield the address that it prints, with its token."""
    command = [Path(sys.executable).with_name("sqlbuffer"), "ui", url, "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
