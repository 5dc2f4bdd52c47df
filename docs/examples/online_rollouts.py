"""Online training as MineStudio does it: rollout workers, a trainer of two ranks that is killed.

    python docs/examples/online_rollouts.py --url sqlite:///online.db

There is no model in it. Four workers roll out with the newest weights and add fragments at
different speeds. One of them discards steps, and one keeps its weights until they are too old. Rank
0 of the trainer fetches, both ranks read their share, and rank 0 publishes the next weights. The
trainer is killed twice, when half of its fragments are read. The second trainer continues with
these fragments in the same session; the third starts a new session. Every process writes a ledger
of its actions. At the end the program checks the rules of the buffer against the ledgers.
"""

import argparse
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import numpy as np

from sqlbuffer.compat.minestudio import FragmentMetadata, ReplayBufferInterface, SampleFragment

CHUNK = 2  # fragments of a chunk
CHUNKS = 12  # at most
REUSE = 2  # fetches of a chunk, at most
STALENESS = 2  # versions
FETCHED = 8  # fragments
RANKS = 2
STEPS = 8  # of a fragment
PAUSES = {"fast": 0.002, "steady": 0.006, "gaps": 0.006, "late": 0.01}  # seconds of a rollout
AT_LEAST = 12  # fragments of each worker
PATIENCE_S = 60.0

Entry = dict[str, Any]
Chosen = list[list[Any]]  # worker, fid and id of each fragment


def config(url: str) -> dict[str, Any]:
    return {
        "max_chunks": CHUNKS,
        "max_reuse": REUSE,
        "max_staleness": STALENESS,
        "fragments_per_chunk": CHUNK,
        "database_config": {"url": url},
    }


class Ledger:
    """The actions of one process, one a line, each written when it is done."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.jsonl"

    def note(self, event: str, **values: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")


def ledgers(folder: Path) -> dict[str, list[Entry]]:
    """Return the entries of all processes by event, those of one process in their order."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            found[entry["event"]].append(entry)
    return found


def publish(folder: Path, session: str, version: int) -> None:
    """Write new weights for the workers."""
    file = folder / "weights.new"
    file.write_text(json.dumps([session, version]))
    file.replace(folder / "weights.json")


def weights(folder: Path) -> tuple[str, int]:
    try:
        session, version = json.loads((folder / "weights.json").read_text())
    except FileNotFoundError:
        return "", -1  # the session and version of a new buffer
    return session, version


def fragment(worker: str, fid: int) -> SampleFragment:
    """Return the fragment of a worker with this number; it is always the same."""
    rng = np.random.default_rng([*worker.encode(), fid])
    return SampleFragment(
        obs={"image": rng.integers(0, 256, (STEPS, 16, 16, 3), np.uint8)},
        action={"camera": rng.random((STEPS, 2)), "buttons": rng.integers(0, 2, (STEPS, 20))},
        reward=rng.random(STEPS, np.float32),
        next_done=np.arange(STEPS) == STEPS - 1,
        first=np.arange(STEPS) == 0,
        in_state=[rng.random((1, 32), np.float32)],
        next_obs={"image": rng.integers(0, 256, (16, 16, 3), np.uint8)},
        episode_uuids=[f"{worker}-{fid}"] * STEPS,
        worker_uuid=worker,
        fid_in_worker=fid,
    )


def is_whole(found: SampleFragment) -> bool:
    """Return True if a fragment that was read is equal to the one that its worker stored."""
    stored = fragment(found.worker_uuid, found.fid_in_worker)
    return (
        np.array_equal(found.obs["image"], stored.obs["image"])
        and np.array_equal(found.action["camera"], stored.action["camera"])
        and np.array_equal(found.reward, stored.reward)
        and np.array_equal(found.in_state[0], stored.in_state[0])
        and found.episode_uuids == stored.episode_uuids
    )


def roll_out(url: str, folder: Path, worker: str, stop: Event) -> None:
    """Add fragments until the run is over."""
    if worker == "gaps":
        logging.getLogger("sqlbuffer").setLevel(logging.ERROR)  # each gap logs a warning
    buffer, ledger = ReplayBufferInterface(url=url), Ledger(folder, worker)
    fid = 0
    while fid < AT_LEAST or not stop.is_set():
        session, version = weights(folder)
        time.sleep(PAUSES[worker])
        late = worker == "late" and fid % 4 == 1
        if late:
            wait_for_others(folder, session, version, stop)
        metadata = FragmentMetadata(version, session, worker, fid)
        buffer.add_fragment(fragment(worker, fid), metadata)
        ledger.note("added", worker=worker, fid=fid, session=session, version=version, late=late)
        fid += 1
        if worker == "gaps" and fid % 4 == 3:
            fid += 1  # a missing number says that steps were discarded


def wait_for_others(folder: Path, session: str, version: int, stop: Event) -> None:
    """Wait until the weights of this version are too old."""
    while not stop.is_set():
        newest = weights(folder)
        if newest[0] != session or newest[1] > version + STALENESS:
            break
        time.sleep(0.002)


def train(
    url: str,
    folder: Path,
    life: int,
    rank: int,
    together: Barrier,
    session: str,
    n_fetches: int,
    dies: bool,
) -> None:
    """Train in a session as one rank, for `n_fetches` fetches; or die in the middle of the last."""
    buffer, ledger = ReplayBufferInterface(url=url), Ledger(folder, f"trainer-{life}-{rank}")
    found = weights(folder)
    resumes = found[0] == session
    version = found[1] if resumes else 1
    if rank == 0:
        publish(folder, session, version)
        buffer.update_model_version(session, version)
    for number in range(n_fetches):
        name = f"{life}/{number}"
        if rank == 0:
            # Train first on the fragments that a dead trainer had prepared.
            goes_on = resumes and number == 0
            chosen = buffer.prepared_fragments() if goes_on else fetched(buffer)
            event = "resumed" if goes_on else "fetched"
            ledger.note(event, fetch=name, session=session, version=version, chosen=plain(chosen))
        together.wait(PATIENCE_S)
        prepared = buffer.prepared_fragments()
        ledger.note("prepared", fetch=name, rank=rank, chosen=plain(prepared))
        share = prepared[rank::RANKS]
        for i, (index, fragment_id) in enumerate(share):
            if dies and number == n_fetches - 1 and i == len(share) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            read = buffer.load_fragment(fragment_id)
            as_stored = read.index == index and is_whole(read)
            ledger.note("read", fetch=name, id=fragment_id, as_stored=as_stored)
        together.wait(PATIENCE_S)
        if rank == 0:
            version += 1
            publish(folder, session, version)
            buffer.update_model_version(session, version)


def fetched(buffer: ReplayBufferInterface) -> list[Any]:
    return buffer.fetch_fragments(FETCHED, timeout=PATIENCE_S)


def plain(chosen: Iterable[Any]) -> Chosen:
    return [[index.worker_uuid, index.fid_in_worker, id_] for index, id_ in chosen]


def overflow(buffer: ReplayBufferInterface, folder: Path) -> None:
    """Add more chunks than the buffer holds, and fetch all that are left, the newest ones."""
    session, version = weights(folder)
    ledger, n = Ledger(folder, "overflow"), CHUNK * (2 * CHUNKS + 1)
    for fid in range(n):
        metadata = FragmentMetadata(version, session, "last", fid)
        buffer.add_fragment(fragment("last", fid), metadata)
        ledger.note("added", worker="last", fid=fid, session=session, version=version, late=False)
    chosen = plain(buffer.fetch_fragments(CHUNK * CHUNKS, timeout=PATIENCE_S))
    ledger.note("fetched", fetch="overflow", session=session, version=version, chosen=chosen)
    newest = [["last", fid] for fid in range(n - CHUNK * CHUNKS, n)]
    ledger.note("held", expected=newest, found=sorted(one[:2] for one in chosen))


def broken_rules(ledgers: Mapping[str, list[Entry]]) -> dict[str, list[str]]:
    """Return for each rule where the ledgers break it: empty lists where they do not."""
    by_kind = defaultdict(list, ledgers)
    fetches = all_fetches(by_kind)
    return {
        "every trainer was killed as planned or has ended": [
            f"trainer {entry['trainer']} ended with {entry['codes']}" for entry in by_kind["failed"]
        ],
        "whole chunks of consecutive fragments of one worker": list(not_chunks(fetches)),
        f"no chunk in more than {REUSE} fetches or twice in one": list(overused(fetches)),
        "nothing stale and nothing of another session": list(unfit(fetches, by_kind["added"])),
        "one id for each fragment and one fragment for each id": list(twice(fetches)),
        "every rank has the same list": list(unlike(by_kind)),
        "every prepared fragment can be read, and is as it was stored": [
            f"{entry['id']} of fetch {entry['fetch']}"
            for entry in by_kind["read"]
            if not entry["as_stored"]
        ],
        "the buffer keeps the newest when there are too many": [
            f"{entry['found']} instead of {entry['expected']}"
            for entry in by_kind["held"]
            if entry["found"] != entry["expected"]
        ],
    }


def all_fetches(by_kind: dict[str, list[Entry]]) -> list[Entry]:
    """Return all fetches, and those that a trainer died too early to note."""
    noted = [entry["chosen"] for entry in by_kind["fetched"]]
    lost = [entry for entry in by_kind["resumed"] if entry["chosen"] not in noted]
    return by_kind["fetched"] + lost


def chunks(fetch: Entry) -> Iterator[Chosen]:
    """Yield the fragments of each chunk of a fetch."""
    for start in range(0, len(fetch["chosen"]), CHUNK):
        yield fetch["chosen"][start : start + CHUNK]


def not_chunks(fetches: list[Entry]) -> Iterator[str]:
    for fetch in fetches:
        for chunk in chunks(fetch):
            (worker, first, _), *_ = chunk
            if [one[:2] for one in chunk] != [[worker, first + i] for i in range(CHUNK)]:
                yield f"{chunk} of fetch {fetch['fetch']}"


def overused(fetches: list[Entry]) -> Iterator[str]:
    for chunk, n in Counter(str(chunk) for fetch in fetches for chunk in chunks(fetch)).items():
        if n > REUSE:
            yield f"{chunk}: {n} times"
    for fetch in fetches:
        ids = [id_ for *_, id_ in fetch["chosen"]]
        if len(set(ids)) < len(ids):
            yield f"fetch {fetch['fetch']} has one of them twice"


def unfit(fetches: list[Entry], added: list[Entry]) -> Iterator[str]:
    made = {(entry["worker"], entry["fid"]): entry for entry in added}
    for fetch in fetches:
        for worker, fid, _ in fetch["chosen"]:
            entry = made.get((worker, fid))
            if entry is None:
                yield f"{worker} {fid} of fetch {fetch['fetch']} was never added"
            elif entry["session"] != fetch["session"]:
                yield f"{worker} {fid} of fetch {fetch['fetch']} is of {entry['session']!r}"
            elif fetch["version"] - entry["version"] > STALENESS:
                yield f"{worker} {fid} of version {entry['version']} at {fetch['version']}"


def twice(fetches: list[Entry]) -> Iterator[str]:
    pairs = {(worker, fid, id_) for fetch in fetches for worker, fid, id_ in fetch["chosen"]}
    for what, n in Counter((worker, fid) for worker, fid, _ in pairs).items():
        if n > 1:
            yield f"{what} has {n} ids"
    for what, n in Counter(id_ for *_, id_ in pairs).items():
        if n > 1:
            yield f"{what} is {n} fragments"


def unlike(by_kind: dict[str, list[Entry]]) -> Iterator[str]:
    """Yield the fetches for which a rank had a different list."""
    for fetch in by_kind["fetched"] + by_kind["resumed"]:
        lists = [e["chosen"] for e in by_kind["prepared"] if e["fetch"] == fetch["fetch"]]
        if any(found != fetch["chosen"] for found in lists):
            yield f"fetch {fetch['fetch']}"


@contextmanager
def trainer(
    url: str, folder: Path, life: int, session: str, n_fetches: int, dies: bool = False
) -> Iterator[list[BaseProcess]]:
    """Run all ranks of a trainer; kill those that still run at the end of the block."""
    together = multiprocessing.Barrier(RANKS)
    arguments = (together, session, n_fetches, dies)
    ranks: list[BaseProcess] = [
        multiprocessing.Process(target=train, args=(url, folder, life, rank, *arguments))
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()


def ended(processes: list[BaseProcess]) -> set[int | None]:
    """Wait for processes to end, and return their exit codes."""
    for process in processes:
        process.join()
    return {process.exitcode for process in processes}


@contextmanager
def rollouts(url: str, folder: Path) -> Iterator[None]:
    """Let the workers add fragments during the block."""
    stop = multiprocessing.Event()
    workers: list[BaseProcess] = [
        multiprocessing.Process(target=roll_out, args=(url, folder, worker, stop))
        for worker in PAUSES
    ]
    for process in workers:
        process.start()
    try:
        yield
    finally:
        stop.set()
        if ended(workers) != {0}:
            raise SystemExit("a worker failed")


def run(url: str, folder: Path, n_fetches: int) -> dict[str, list[Entry]]:
    """Train with three trainers, one after the other, and return the ledgers of all processes."""
    buffer, ledger = ReplayBufferInterface({**config(url), "clear": True}), Ledger(folder, "run")
    with rollouts(url, folder):
        lives = [("run-1", True), ("run-1", True), ("run-2", False)]
        for life, (session, dies) in enumerate(lives):
            with trainer(url, folder, life, session, n_fetches, dies) as ranks:
                codes = ended(ranks)
            end = "killed while both ranks read" if dies else "done"
            if codes != {-signal.SIGKILL if dies else 0}:
                end = f"FAILED with exit codes {codes}"
                ledger.note("failed", trainer=life, codes=sorted(map(str, codes)))
            print(f"{session}: trained on {n_fetches} times {FETCHED} fragments, {end}", flush=True)
    overflow(buffer, folder)
    return ledgers(folder)


def summary(by_kind: dict[str, list[Entry]]) -> int:
    """Print which rules were kept, and return the exit code."""
    workers = {entry["worker"] for entry in by_kind["added"]}
    print(f"{len(by_kind['fetched'])} fetches of fragments of {len(workers)} workers")
    print(f"{len(by_kind['read'])} fragments read by {RANKS} ranks")
    broken = broken_rules(by_kind)
    for rule, exceptions in broken.items():
        print(f"{'BROKEN' if exceptions else 'kept'}: {rule}")
        for exception in exceptions[:3]:
            print(f"  {exception}")
    return int(any(broken.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="sqlite:///online.db", help="of the database")
    parser.add_argument("--fetches", type=int, default=6, help="of each trainer")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        return summary(run(args.url, Path(name), args.fetches))


if __name__ == "__main__":
    sys.exit(main())
