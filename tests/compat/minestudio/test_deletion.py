"""Payloads of fragments are deleted in steps, which may be interrupted."""

import threading
from contextlib import suppress
from typing import Any

import pytest

from sqlbuffer.compat.minestudio import ReplayBufferInterface, chunks
from sqlbuffer.errors import StorageBusyError, StorageUnreachableError
from tests.compat.minestudio.conftest import CONFIG, Make
from tests.compat.minestudio.fragments import chunks_of, send, send_all
from tests.conftest import MakeDatabaseUrl
from tests.support.sql import scalar


def test_a_new_session_deletes_any_number_of_payloads(
    make: Make, buffer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "AT_ONCE", 2)
    buffer = make(max_chunks=9)
    buffer.update_model_version("one", 1)
    send_all(buffer, "w", range(7), 1, "one")
    buffer.update_model_version("two", 1)
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0
    assert chunks_of(buffer_url) == {}


def test_others_add_and_fetch_while_payloads_are_deleted(
    make_database_url: MakeDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "WAIT_S", 0.0)
    url = make_database_url("postgresql", schema=True)
    delete_fragments, found = chunks.delete_fragments, []
    with ReplayBufferInterface(CONFIG, url=url) as buffer, ReplayBufferInterface(url=url) as other:
        send_all(buffer, "w", range(4))

        def work() -> None:
            send_all(other, "other", range(2))
            found.append(len(other.fetch_fragments(4, timeout=0)))

        def as_others_work(*args: Any) -> None:
            delete_fragments(*args)
            if not found:
                found.append(1)
                thread = threading.Thread(target=work)  # this one is in a transaction
                thread.start()
                thread.join(60)

        monkeypatch.setattr(chunks, "delete_fragments", as_others_work)
        send(buffer, "w", 4)
        assert found == [1, 4]
        send(buffer, "w", 5)
        assert scalar(url, "SELECT count(*) FROM experiences") == 5  # one of them only prepared


@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageUnreachableError, StorageBusyError])
def test_what_a_call_did_not_come_to_delete_is_deleted_later(
    make: Make, buffer_url: str, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    buffer = make(max_reuse=1, fragments_per_chunk=2, max_chunks=2)
    send_all(buffer, "w", range(4))
    send(buffer, "waits", 0)

    def fail(*_: Any) -> int:
        raise error("not now")

    monkeypatch.setattr(chunks, "delete_some", fail)
    calls = [
        lambda: buffer.fetch_fragments(4, timeout=0),
        lambda: buffer.fetch_fragments(0),
        lambda: buffer.update_model_version("s", 1),
        lambda: send(buffer, "late", 0),
    ]
    for call in calls:
        with suppress(KeyboardInterrupt):  # the others do not fail what is done
            call()
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 6
    monkeypatch.undo()
    send(buffer, "w", 4, 1, "s")
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 1
    assert chunks_of(buffer_url) == {}
    assert buffer.stats()["replay_buffer/dropped"] == 2
