from collections.abc import Callable
from contextlib import closing
from itertools import count
from typing import Any

import numpy as np
import pytest

from sqlbuffer import BufferConfig, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import CopyError, StorageBusyError, StorageReadOnlyError
from tests.conftest import KINDS, MakeDatabaseUrl
from tests.support.copied_buffers import (
    FIELDS,
    columns,
    comparable,
    json_rows,
    odd_steps,
    typed_steps,
)
from tests.support.proxy import Proxy, losing_each_message
from tests.support.sql import connected, run, scalar
from tests.support.views import shown

WAYS = [(here, there) for here in KINDS for there in KINDS]
Copied = Callable[..., tuple[ReplayBuffer, ReplayBuffer]]


@pytest.fixture(params=WAYS, ids=["-".join(way) for way in WAYS])
def urls(request: pytest.FixtureRequest, make_database_url: MakeDatabaseUrl) -> tuple[str, str]:
    here, there = request.param
    return make_database_url(here, schema=True), make_database_url(there, schema=True)


def emptied(source: ReplayBuffer, url: str, name: str = "copy") -> ReplayBuffer:
    """Return an empty buffer like another one, behind others whose keys it may not take."""
    ReplayBuffer(url, "other", create=True, fields={"x": "int8"}).store_episode({"x": [1]})
    return ReplayBuffer(url, name, create=True, config=source.config)


def next_seq(buffer: ReplayBuffer) -> int:
    """Return the number of the next step."""
    last = {"x": 1} if not buffer.fields else columns(4, 1)
    if buffer.fields:
        buffer.extend({name: own[:1] for name, own in last.items()}, task_id="after")
    else:
        buffer.add(task_id="after", state=last)
    return max(row.seq for row in buffer.get_by_task_id("after"))


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
@pytest.mark.parametrize("evict_by", ["row", "task", "episode"])
def test_a_copy_shows_in_every_view_what_its_source_shows(
    urls: tuple[str, str], make: Any, evict_by: str
) -> None:
    limits = {"max_episodes": 3} if evict_by == "episode" else {}
    source = make(urls[0], "source", evict_by=evict_by, **limits)
    target = emptied(source, urls[1])

    report = source.copy_to(target)

    assert shown(urls[1], "copy") == shown(urls[0], "source")
    assert report.n_steps == report.n_copied == len(source) == len(target) > 20
    assert comparable(list(target)) == comparable(list(source))
    assert next_seq(target) == report.high_seq + 1
    assert len(target) == len(list(target))


def test_a_copy_of_whole_groups_has_their_figures(urls: tuple[str, str]) -> None:
    source = ReplayBuffer(urls[0], "source", fields={"x": "int64"})
    for n in range(12):
        reward = [0.25 * n, 1.0]
        source.store_episode(
            {"x": [n, n], "reward": reward}, task_id=f"t{n % 3}", group_id=f"g{n % 4}"
        )
    target = emptied(source, urls[1])
    source.copy_to(target)
    figures = (
        "SELECT task_id, group_id, rollouts, steps, return_mean, return_min, return_max, "
        "return_spread, return_variance, incomplete, late FROM v_groups WHERE buffer = :name "
        "ORDER BY group_id"
    )
    groups = run(urls[0], figures, name="source")
    assert len(groups) == 4
    assert run(urls[1], figures, name="copy") == [
        (*row[:4], *map(pytest.approx, row[4:9]), *row[9:]) for row in groups
    ]


@pytest.mark.thorough
def test_a_copy_of_leased_rows_has_their_uses_and_none_of_their_leases(
    urls: tuple[str, str],
) -> None:
    source = json_rows(urls[0], "source", leases=True, max_use=3)
    with source.lease(8):
        pass
    target = emptied(source, urls[1])

    with source.lease(5):
        source.copy_to(target)
        assert uses(urls[1], "copy") == uses(urls[0], "source")

    assert (
        scalar(urls[1], "SELECT coalesce(sum(leased), 0) FROM v_queue WHERE buffer = 'copy'") == 0
    )
    assert shown(urls[1], "copy", ["v_experiences"]) == shown(urls[0], "source", ["v_experiences"])


def uses(url: str, name: str) -> list[Any]:
    counts = "SELECT task_id, rows, uses FROM v_queue WHERE buffer = :name ORDER BY task_id"
    return run(url, counts, name=name)


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_a_condition_copies_the_steps_that_match_with_their_numbers(
    urls: tuple[str, str], make: Any
) -> None:
    source = make(urls[0], "source")
    condition = QueryBuilder().eq("task_id", "task-0").or_().gt("reward", 0.6).build()
    target = emptied(source, urls[1])

    report = source.copy_to(target, condition)

    matching = [row.seq for row in source.get_all(condition)]
    assert [row.seq for row in target] == matching
    assert 0 < report.n_steps == len(target) == len(matching) < len(source)
    theirs, ours = shown(urls[0], "source"), shown(urls[1], "copy")
    for view in ("v_experiences", "v_priorities", "v_quarantine", "v_labels"):
        assert ours[view] == [row for row in theirs[view] if row["seq"] in set(matching)]
    held = {row["episode_id"] for row in ours["v_experiences"]} - {None}
    assert {row["episode_id"] for row in ours["v_episodes"]} == held
    assert next_seq(target) == report.high_seq + 1


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("fields", [None, FIELDS])
def test_an_empty_buffer_is_copied_with_its_clock_and_sessions(
    urls: tuple[str, str], fields: Any
) -> None:
    source = ReplayBuffer(urls[0], "source", create=True, fields=fields)
    source.start_session("only")
    source.set_model_version(4)
    source.documents.put("done", ["ä"])
    source.documents.put("done", ["ä", float("nan")])
    source.documents.put("own", 1)
    target = emptied(source, urls[1])
    target.documents.put("own", 2)

    report = source.copy_to(target)

    assert (report.n_steps, len(target), target.clock) == (0, 0, 4)
    assert repr(target.documents.get("done")) == repr(source.documents.get("done"))
    assert target.documents.get("own").value == 2  # documents of the copy stay
    assert shown(urls[1], "copy") == shown(urls[0], "source")
    assert next_seq(target) == 1


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_a_copy_that_is_broken_off_goes_on_where_it_was_and_copies_nothing_twice(
    urls: tuple[str, str], make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_batches(monkeypatch)
    source, reached = make(urls[0], "source"), []
    target = emptied(source, urls[1])

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            source.copy_to(target, on_progress=interrupting(reached))
        assert [row.seq for row in target] == [row.seq for row in source][: reached[-1]]
    report = source.copy_to(target)

    assert report.n_copied == report.n_steps - reached[-1] > 0
    assert shown(urls[1], "copy") == shown(urls[0], "source")
    again = source.copy_to(target)
    assert again.was_finished
    assert (again.n_steps, again.n_copied) == (report.n_steps, 0)
    assert "has the steps of 'source'" in str(again)


def in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in ("MOST_ROWS", "MOST_CHUNKS"):
        monkeypatch.setattr(f"sqlbuffer.storage.copies.source.{most}", 1)


def interrupting(reached: list[int]) -> Any:
    """Return what interrupts a copy after its second batch."""
    calls = []

    def interrupt(n_steps: int, *_: Any) -> None:
        calls.append(n_steps)
        if len(calls) == 2:
            reached.append(n_steps)
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.thorough
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_a_copy_goes_on_over_lost_connections_of_its_source(
    make_database_url: MakeDatabaseUrl, make: Any
) -> None:
    url, numbers = make_database_url("postgresql", schema=True), count()
    copies = make_database_url("sqlite", schema=True)
    with closing(Proxy(url)) as proxy, make(proxy.url, "source") as source:

        def copied() -> list[int]:
            with ReplayBuffer(copies, f"copy {next(numbers)}", config=source.config) as target:
                source.copy_to(target)
                return [row.seq for row in target]

        seqs = [row.seq for row in source]
        # Every eighth message: a copy sends about fifty.
        assert all(found == seqs for found in losing_each_message(proxy, copied, every=8))


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_an_unfinished_copy_takes_no_other_steps(
    urls: tuple[str, str], make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_batches(monkeypatch)
    source = make(urls[0], "source")
    target = emptied(source, urls[1])
    with pytest.raises(KeyboardInterrupt):
        source.copy_to(target, on_progress=interrupting([]))
    held = [row.seq for row in target]

    with pytest.raises(StorageReadOnlyError, match=r"an unfinished copy, .* run the copy again"):
        next_seq(target)
    with pytest.raises(Exception, match=r"the buffer is an unfinished copy|has typed fields"):
        run(
            urls[1],
            "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) "
            "SELECT id, 't', 'a', 1 FROM buffers WHERE name = 'copy'",
        )
    with pytest.raises(CopyError, match="holds an unfinished copy of buffer 'source'"):
        source.copy_to(target, QueryBuilder().eq("step", 3).build())
    assert [row.seq for row in target] == held


@pytest.mark.thorough
def test_a_batch_is_as_large_as_its_bytes_allow(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ReplayBuffer(urls[0], "source", create=True, fields={"frame": ("uint8", (100_000,))})
    for i in range(8):
        noise = np.random.default_rng(i).integers(0, 255, (5, 100_000), np.uint8)
        source.extend({"frame": noise}, task_id="t")
    monkeypatch.setattr("sqlbuffer.storage.copies.source.BATCH_BYTES", 1_000_000)
    reached: list[int] = []

    source.copy_to(emptied(source, urls[1]), on_progress=lambda n, *_: reached.append(n))

    # The batch ends with the chunk that reaches the limit.
    assert max(np.diff([0, *reached])) <= 15
    assert reached[-1] == 40


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_capacity": 39}, "max_capacity: 40 there, 39 in the copy"),
        ({"priorities": False}, "priorities: True there, False in the copy"),
        ({"max_use": None}, "max_use: 9 there, none in the copy"),
        ({"evict_by": "task"}, "evict_by: 'row' there, 'task' in the copy"),
        ({"fields": {"x": "int8"}}, "field 'x': nothing there, int8 in the copy"),
        ({"leases": True}, "leases: False there, True in the copy"),
    ],
)
def test_a_buffer_that_cannot_hold_the_same_steps_is_refused_by_name(
    sqlite_url: str, settings: dict[str, Any], named: str
) -> None:
    source = json_rows(sqlite_url, "source")
    wanted = {"max_capacity": 40, "priorities": True, "max_use": 9, **settings}
    target = ReplayBuffer(sqlite_url, "copy", config=BufferConfig.of(**wanted))

    with pytest.raises(CopyError, match="cannot hold what 'source'") as error:
        source.copy_to(target)

    assert named in str(error.value)
    assert len(target) == 0


@pytest.mark.thorough
def test_a_buffer_is_not_copied_into_itself(sqlite_url: str) -> None:
    source = ReplayBuffer(sqlite_url, "source")

    with pytest.raises(CopyError, match="cannot be copied into itself"):
        source.copy_to(ReplayBuffer(sqlite_url, "source"))


def test_a_buffer_with_a_layout_of_another_library_is_refused_by_name(sqlite_url: str) -> None:
    ReplayBuffer(sqlite_url, "plain")
    with connected(sqlite_url) as connection:
        connection.exec_driver_sql("UPDATE buffers SET layout = 'ring'")
    other = ReplayBuffer(sqlite_url, "other")

    with pytest.raises(CopyError, match=r"has the layout 'ring' of sqlbuffer\.compat"):
        ReplayBuffer(sqlite_url, "plain").copy_to(other)


@pytest.mark.thorough
def test_of_two_that_copy_into_one_buffer_one_ends_and_the_copy_is_exact(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_batches(monkeypatch)
    source = json_rows(urls[0], "source")
    target = emptied(source, urls[1])
    others = [ReplayBuffer(urls[1], "copy", create=False)]

    def copy_too(*_: Any) -> None:
        if others:
            source.copy_to(others.pop())

    with pytest.raises(StorageBusyError, match="another process copies into buffer 'copy'"):
        source.copy_to(target, on_progress=copy_too)

    assert shown(urls[1], "copy") == shown(urls[0], "source")


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_copy_that_is_cleared_takes_other_steps_and_copies(
    urls: tuple[str, str], make: Any, is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_batches(monkeypatch)
    source = make(urls[0], "source")
    target = emptied(source, urls[1])
    if is_complete:
        source.copy_to(target)
    else:
        with pytest.raises(KeyboardInterrupt):
            source.copy_to(target, on_progress=interrupting([]))
    target.clear()
    assert target.max_capacity == source.max_capacity

    report = source.copy_to(target)

    assert (report.n_copied, report.was_finished) == (len(source), False)
    assert comparable(list(target)) == comparable(list(source))
    assert next_seq(target) == report.high_seq + 1
    target.clear()
    next_seq(target)
    assert len(target) == 1


@pytest.mark.thorough
def test_a_dropped_copy_leaves_nothing_behind(urls: tuple[str, str]) -> None:
    source = typed_steps(urls[0], "source")
    source.copy_to(emptied(source, urls[1]))

    ReplayBuffer.drop(urls[1], "copy")

    assert run(urls[1], "SELECT * FROM copies") == []
    report = source.copy_to(emptied(source, urls[1]))
    assert report.n_copied == len(source)


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_a_source_that_was_restored_in_between_is_noticed(
    urls: tuple[str, str], make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_batches(monkeypatch)
    source = make(urls[0], "source")
    target = emptied(source, urls[1])
    with pytest.raises(KeyboardInterrupt):
        source.copy_to(target, on_progress=interrupting([]))
    # Other steps have the same numbers, as in a restored buffer that was written to.
    number = scalar(urls[1], "SELECT max(copied_seq) FROM copies")
    table, name = ("chunks", "first_seq") if source.fields else ("experiences", "seq")
    change = "id = :uuid" if source.fields else "inserted_at = '2020-01-01T00:00:00.000Z'"
    newest = f"SELECT max({name}) FROM {table} WHERE {name} <= :number"
    uuid = {"uuid": "deadbeef-0000-4000-8000-000000000000"} if source.fields else {}
    other = f"UPDATE {table} SET {change} WHERE {name} = ({newest})"
    run(urls[0], other, number=number, **uuid)

    with pytest.raises(CopyError, match=r"has another step at seq [0-9]+ than the unfinished copy"):
        source.copy_to(target)


@pytest.mark.thorough
def test_odd_values_are_copied_there_and_back(
    urls: tuple[str, str], make_database_url: MakeDatabaseUrl
) -> None:
    source = odd_steps(urls[0], "source")
    target = emptied(source, urls[1])
    kind = "sqlite" if urls[0].startswith("sqlite") else "postgresql"
    back = emptied(source, make_database_url(kind, schema=True), "back")

    source.copy_to(target)
    target.copy_to(back)

    views = ("v_experiences", "v_priorities")
    assert shown(urls[1], "copy", views) == shown(urls[0], "source", views)
    assert comparable(list(target)) == comparable(list(source)) == comparable(list(back))
