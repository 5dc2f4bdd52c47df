"""A call on fragments is stored whole or not at all, whatever fails within it."""

from typing import Any

import pytest
from sqlalchemy import event

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.minestudio import ReplayBufferInterface, chunks
from sqlbuffer.errors import StorageFullError
from tests.compat.minestudio.conftest import CONFIG, Make
from tests.compat.minestudio.fragments import chunks_of, indices, send, send_all
from tests.conftest import MakeDatabaseUrl
from tests.support.proxy import proxied
from tests.support.sql import scalar
from tests.support.storage_hooks import engine_of


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
