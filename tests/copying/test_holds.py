"""A copy holds what leaves the window of its source until it is copied."""

from collections.abc import Callable
from typing import Any

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import CopyError
from tests.support.sql import buffer_id, run, scalar

CAPACITY, BATCH = 60, 20
OnProgress = Callable[[int, int, range], None]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlbuffer.storage.copies.source.MOST_ROWS", BATCH)
    monkeypatch.setattr("sqlbuffer.storage.copies.source.MOST_CHUNKS", 1)


def ring(url: str, fields: Any, **settings: Any) -> ReplayBuffer:
    """Return a wrapped ring, with something in each overlay."""
    settings = {"max_capacity": CAPACITY, "priorities": True, **settings}
    buffer = ReplayBuffer(url, "source", create=True, fields=fields, **settings)
    for i in range(5):
        store(buffer, i)
    seqs = [row.seq for row in buffer]
    buffer.annotate(seqs[::5], reward=3.0, version=1)
    buffer.update_priorities(seqs, [float(seq) for seq in seqs])
    buffer.quarantine(seqs[3:6], reason="why")
    return buffer


def store(buffer: ReplayBuffer, i: int) -> None:
    """Store a batch, of a task and an episode of its own."""
    numbers = range(i * BATCH, (i + 1) * BATCH)
    columns = {"x": list(numbers)} if buffer.fields else {"state": [{"x": x} for x in numbers]}
    buffer.store_episode(
        {**columns, "reward": [float(x) for x in numbers]}, task_id=f"t{i}", episode_id=f"e{i}"
    )


def once(act: Callable[[], Any]) -> OnProgress:
    """Return what acts after the first batch of a copy."""
    waiting = [act]
    return lambda *_: waiting.pop()() if waiting else None


def wrap(buffer: ReplayBuffer, first: int = 5, n: int = 9) -> None:
    for i in range(first, first + n):
        store(buffer, i)


def copy_of(source: ReplayBuffer, url: str) -> ReplayBuffer:
    return ReplayBuffer(url, "copy", create=True, config=source.config)


def contents(buffer: ReplayBuffer) -> list[Any]:
    return [(row.seq, row.exp_data, row.fields) for row in buffer]


def held_steps(url: str, name: str = "source") -> int:
    """Return how many steps the tables hold, in the window or below it."""
    own = buffer_id(url, name)
    n: int = scalar(url, "SELECT count(*) FROM step_numbers WHERE buffer_id = :id", id=own)
    return n


def end_holds(url: str) -> None:
    run(url, "DELETE FROM holds")


def is_flagged(url: str) -> bool:
    return bool(scalar(url, "SELECT has_holds FROM buffers WHERE name = 'source'"))


@pytest.fixture(params=[None, {"x": "int64"}], ids=["rows", "chunks"])
def fields(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.each_value
@pytest.mark.thorough
def test_steps_that_leave_the_window_are_copied_and_then_deleted(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields)
    before = contents(source)
    priorities = run(buffer_url, "SELECT seq, priority FROM v_priorities ORDER BY seq")
    target = copy_of(source, sqlite_url)
    windows: list[Any] = []

    def outpace() -> None:
        wrap(source)
        windows.append(([row.seq for row in source], len(source), held_steps(buffer_url)))

    report = source.copy_to(target, on_progress=once(outpace))

    assert contents(target) == before
    assert run(sqlite_url, "SELECT seq, priority FROM v_priorities ORDER BY seq") == priorities
    assert len(run(sqlite_url, "SELECT seq FROM v_labels")) == CAPACITY // 5
    assert run(sqlite_url, "SELECT reason FROM v_quarantine") == [("why",)] * 3
    assert report.n_steps == CAPACITY
    # What users see of the source has gone on.
    ((seqs, n, n_held),) = windows
    assert seqs == list(range(5 * BATCH + 9 * BATCH - CAPACITY + 1, 5 * BATCH + 9 * BATCH + 1))
    assert n == CAPACITY
    assert n_held >= 9 * BATCH + CAPACITY - BATCH
    store(source, 14)
    store(source, 15)
    assert held_steps(buffer_url) <= CAPACITY + BATCH
    assert not is_flagged(buffer_url)
    low = min(row.seq for row in source)
    own = buffer_id(buffer_url, "source")
    for table in ("labels", "label_history", "quarantine"):
        left = f"SELECT count(*) FROM {table} WHERE buffer_id = :id AND seq < :low - 20"
        assert scalar(buffer_url, left, id=own, low=low) == 0


@pytest.mark.each_value
@pytest.mark.thorough
def test_priorities_of_held_steps_are_copied_while_learners_clean_up(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields, max_use=1000)
    target = copy_of(source, sqlite_url)
    before = run(buffer_url, "SELECT seq, priority FROM v_priorities ORDER BY seq")

    def outpace() -> None:
        for i in range(5, 40):
            store(source, i)
            source.sample(8)
            newest = [row.seq for row in source][-BATCH:]
            source.update_priorities(newest, [1.0] * BATCH)

    source.copy_to(target, on_progress=once(outpace))

    assert run(sqlite_url, "SELECT seq, priority FROM v_priorities ORDER BY seq") == before


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("unit", ["task", "episode"])
def test_tasks_and_episodes_are_evicted_when_the_copy_is_complete(
    buffer_url: str, sqlite_url: str, fields: Any, unit: str
) -> None:
    limits = {"max_episodes": 3} if unit == "episode" else {}
    source = ring(buffer_url, fields, evict_by=unit, **limits)
    before = contents(source)
    target = copy_of(source, sqlite_url)
    counts: list[int] = []

    def outpace() -> None:
        wrap(source, n=4)
        counts.append(len(source))

    report = source.copy_to(target, on_progress=once(outpace))

    assert contents(target) == before
    assert (report.n_steps, counts) == (CAPACITY, [CAPACITY + 4 * BATCH])
    store(source, 10)
    assert len(source) == held_steps(buffer_url) == CAPACITY
    assert not is_flagged(buffer_url)


@pytest.mark.thorough
def test_rows_of_plain_sql_evict_nothing_that_is_held(buffer_url: str, sqlite_url: str) -> None:
    source = ring(buffer_url, None)
    before = contents(source)
    target = copy_of(source, sqlite_url)
    insert = (
        "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) "
        "SELECT id, 'typed', 'a', :step FROM buffers WHERE name = 'source'"
    )

    def outpace() -> None:
        for step in range(CAPACITY):
            run(buffer_url, insert, step=step)
        assert len(source) == CAPACITY

    source.copy_to(target, on_progress=once(outpace))

    assert contents(target) == before
    run(buffer_url, insert, step=1000)
    run(buffer_url, insert, step=1001)
    assert held_steps(buffer_url) <= CAPACITY + BATCH


@pytest.mark.thorough
def test_leased_buffers_hold_what_leaves_their_window(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields, leases=True, max_use=2)
    before = contents(source)
    target = copy_of(source, sqlite_url)
    insert = (
        "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) "
        "SELECT id, 'typed', 'a', 1 FROM buffers WHERE name = 'source'"
    )

    def outpace() -> None:
        wrap(source)
        if fields is None:
            run(buffer_url, insert)
        for _ in range(2):
            with source.lease(5):
                pass

    source.copy_to(target, on_progress=once(outpace))

    assert contents(target) == before
    store(source, 14)
    store(source, 15)
    assert held_steps(buffer_url) <= CAPACITY + BATCH


def test_held_steps_whose_ids_are_stored_again_are_copied_without_their_ids(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ReplayBuffer(buffer_url, "source", create=True, fields=fields, max_capacity=CAPACITY)

    def store_ids(first: int) -> None:
        for start in range(first, first + CAPACITY, BATCH):
            numbers = range(start, start + BATCH)
            own = {"x": list(numbers)} if fields else {"state": [{"x": x} for x in numbers]}
            source.extend(own, task_id="t", step=list(numbers), id=[f"id-{n}" for n in numbers])

    store_ids(0)
    before = contents(source)
    target = copy_of(source, sqlite_url)

    def outpace() -> None:
        store_ids(CAPACITY)
        store_ids(0)

    source.copy_to(target, on_progress=once(outpace))

    assert contents(target) == before
    given = [row.id for row in target if str(row.id).startswith("id-")]
    assert given == [f"id-{n}" for n in range(BATCH)]
    assert [row.id for row in source] == [f"id-{n}" for n in range(CAPACITY)]


@pytest.mark.thorough
def test_an_episode_that_is_stored_again_while_it_is_held_keeps_its_steps_in_the_copy(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields)
    query = "SELECT seq, episode_id FROM v_experiences ORDER BY seq"
    before = run(buffer_url, query)
    target = copy_of(source, sqlite_url)

    def outpace() -> None:
        wrap(source)
        wrap(source, first=2, n=3)

    source.copy_to(target, on_progress=once(outpace))

    assert run(sqlite_url, query) == before


@pytest.mark.thorough
def test_a_copy_that_was_broken_off_notices_that_an_episode_was_stored_again(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields)
    target = copy_of(source, sqlite_url)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.copy_to(target, on_progress=once(interrupt))
    wrap(source)
    wrap(source, first=2, n=3)
    with pytest.raises(CopyError, match="was stored again under the same id"):
        source.copy_to(target)


@pytest.mark.thorough
def test_a_resize_deletes_nothing_that_is_held(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields)
    before = contents(source)
    target = copy_of(source, sqlite_url)

    source.copy_to(target, on_progress=once(lambda: source.resize(5)))

    assert contents(target) == before
    assert len(source) == 5


@pytest.mark.thorough
def test_rows_that_are_too_old_stay_until_the_copy_is_complete(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ReplayBuffer(buffer_url, "source", create=True, fields=fields, max_staleness=1)
    for version in range(3):
        columns = {"x": [1, 2]} if fields else {"state": [{}, {}]}
        source.store_episode(columns, model_version=version)
    target = copy_of(source, sqlite_url)
    removed: list[int] = []

    def expire() -> None:
        source.set_clock(9)
        removed.append(source.expire().total)

    source.copy_to(target, on_progress=once(expire))

    assert (len(target), removed) == (6, [0])
    assert source.expire().total == 6


@pytest.mark.thorough
def test_a_copy_whose_hold_has_ended_names_the_steps_that_have_left(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields)
    first = min(row.seq for row in source)
    target = copy_of(source, sqlite_url)

    def outpace() -> None:
        end_holds(buffer_url)
        wrap(source, n=2)

    with pytest.raises(CopyError, match=f"steps {first + BATCH} to {first + 2 * BATCH - 1} of "):
        source.copy_to(target, on_progress=once(outpace))
    with pytest.raises(CopyError, match=r"left .* before they were copied .* copy again"):
        source.copy_to(target)


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("unit", ["task", "episode"])
def test_a_copy_whose_hold_has_ended_notices_tasks_and_episodes_that_have_left(
    buffer_url: str, sqlite_url: str, fields: Any, unit: str
) -> None:
    limits = {"max_episodes": 3} if unit == "episode" else {}
    source = ring(buffer_url, fields, evict_by=unit, **limits)
    target = copy_of(source, sqlite_url)

    def outpace() -> None:
        end_holds(buffer_url)
        wrap(source, n=2)

    with pytest.raises(CopyError, match="20 of the steps"):
        source.copy_to(target, on_progress=once(outpace))
    with pytest.raises(CopyError, match=r"20 of the steps .* copy again"):
        source.copy_to(target)


@pytest.mark.thorough
def test_a_copy_that_is_broken_off_keeps_its_hold_for_a_while(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields)
    before = contents(source)
    target = copy_of(source, sqlite_url)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.copy_to(target, on_progress=once(interrupt))
    wrap(source)
    assert source.copy_to(target).n_copied == CAPACITY - BATCH
    assert contents(target) == before


@pytest.mark.thorough
def test_a_copy_goes_on_without_its_hold_if_nothing_has_left(
    buffer_url: str, sqlite_url: str, fields: Any
) -> None:
    source = ring(buffer_url, fields)
    before = contents(source)
    target = copy_of(source, sqlite_url)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.copy_to(target, on_progress=once(interrupt))
    end_holds(buffer_url)
    store(source, 5)
    source.copy_to(target, on_progress=once(lambda: wrap(source, first=6)))
    assert contents(target) == before


@pytest.mark.thorough
def test_a_source_that_may_only_be_read_is_copied_without_a_hold(
    sqlite_url: str, tmp_path: Any, fields: Any
) -> None:
    source = ring(sqlite_url, fields)
    before = contents(source)
    with ReplayBuffer(f"{sqlite_url}?mode=ro", "source", create=False) as reader:
        target = copy_of(source, f"sqlite:///{tmp_path / 'copy.db'}")
        reader.copy_to(target)
        assert contents(target) == before
        late = copy_of(source, f"sqlite:///{tmp_path / 'late.db'}")
        with pytest.raises(CopyError, match=r"steps \d+ to \d+ .*\(the source cannot be written"):
            reader.copy_to(late, on_progress=once(lambda: wrap(source)))
    assert not is_flagged(sqlite_url)
