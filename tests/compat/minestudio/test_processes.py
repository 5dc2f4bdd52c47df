"""Several workers, trainers and versions at once, on one buffer."""

import threading
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import event

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.minestudio import (
    FetchTimeoutError,
    FragmentAssertionError,
    ReplayBufferInterface,
    chunks,
    interface,
)
from sqlbuffer.errors import StorageFullError
from tests.compat.minestudio.conftest import CONFIG, Make
from tests.compat.minestudio.fragments import chunks_of, indices, live_in_pool, send, send_all
from tests.conftest import MakeDatabaseUrl
from tests.support.processes import run_at_once
from tests.support.proxy import proxied
from tests.support.sql import run, scalar
from tests.support.storage_hooks import engine_of

N_FRAGMENTS = 30
PER_CHUNK = 2
MAX_REUSE = 2
RULES = {
    **CONFIG, "max_chunks": 6, "max_reuse": MAX_REUSE, "fragments_per_chunk": PER_CHUNK,
    "max_staleness": 2,
}  # fmt: skip


def work(url: str, worker: str) -> None:
    """Send fragments of the version now."""
    with ReplayBufferInterface(url=url) as buffer:
        for fid in range(N_FRAGMENTS):
            version = int(buffer.stats()["replay_buffer/model_version"])
            send(buffer, worker, fid, version, "s")


def train(url: str, consumer: str, publishes: bool) -> list[list[tuple[str, int]]]:
    """Fetch until nothing comes any more; return what was fetched, all of it loaded."""
    fetched = []
    with ReplayBufferInterface(url=url) as buffer:
        for version in range(1, 100):
            try:
                found = buffer.fetch_fragments(2 * PER_CHUNK, timeout=1.0, consumer=consumer)
            except FetchTimeoutError:
                return fetched
            assert buffer.prepared_fragments(consumer) == found
            for index, id_ in found:
                assert buffer.load_fragment(id_).index == index
            fetched.append(indices(found))
            if publishes and version % 4 == 0:
                buffer.update_model_version("s", version // 4)
    raise AssertionError("more than there was")


@pytest.mark.thorough
def test_the_rules_hold_with_many_processes_at_once(buffer_url: str) -> None:
    with ReplayBufferInterface(RULES, url=buffer_url) as buffer:
        buffer.update_model_version("s", 0)
        workers = [(work, buffer_url, f"w{i}") for i in range(3)]
        trainers = [(train, buffer_url, "a", True), (train, buffer_url, "b", False)]
        fetched = [each for found in run_at_once([*workers, *trainers])[3:] for each in found]
        stats = {k.removeprefix("replay_buffer/"): v for k, v in buffer.stats().items()}
        buffer.fetch_fragments(0)  # deletes what others, who did not wait, may have left
    uses: Counter[tuple[tuple[str, int], ...]] = Counter()
    for each in fetched:
        first, second = tuple(each[:PER_CHUNK]), tuple(each[PER_CHUNK:])
        assert first != second
        for chunk in (first, second):
            assert len({worker for worker, _ in chunk}) == 1
            assert [fid - chunk[0][1] for _, fid in chunk] == list(range(PER_CHUNK))
            uses[chunk] += 1
    assert len(uses) > 1
    assert max(uses.values()) <= MAX_REUSE
    assert sum(uses.values()) == stats["fetched"]
    assert stats["fragments"] == 3 * N_FRAGMENTS
    assert stats["chunks"] * PER_CHUNK + stats["dropped"] == 3 * N_FRAGMENTS
    left = sum(stats[cause] for cause in ("used_up", "evicted", "stale", "other_session"))
    assert left + stats["replay_buffer_size (chunk)"] == stats["chunks"]
    kept = chunks_of(buffer_url)
    live = [number for number, chunk in kept.items() if chunk["left"] is None]
    assert live == live_in_pool(buffer_url)
    assert all(kept[number]["held"] for number in kept.keys() - set(live))
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == len(kept) * PER_CHUNK


def test_two_fetches_at_once_never_hand_out_more_than_there_is(buffer_url: str) -> None:
    with ReplayBufferInterface({**RULES, "max_reuse": 1}, url=buffer_url) as buffer:
        for fid in range(3 * PER_CHUNK):
            send(buffer, "w", fid)
        found: list[Any] = []

        def fetch(consumer: str) -> None:
            try:
                found.append(buffer.fetch_fragments(2 * PER_CHUNK, timeout=0, consumer=consumer))
            except FetchTimeoutError as error:
                found.append(error)

        threads = [threading.Thread(target=fetch, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {type(each) for each in found} == {list, FetchTimeoutError}


@pytest.mark.thorough
@pytest.mark.parametrize("fids", [(1, 2), (2, 1)])
def test_two_that_send_as_one_worker_lose_nothing_unnoticed(
    make_database_url: MakeDatabaseUrl, monkeypatch: pytest.MonkeyPatch, fids: tuple[int, int]
) -> None:
    """The first of them has the number of its row before the other one, and waits for it."""
    url = make_database_url("postgresql", schema=True)
    with ReplayBufferInterface(RULES, url=url) as buffer, ReplayBufferInterface(url=url) as other:
        send(buffer, "w", 0)
        add, overtaken, refused = interface.add, [], []

        def overtake(*args: Any) -> Any:
            if not overtaken:
                overtaken.append(True)
                # As another process: this thread is in a transaction.
                thread = threading.Thread(target=send, args=(other, "w", fids[1]))
                thread.start()
                thread.join()
            return add(*args)

        monkeypatch.setattr(interface, "add", overtake)
        try:
            send(buffer, "w", fids[0])
        except FragmentAssertionError as error:
            refused.append(str(error))
        monkeypatch.undo()
        if not refused:
            send(buffer, "w", fids[0])  # again: it is there
        send(buffer, "w", 3)
        stored = [fid for (fid,) in run(url, "SELECT step FROM experiences ORDER BY step")]
        if fids == (1, 2):
            assert "fragment 1 came behind a later one" in refused[0]
            assert stored == [2, 3]  # what waited before the gap is dropped
        else:
            assert not refused
            assert stored == [0, 1, 2, 3]
        buffer.fetch_fragments(len(stored), timeout=0)


# A call on fragments is stored whole or not at all, whatever fails within it.


def test_payload_and_metadata_are_stored_together_or_not_at_all(
    make: Make, buffer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make()

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chunks._Change, "save", crash)
    with pytest.raises(KeyboardInterrupt):
        send(buffer, "w", 0)
    monkeypatch.undo()
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0
    with ReplayBuffer(buffer_url, "replay_buffer") as rows:
        assert rows.documents.keys() == ["minestudio/pool"]
    send(buffer, "w", 0)
    assert len(buffer.fetch_fragments(1, timeout=0)) == 1


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_fetch_whose_answer_was_lost_counts_once(
    make_database_url: MakeDatabaseUrl, cut: str
) -> None:
    url = make_database_url("postgresql", schema=True)
    with proxied(url) as proxy:
        buffer = ReplayBufferInterface(CONFIG, url=proxy.url)
        send_all(buffer, "w", range(4))
        proxy.cuts = [cut]
        fetched = buffer.fetch_fragments(2, timeout=0)
        assert proxy.n_cut == 1
        proxy.cuts = []
        assert buffer.prepared_fragments() == fetched
        used = {(c["worker"], c["first_fid"]) for c in chunks_of(url).values() if c["uses"]}
        assert used == set(indices(fetched))
        assert sum(chunk["uses"] for chunk in chunks_of(url).values()) == 2
        assert buffer.stats()["replay_buffer/fetched"] == 2
        engine_of(proxy.url).dispose()


def test_a_full_disk_is_named_and_nothing_is_stored(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplayBufferInterface(CONFIG, url=sqlite_url) as buffer:
        send(buffer, "w", 0)
        engine = engine_of(sqlite_url)
        n_pages = scalar(sqlite_url, "PRAGMA page_count")

        def keep_small(connection: Any, _: Any) -> None:
            connection.execute(f"PRAGMA max_page_count = {n_pages + 8}")

        engine.dispose()
        event.listen(engine, "connect", keep_small)
        with pytest.raises(StorageFullError, match="free space"):
            send(buffer, "w", 1, obs=b"x" * 2**21)
        event.remove(engine, "connect", keep_small)
        engine.dispose()
        assert scalar(sqlite_url, "SELECT count(*) FROM experiences") == 1
        send(buffer, "w", 1, obs=b"x" * 2**21)
        assert len(buffer.fetch_fragments(2, timeout=0)) == 2
