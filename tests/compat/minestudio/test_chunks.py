"""The rules of chunks, as MineStudio's actor had them."""

import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.compat.minestudio import (
    FetchTimeoutError,
    FragmentNotFoundError,
    ReplayBufferInterface,
    chunks,
)
from sqlbuffer.errors import BufferNotFoundError, StorageBusyError, StorageUnreachableError
from tests.compat.minestudio.conftest import CONFIG, Make
from tests.compat.minestudio.fragments import (
    change_document,
    chunks_of,
    indices,
    send,
    send_all,
)
from tests.conftest import MakeDatabaseUrl
from tests.support.fragments import lost_parts, parts_of
from tests.support.sql import run, scalar


def test_hands_out_whole_chunks_of_one_worker_in_order(make: Make) -> None:
    buffer = make(fragments_per_chunk=2)
    for fid in range(3):
        send(buffer, "a", fid)
        send(buffer, "b", fid)
    fetched = indices(buffer.fetch_fragments(4, timeout=0))
    assert sorted(fetched) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert fetched[0][0] == fetched[1][0] != fetched[2][0] == fetched[3][0]
    assert [fid for _, fid in fetched] == [0, 1, 0, 1]


def test_what_a_fetch_prepared_is_the_same_for_all_any_number_of_times(
    make: Make, attach: Make
) -> None:
    buffer = make()
    assert buffer.prepared_fragments() == []
    send_all(buffer, "w", range(4))
    fetched = buffer.fetch_fragments(3, timeout=0)
    other = attach()
    for _ in range(2):
        assert buffer.prepared_fragments() == other.prepared_fragments() == fetched
    assert other.load_fragment(fetched[0][1]).index == fetched[0][0]


def test_evicts_the_chunk_that_was_inserted_first(make: Make) -> None:
    buffer = make(max_chunks=3)
    send_all(buffer, "w", range(5))
    assert sorted(indices(buffer.fetch_fragments(3, timeout=0))) == [("w", 2), ("w", 3), ("w", 4)]


def test_a_chunk_leaves_when_it_was_fetched_max_reuse_times(make: Make) -> None:
    buffer = make(max_reuse=2)
    send_all(buffer, "w", range(2))
    assert len(buffer.fetch_fragments(2, timeout=0)) == len(buffer.fetch_fragments(2, timeout=0))
    with pytest.raises(TimeoutError):
        buffer.fetch_fragments(1, timeout=0)


def test_what_is_prepared_can_be_loaded_until_the_next_fetch_has_completed(make: Make) -> None:
    buffer = make(max_reuse=1, max_chunks=2)
    buffer.update_model_version("s", 1)
    send_all(buffer, "w", range(2), 1, "s")
    first = buffer.fetch_fragments(2, timeout=0)
    send_all(buffer, "w", range(2, 6), 1, "s")  # evicts
    buffer.update_model_version("s", 9)  # expires
    with pytest.raises(TimeoutError):
        buffer.fetch_fragments(1, timeout=0)
    assert [buffer.load_fragment(id_).index for _, id_ in first] == [index for index, _ in first]
    assert buffer.fetch_fragments(0) == buffer.prepared_fragments() == []
    for _, id_ in first:
        with pytest.raises(FragmentNotFoundError, match="next fetch"):
            buffer.load_fragment(id_)


def test_a_fragment_as_old_as_max_staleness_stays_and_an_older_one_leaves(make: Make) -> None:
    buffer = make(max_staleness=1)
    buffer.update_model_version("s", 5)
    for fid, version in enumerate((3, 4, 5)):
        send(buffer, "w", fid, version, "s")
    assert sorted(indices(buffer.fetch_fragments(2, timeout=0))) == [("w", 1), ("w", 2)]
    buffer.update_model_version("s", 6)
    assert indices(buffer.fetch_fragments(1, timeout=0)) == [("w", 2)]


def test_a_new_session_purges_what_is_of_another_one(make: Make) -> None:
    buffer = make()
    send(buffer, "w", 0)
    buffer.update_model_version("one", 1)
    send(buffer, "w", 1, 1, "one")
    send(buffer, "w", 2, 1, "other")
    assert indices(buffer.fetch_fragments(1, timeout=0)) == [("w", 1)]
    buffer.update_model_version("two", 1)
    with pytest.raises(TimeoutError):
        buffer.fetch_fragments(1, timeout=0)


def test_before_the_first_version_data_of_no_session_is_taken(make: Make) -> None:
    buffer = make()
    send(buffer, "w", 0)
    assert indices(buffer.fetch_fragments(1, timeout=0)) == [("w", 0)]


@pytest.mark.parametrize("n", [3, 10])
def test_refuses_numbers_that_are_no_chunks_or_more_than_there_can_be(make: Make, n: int) -> None:
    buffer = make(fragments_per_chunk=2)
    with pytest.raises(AssertionError) as error:
        buffer.fetch_fragments(n)
    assert isinstance(error.value, ValueError)


def test_every_choice_of_chunks_is_as_likely() -> None:
    """Chi-square over the ordered pairs of 5 places, p > 0.001 at a fixed seed. Which chunk has
    which place says nothing about the draw: `test_random_calls` shows that each has one.
    """
    with ReplayBufferInterface(CONFIG, url="sqlite://", seed=7) as buffer:
        drawn: Counter[tuple[int, ...]] = Counter()
        for n_fetched in range(4_000):
            buffer._n_fetched = n_fetched
            drawn[tuple(buffer._choose(5, 2))] += 1
    assert len(drawn) == 20
    assert chisquare(list(drawn.values())).pvalue > 0.001


def test_a_chunk_whose_fragment_was_deleted_by_hand_is_not_handed_out(
    make: Make, buffer_url: str
) -> None:
    buffer = make(fragments_per_chunk=2, max_chunks=2)
    send_all(buffer, "w", range(4))
    with ReplayBuffer(buffer_url, name="replay_buffer") as rows:
        rows.delete(QueryBuilder().eq("exp_meta.step", 1).build())
    with pytest.raises(FetchTimeoutError, match="have 1 of 2"):
        buffer.fetch_fragments(4, timeout=0)
    assert indices(buffer.fetch_fragments(2, timeout=0)) == [("w", 2), ("w", 3)]
    assert buffer.stats()["replay_buffer/broken"] == 1
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 2


@pytest.mark.thorough
def test_large_payloads_leave_with_their_chunks(make: Make, buffer_url: str) -> None:
    buffer = make(max_chunks=2)
    for fid in range(4):
        send(buffer, "w", fid, obs={"image": np.full(2**20 + 9, fid, np.uint8)})
    assert set(parts_of(buffer_url).values()) == {2}
    assert lost_parts(buffer_url) == 0
    for index, id_ in buffer.fetch_fragments(2, timeout=0):
        image = buffer.load_fragment(id_).obs["image"]
        assert image.shape == (2**20 + 9,)
        assert set(image.tolist()) == {index.fid_in_worker}


def test_dropping_the_buffer_leaves_nothing_behind(make: Make, buffer_url: str) -> None:
    buffer = make(fragments_per_chunk=2)
    send_all(buffer, "w", range(5))
    buffer.fetch_fragments(2, timeout=0)
    ReplayBuffer.drop(buffer_url, "replay_buffer")
    for table in ("documents", "experiences"):
        assert scalar(buffer_url, f"SELECT count(*) FROM {table}") == 0
    for call in (
        lambda: buffer.fetch_fragments(2, timeout=0),
        lambda: send(buffer, "w", 5),
        lambda: buffer.update_model_version("s", 1),
        buffer.stats,
        buffer.prepared_fragments,
        buffer.release_prepared,
    ):
        with pytest.raises(BufferNotFoundError):
            call()


def test_a_consumer_that_holds_nothing_leaves_nothing_behind(make: Make, buffer_url: str) -> None:
    buffer = make()
    send_all(buffer, "w", range(2))
    for end in (
        lambda: buffer.fetch_fragments(0, consumer="a"),
        lambda: buffer.release_prepared("a"),
    ):
        buffer.fetch_fragments(1, timeout=0, consumer="a")
        end()
        with ReplayBuffer(buffer_url, "replay_buffer") as rows:
            assert rows.documents.keys("minestudio/consumer/") == []
        assert [chunk["held"] for chunk in chunks_of(buffer_url).values()] == [0, 0]


def test_a_new_session_forgets_workers_and_consumers_that_are_long_gone(
    make: Make, buffer_url: str
) -> None:
    buffer = make()
    for name in ("gone", "here"):
        send(buffer, name, 0)
    for consumer in ("gone", "here"):
        buffer.fetch_fragments(1, timeout=0, consumer=consumer)
    for key in ("worker/gone", "consumer/gone"):
        change_document(buffer_url, key, seen=time.time() - 31 * 86_400)
    (_, held) = buffer.prepared_fragments("here")[0]
    buffer.update_model_version("s", 1)
    with ReplayBuffer(buffer_url, "replay_buffer") as rows:
        for role in ("worker", "consumer"):
            assert rows.documents.keys(f"minestudio/{role}/") == [f"minestudio/{role}/here"]
    assert run(buffer_url, "SELECT id FROM experiences") == [(held,)]


# Payloads of fragments are deleted in steps, which may be interrupted.


@pytest.mark.thorough
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
