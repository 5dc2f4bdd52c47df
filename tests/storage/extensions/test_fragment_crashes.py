"""A call on fragments is stored whole or not at all, whatever fails within it."""

from typing import Any

import pytest
from sqlalchemy import event

from sqlbuffer.compat.minestudio import ReplayBufferInterface
from sqlbuffer.errors import StorageFullError
from sqlbuffer.storage.extensions.fragments import adding
from tests.compat.minestudio.conftest import CONFIG, Make
from tests.compat.minestudio.fragments import indices, send, send_all
from tests.support.sql import scalar


def test_payload_and_metadata_are_stored_together_or_not_at_all(
    make_pool: Make, buffer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make_pool()

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(adding, "note_seen", crash)
    with pytest.raises(KeyboardInterrupt):
        send(buffer, "w", 0)
    monkeypatch.undo()
    for table in ("experiences", "item_groups", "participants"):
        assert scalar(buffer_url, f"SELECT count(*) FROM {table}") == 0
    send(buffer, "w", 0)
    assert len(buffer.fetch_fragments(1, timeout=0)) == 1


def test_a_fetch_whose_answer_was_lost_counts_once(
    make_pool: Make, buffer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make_pool()
    send_all(buffer, "w", range(4))
    write, found = buffer._core.write, []

    def committed_but_lost(work: Any) -> Any:
        found.append(write(work))
        return write(work)  # as it goes on after a lost connection

    monkeypatch.setattr(buffer._core, "write", committed_but_lost)
    fetched = buffer.fetch_fragments(2, timeout=0)
    assert len(found) == 1
    assert indices(fetched) == [(worker, fid) for worker, fid, _ in found[0].fragments]
    assert scalar(buffer_url, "SELECT sum(use_count) FROM item_groups") == 2
    assert buffer.stats()["replay_buffer/fetched"] == 2


def test_a_full_disk_is_named_and_nothing_is_stored(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplayBufferInterface(CONFIG, url=sqlite_url) as buffer:
        send(buffer, "w", 0)
        engine = buffer._core.engine
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
