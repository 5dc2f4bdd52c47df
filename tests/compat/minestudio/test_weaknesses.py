"""What was a weakness of MineStudio's buffer and is none here; one test for each."""

import json
import logging
import math
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.compat.minestudio import (
    FetchTimeoutError,
    FragmentAssertionError,
    FragmentError,
    FragmentMetadata,
    FragmentTypeError,
    ReplayBufferInterface,
)
from tests.compat.minestudio.conftest import Make
from tests.compat.minestudio.fragments import (
    change_document,
    chunks_of,
    indices,
    make_fragment,
    send,
    send_all,
)
from tests.support.sql import run, scalar


def test_w_persistence_all_of_the_state_survives_a_restart(make: Make) -> None:
    buffer = make(fragments_per_chunk=2)
    buffer.update_model_version("s", 3)
    send_all(buffer, "a", range(4), 3, "s")
    send(buffer, "b", 0, 2, "s")
    fetched = buffer.fetch_fragments(2, timeout=0)
    stats = buffer.stats()
    buffer.close()
    again = make(fragments_per_chunk=2)
    assert again.prepared_fragments() == fetched
    assert again.stats() == stats
    assert again.load_fragment(fetched[0][1]).index == fetched[0][0]
    send(again, "b", 1, 3, "s")  # what waited waits still
    assert len(again.fetch_fragments(6, timeout=0)) == 6


def test_w_crash_safety_a_fragment_that_is_sent_twice_is_stored_once(make: Make) -> None:
    buffer = make(fragments_per_chunk=2)
    for fid in (0, 0, 1, 1, 0):
        send(buffer, "w", fid)
    assert buffer.stats()["replay_buffer/fragments"] == 2
    assert indices(buffer.fetch_fragments(2, timeout=0)) == [("w", 0), ("w", 1)]


def test_w_concurrency_each_consumer_may_have_a_prepared_list_of_its_own(make: Make) -> None:
    buffer = make(max_reuse=2, max_chunks=4)
    send_all(buffer, "w", range(4))
    mine = buffer.fetch_fragments(4, timeout=0, consumer="a")
    theirs = buffer.fetch_fragments(4, timeout=0, consumer="b")
    assert sorted(indices(mine)) == sorted(indices(theirs))
    assert buffer.prepared_fragments("a") == mine
    assert buffer.prepared_fragments() == []
    with pytest.raises(FetchTimeoutError):  # uses count for all
        buffer.fetch_fragments(1, timeout=0, consumer="c")
    buffer.fetch_fragments(0, consumer="b")
    for _, id_ in mine:  # which no other consumer can delete
        buffer.load_fragment(id_)
    buffer.fetch_fragments(0, consumer="a")
    with pytest.raises(KeyError):
        buffer.load_fragment(mine[0][1])


def test_w_concurrency_a_consumer_that_failed_gives_back_what_it_fetched(make: Make) -> None:
    buffer = make(max_reuse=1, max_chunks=3, max_staleness=1)
    buffer.update_model_version("s", 1)
    send_all(buffer, "w", range(3), 1, "s")
    buffer.fetch_fragments(3, timeout=0)
    assert buffer.release_prepared() == 3
    assert buffer.release_prepared() == 0
    assert buffer.prepared_fragments() == []
    assert sorted(indices(buffer.fetch_fragments(3, timeout=0))) == [("w", fid) for fid in range(3)]
    send(buffer, "w", 3, 1, "s")
    send(buffer, "w", 4, 2, "s")
    assert buffer.release_prepared() == 1  # there is room for three, and the oldest leave first
    assert sorted(indices(buffer.fetch_fragments(3, timeout=0))) == [("w", n) for n in (2, 3, 4)]
    buffer.update_model_version("s", 3)
    assert buffer.release_prepared() == 1  # the others are too old by now
    buffer.fetch_fragments(1, timeout=0)
    buffer.update_model_version("t", 3)
    assert buffer.release_prepared() == 0


def test_w_staleness_an_older_chunk_behind_a_fresher_one_leaves_too(make: Make) -> None:
    buffer = make(max_staleness=1)
    buffer.update_model_version("s", 5)
    send(buffer, "fast", 0, 5, "s")
    send(buffer, "slow", 0, 4, "s")
    buffer.update_model_version("s", 6)
    assert indices(buffer.fetch_fragments(1, timeout=0)) == [("fast", 0)]
    assert buffer.stats()["replay_buffer/stale"] == 1


def test_w_staleness_every_fragment_of_a_chunk_counts(make: Make, buffer_url: str) -> None:
    buffer = make(max_staleness=1, fragments_per_chunk=2)
    buffer.update_model_version("s", 1)
    send(buffer, "w", 0, 2, "s")
    send(buffer, "w", 1, 1, "s")  # older than the first
    change_document(buffer_url, "pool", version=3)  # nothing was purged yet
    with pytest.raises(FetchTimeoutError, match=r"version 2 or later"):
        buffer.fetch_fragments(2, timeout=0)
    assert buffer.stats()["replay_buffer/stale"] == 1


def test_w_waiting_a_fetch_takes_a_timeout_and_says_what_it_waits_for(make: Make) -> None:
    buffer = make(fragments_per_chunk=2, max_chunks=9)
    buffer.update_model_version("s", 7)
    send_all(buffer, "w", range(3), 7, "s")
    with pytest.raises(TimeoutError) as error:
        buffer.fetch_fragments(6, timeout=0.01)
    message = str(error.value)
    assert "have 1 of 3 chunks" in message
    assert "2 consecutive fragments of a worker, of session 's' and version 6 or later" in message


def test_w_waiting_a_fetch_returns_as_soon_as_there_is_enough(make: Make, attach: Make) -> None:
    buffer, other = make(), attach()
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(buffer.fetch_fragments(2, timeout=60)))
    waiter.start()
    send_all(other, "w", range(2))
    waiter.join(60)
    assert sorted(indices(found[0])) == [("w", 0), ("w", 1)]


def test_w_waiting_is_logged_and_can_be_interrupted(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = make()
    monkeypatch.setattr("sqlbuffer.compat.minestudio.interface.FIRST_LOG_S", 0.0)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sqlbuffer.compat.minestudio.interface.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        buffer.fetch_fragments(1)
    assert "have 0 of 1 chunks" in caplog.text


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True])
def test_w_waiting_checks_its_timeout(make: Make, timeout: Any) -> None:
    with pytest.raises(FragmentError, match="timeout is a number of seconds"):
        make().fetch_fragments(1, timeout=timeout)


def test_w_contiguity_a_gap_is_seen_logged_and_joins_no_chunk(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = make(fragments_per_chunk=2)
    for fid in (0, 2, 3):
        send(buffer, "w", fid)
    assert "'w' left out 1 fragments before 2" in caplog.text
    stats = buffer.stats()
    assert stats["replay_buffer/gaps"] == stats["replay_buffer/missing"] == 1
    assert stats["replay_buffer/dropped"] == 1
    assert indices(buffer.fetch_fragments(2, timeout=0)) == [("w", 2), ("w", 3)]


def test_w_contiguity_an_older_number_is_refused_and_the_worker_goes_on(make: Make) -> None:
    buffer = make(fragments_per_chunk=2)
    send_all(buffer, "w", (4, 5, 6))
    with pytest.raises(AssertionError, match="fragment 5 with other content"):
        send(buffer, "w", 5, obs={})
    with pytest.raises(FragmentAssertionError, match=r"fragment 3 came behind 6; .* upward"):
        send(buffer, "w", 3)
    send(buffer, "w", 7)
    assert len(buffer.fetch_fragments(4, timeout=0)) == 4


@pytest.mark.thorough
def test_w_capacity_may_be_counted_in_bytes(make: Make) -> None:
    plain = make(name="plain")
    send(plain, "w", 0)
    size = plain.stats()["replay_buffer/size_bytes"]
    assert 0.5 < size / plain.store.get_disk_space() < 1.5
    buffer = make(name="bounded", max_bytes=int(2.5 * size))
    send_all(buffer, "w", range(4))
    assert sorted(indices(buffer.fetch_fragments(2, timeout=0))) == [("w", 2), ("w", 3)]
    send(buffer, "w", 4, obs=b"x" * int(3 * size))  # one is kept, however large
    assert buffer.stats()["replay_buffer/replay_buffer_size (chunk)"] == 1


def test_w_payload_nothing_is_pickled_and_each_column_can_be_read(
    make: Make, monkeypatch: pytest.MonkeyPatch, buffer_url: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickled")

    for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    buffer = make()
    send(buffer, "w", 5)
    ((_, id_),) = buffer.fetch_fragments(1, timeout=0)
    assert buffer.load_fragment(id_, ["reward"]).reward.tolist() == [5.0] * 4
    reward = scalar(buffer_url, "SELECT reward FROM v_experiences")
    assert reward == 20.0


def test_w_querying_finds_fragments_by_worker_version_session_and_episode(
    make: Make, buffer_url: str
) -> None:
    buffer = make()
    buffer.update_model_version("s", 1)
    send(buffer, "a", 0, 0, "s", episode_uuids=["x", "x", "y", "y"])
    send(buffer, "b", 0, 1, "s", episode_uuids=["y"] * 4)
    with ReplayBuffer(buffer_url, name="replay_buffer") as rows:
        found = {
            what: sorted(row.exp_meta.task_id for row in rows.get_all(condition.build()))
            for what, condition in {
                "worker": QueryBuilder().eq("exp_meta.task_id", "a"),
                "version": QueryBuilder().gte("exp_meta.model_version", 1),
                "session": QueryBuilder().eq("exp_meta.session_id", "s"),
                "x": QueryBuilder().like("exp_data.extra.episodes", "x"),
                "y": QueryBuilder().like("exp_data.extra.episodes", "y"),
            }.items()
        }
        assert (rows.session_id, rows.clock) == ("s", 1)
    assert found == {
        "worker": ["a"], "version": ["b"], "session": ["a", "b"], "x": ["a"], "y": ["a", "b"],
    }  # fmt: skip
    shown = run(
        buffer_url,
        "SELECT value ->> 'worker', CAST(value ->> 'oldest_version' AS integer), value ->> 'left' "
        "FROM v_documents WHERE buffer = 'replay_buffer' AND key LIKE 'minestudio/chunk/%' "
        "ORDER BY key",
    )
    assert shown == [("a", 0, None), ("b", 1, None)]


@pytest.mark.thorough
def test_w_sampling_repeats_by_its_seed(make: Make) -> None:
    drawn = []
    for name in ("one", "two"):
        buffer = make(name=name, seed=3, max_chunks=9, max_reuse=3)
        send_all(buffer, "w", range(9))
        drawn.append([indices(buffer.fetch_fragments(3, timeout=0)) for _ in range(4)])
    assert drawn[0] == drawn[1]
    assert len({tuple(each) for each in drawn[0]}) > 1


def test_w_metrics_are_never_nan_and_tell_of_what_was_handed_out(make: Make) -> None:
    reports: list[dict[str, float]] = []
    buffer = make(
        report=reports.append, fragments_per_report=2, max_staleness=3, max_reuse=2, max_chunks=3
    )
    buffer.update_model_version("s", 4)
    assert not any("avg" in name or "per_second" in name for name in buffer.stats())
    for fid, version in enumerate((2, 4, 4, 4)):
        send(buffer, "w", fid, version, "s")
    assert len(reports) == 2  # after the second and the fourth
    assert reports[1]["replay_buffer/fragments_per_second"] > 0
    buffer.fetch_fragments(3, timeout=0)
    assert reports[-1]["replay_buffer/avg_staleness"] == 0.0
    assert reports[-1]["replay_buffer/avg_reuse"] == 0.0  # one was evicted without a use
    buffer.fetch_fragments(3, timeout=0)
    assert reports[-1]["replay_buffer/avg_reuse"] == 2.0
    assert reports[-1]["replay_buffer/replay_buffer_size (chunk)"] == 0
    json.dumps(reports, allow_nan=False)


def test_w_metrics_weigh_dropped_fragments_as_what_they_are(make: Make) -> None:
    buffer = make(fragments_per_chunk=2, max_reuse=1)
    send_all(buffer, "w", range(4))
    send_all(buffer, "v", (0, 2))  # one is dropped
    buffer.fetch_fragments(2, timeout=0)
    # Two fragments that were used once, and one that never was.
    assert buffer.stats()["replay_buffer/avg_reuse"] == pytest.approx(2 / 3)


def test_w_metrics_a_report_that_fails_does_not_fail_the_call(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> None:
        raise OSError("no network")

    buffer = make(report=fail)
    send(buffer, "w", 0)
    with caplog.at_level(logging.ERROR):
        assert len(buffer.fetch_fragments(1, timeout=0)) == 1
    assert "no network" in caplog.text


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (FragmentMetadata(None, "s", "w", 0), "model_version is an integer .* got None"),  # type: ignore[arg-type]
        (FragmentMetadata(True, "s", "w", 0), "model_version is an integer"),
        (FragmentMetadata(2**63, "s", "w", 0), "of 64 bits"),
        (FragmentMetadata(-(2**62), "s", "w", 0), "of 62 bits"),
        (FragmentMetadata(1, 3, "w", 0), "session_id is a text, got 3"),  # type: ignore[arg-type]
        (FragmentMetadata(1, "s\0", "w", 0), r"session_id: .* U\+0000"),
        (FragmentMetadata(1, "s", "", 0), "worker_uuid is a text"),
        (FragmentMetadata(1, "s", "w" * 700, 0), "worker_uuid: longer than 600 bytes"),
        (FragmentMetadata(1, "s", "w", -1), "counted from 0"),
        (FragmentMetadata(1, "s", "w", 3), "fragment 3 of worker 'w', and the fragment is 0"),
        ({}, "expected FragmentMetadata, got dict"),
    ],
)
def test_w_validation_checks_metadata(make: Make, metadata: Any, message: str) -> None:
    buffer = make()
    with pytest.raises(FragmentError, match=message):
        buffer.add_fragment(make_fragment(), metadata)
    with pytest.raises(FragmentTypeError, match="expected a SampleFragment, got dict"):
        buffer.add_fragment({}, FragmentMetadata(1, "s", "w", 0))  # type: ignore[arg-type]
    assert buffer.store.get_disk_space() == 0


@pytest.mark.parametrize("n", [None, 1.0, "1", True, math.nan, -1, 2**70])
def test_w_validation_checks_numbers_of_fragments(make: Make, n: Any) -> None:
    with pytest.raises(FragmentError, match="num_fragments is"):
        make().fetch_fragments(n)


def test_w_validation_checks_sessions_and_consumers(make: Make) -> None:
    buffer = make()
    for call in (
        lambda: buffer.update_model_version(None, 1),  # type: ignore[arg-type]
        lambda: buffer.update_model_version("s", 1.5),  # type: ignore[arg-type]
        lambda: buffer.prepared_fragments(3),  # type: ignore[arg-type]
        lambda: buffer.release_prepared(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(FragmentTypeError):
            call()
    assert buffer.update_training_session() is None


def test_w_concurrency_what_is_given_back_leaves_in_its_own_turn(make: Make) -> None:
    buffer = make(max_reuse=1, max_chunks=2)
    send_all(buffer, "w", range(2))
    buffer.fetch_fragments(2, timeout=0)
    send_all(buffer, "w", range(2, 5))  # evicts one
    assert buffer.release_prepared() == 0
    assert sorted(indices(buffer.fetch_fragments(2, timeout=0))) == [("w", 3), ("w", 4)]
    assert buffer.stats()["replay_buffer/evicted"] == 3


def test_w_crash_safety_a_worker_may_send_its_last_fragment_again_when_it_has_left(
    make: Make, buffer_url: str
) -> None:
    buffer = make(max_staleness=0)
    buffer.update_model_version("s", 2)
    for _ in range(2):
        send(buffer, "w", 0, 1, "s")  # too old: dropped at once
    assert buffer.stats()["replay_buffer/fragments"] == 1
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0
    send(buffer, "w", 1, 2, "s")
    assert len(buffer.fetch_fragments(1, timeout=0)) == 1
    # In another session the same number is another fragment, and not to be lost unnoticed.
    buffer.update_model_version("t", 1)
    with pytest.raises(FragmentAssertionError, match="fragment 1 came behind 1"):
        send(buffer, "w", 1, 1, "t")


def test_w_validation_takes_the_extremes_of_versions_and_sessions(
    make: Make, buffer_url: str
) -> None:
    buffer = make(max_staleness=2**61)
    most = 2**62 - 1
    buffer.update_model_version("s\u00e9ance \U0001f600", most)
    send(buffer, "w", 0, most, "s\u00e9ance \U0001f600")
    send(buffer, "w", 1, -most, "s\u00e9ance \U0001f600")
    assert indices(buffer.fetch_fragments(1, timeout=0)) == [("w", 0)]
    buffer.update_model_version("s\u00e9ance \U0001f600", -most)
    (chunk,) = chunks_of(buffer_url).values()
    assert chunk["oldest_version"] == most
    buffer.update_model_version("", 1)
    send(buffer, "w", 2, 1, "")
    assert indices(buffer.fetch_fragments(1, timeout=0)) == [("w", 2)]


def test_w_distribution_a_file_that_is_not_there_is_no_buffer(tmp_path: Path) -> None:
    with pytest.raises(FragmentError, match="not initialized"):
        ReplayBufferInterface(url=f"sqlite:///{tmp_path / 'none.db'}")
    assert not list(tmp_path.iterdir())
