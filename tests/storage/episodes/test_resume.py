"""Episodes that another writer continues, and writers that were replaced."""

import multiprocessing
import os
import random
import signal
import time
from functools import partial

import pytest
from sqlalchemy import text

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    ArgumentError,
    EpisodeEndedError,
    EpisodeTakenError,
    FieldError,
    OutOfOrderError,
)
from sqlbuffer.interchange import export_parquet, import_parquet
from tests.support.processes import FRESH, wait_until
from tests.support.sql import run
from tests.support.storage_hooks import engine_of

pytestmark = pytest.mark.combinations

KILLS = int(os.environ.get("SQLBUFFER_TEST_KILLS", "8"))
LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
WRITER = "00000000-0000-4000-8000-000000000000"
STATE = "SELECT status, length, episode_return, attempt FROM v_episodes WHERE episode_id = 'e'"
STEPS = (
    "SELECT step, attempt, model_version FROM v_experiences WHERE episode_id = 'e' ORDER BY step"
)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


@pytest.fixture
def opened(buffer_url, layout):
    """Open the buffer, as another process does each time."""
    buffers = []

    def make(**settings):
        buffers.append(ReplayBuffer(buffer_url, **layout, **settings))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.close()


def step(buffer, value=0.0, **more):
    return {"obs" if buffer.fields else "state": value, "reward": 1.0, **more}


def begun(buffer, n=2, version=4, **options):
    episode = buffer.episode("t", episode_id="e", model_version=version, **options)
    for i in range(n):
        episode.append(**step(buffer, float(i)))
    buffer.flush()
    return episode


def test_another_process_continues_what_one_has_begun(opened, buffer_url):
    first, second = opened(), opened()
    begun(first)
    with begun(second, 0, 5, resume=True) as episode:
        assert (episode.t, episode.attempt, episode.episode_return) == (2, 2, 2.0)
        assert [row.exp_meta.step for row in episode.steps()] == [0, 1]
        episode.append(**step(second, 2.0))
        episode.append(**step(second, 3.0), model_version=6, terminated=True)
        assert [row.exp_meta.model_version for row in episode.steps()] == [4, 4, 5, 6]
    assert run(buffer_url, STATE) == [("complete", 4, 4.0, 2)]
    assert run(buffer_url, STEPS) == [(0, 1, 4), (1, 1, 4), (2, 2, 5), (3, 2, 6)]


def test_a_writer_that_was_replaced_stores_nothing_more(opened, buffer_url):
    first, second = opened(), opened()
    old = begun(first)
    new = begun(second, 0, resume=True)
    named = rf"continued by {os.uname().nodename}/{os.getpid()} at .* as attempt 2; .* is attempt 1"
    old.append(**step(first))
    other = first.episode("t", episode_id="other")
    other.append(**step(first))
    with pytest.raises(EpisodeTakenError, match=named):
        old.end()
    other.end()  # a neighbour in the same batch is stored
    with pytest.raises(FieldError, match="has ended"):
        old.append(**step(first))
    new.append(**step(second))
    new.end()
    assert run(buffer_url, STATE) == [("complete", 3, 3.0, 2)]
    assert len(second) == 4


def test_the_error_reaches_append_flush_or_abort(opened):
    first, second = opened(), opened()
    old = begun(first)
    begun(second, 0, resume=True)
    old.append(**step(first))
    with pytest.raises(EpisodeTakenError):
        first.flush()
    first.flush()  # it was said
    for call in (lambda: old.append(**step(first)), old.abort):
        with pytest.raises(EpisodeTakenError, match="attempt 2"):
            call()


def test_a_replaced_writer_does_not_end_the_episode(opened, buffer_url):
    first, second = opened(), opened()
    old = begun(first)
    begun(second, 0, resume=True)
    with pytest.raises(EpisodeTakenError):
        old.end(reward=5.0)
    assert run(buffer_url, STATE) == [("open", None, None, 2)]


def test_a_writer_that_ends_while_its_steps_are_refused_does_not_end_the_episode(
    opened, buffer_url
):
    first = opened(flush_s=0.001)
    episode = begun(first)
    first.flush()
    with engine_of(buffer_url).begin() as connection:
        # As a writer of another process does.
        connection.execute(text("UPDATE episodes SET attempt = 2, writer = :id"), {"id": WRITER})
        episode.append(**step(first))
        time.sleep(0.1)  # its steps wait for the transaction
        episode.finish()
    with pytest.raises(EpisodeTakenError):
        episode.steps()
    assert run(buffer_url, STATE) == [("open", None, None, 2)]


def test_in_one_process_the_later_writer_stays(opened, buffer_url):
    buffer = opened()
    old = begun(buffer)
    old.append(**step(buffer))  # pending, and still its own
    new = buffer.episode("t", episode_id="e", resume=True)
    assert new.t == 3
    new.append(**step(buffer))
    with pytest.raises(EpisodeTakenError, match="in this process as attempt 2; this is attempt 1"):
        old.append(**step(buffer))
    new.end()
    assert run(buffer_url, STATE) == [("complete", 4, 4.0, 2)]


def test_writes_without_an_attempt_are_refused_after_a_resume(opened, buffer_url, layout):
    first, second = opened(), opened()
    begun(first)
    first.add(task_id="t", episode_id="e", **step(first), step=2)  # none has continued it yet
    begun(second, 0, resume=True)
    n = len(first)
    for call in (
        lambda: first.add(task_id="t", episode_id="e", **step(first)),
        lambda: first.extend(
            {"obs" if layout else "state": [0.0]}, task_id="t", episode_id="e", step=[9]
        ),
        lambda: first.store_batch(_copies(first)),
    ):
        with pytest.raises(EpisodeTakenError, match="attempt 2; this write names no attempt"):
            call()
    if not layout:
        with pytest.raises(Exception, match="only it adds steps"):
            run(
                buffer_url,
                "INSERT INTO v_experiences (buffer, task_id, agent_id, step, episode_id) "
                "VALUES ('default', 't', 'a', 9, 'e')",
            )
    assert len(first) == n


def _copies(buffer):
    rows = list(buffer)[:1]
    for row in rows:
        row.id, row.seq = "new", None
        row.exp_meta.step = 9
    return rows


@pytest.mark.each_value
@pytest.mark.parametrize("status", ["aborted", "abandoned", "unowned"])
def test_what_can_be_continued(opened, buffer_url, status):
    first, second = opened(open_timeout_s=0.01), opened()
    if status == "unowned":
        first.add(task_id="t", episode_id="e", **step(first), step=0)
        first.add(task_id="t", episode_id="e", **step(first), step=1)
    elif status == "aborted":
        begun(first).abort()
    else:
        begun(first)
        time.sleep(0.05)
        assert run(buffer_url, STATE)[0][0] == "abandoned"
    with begun(second, 0, resume=True) as episode:
        assert (episode.t, episode.attempt) == (2, 2)
        episode.append(**step(second))
    assert run(buffer_url, STATE) == [("complete", 3, 3.0, 2)]
    with pytest.raises(EpisodeEndedError, match="is complete, and cannot be continued"):
        begun(first, 0, resume=True)


def test_what_cannot_be_continued_and_what_begins(opened, buffer_url):
    buffer = opened(leases=True, max_use=2)
    with begun(buffer, 0, resume=True) as episode:
        assert (episode.t, episode.attempt, episode.steps()) == (0, 1, [])
        episode.append(**step(buffer))
        episode.abort()
    with buffer.lease(1, timeout_s=0) as batch:
        assert len(batch) == 1
        with pytest.raises(EpisodeEndedError, match="a lease holds it"):
            begun(buffer, 0, resume=True)
    with pytest.raises(EpisodeEndedError, match="a lease has used it"):
        begun(buffer, 0, resume=True)
    with pytest.raises(ArgumentError, match="give episode_id"):
        buffer.episode("t", resume=True)
    with pytest.raises(ArgumentError, match="resume"):
        buffer.episode("t", episode_id="x", resume="yes")
    assert run(buffer_url, STATE) == [("aborted", 1, 1.0, 1)]


def test_the_next_number_is_known_where_steps_were_evicted(opened):
    buffer = opened(max_capacity=3)
    begun(buffer, 5)
    with begun(buffer, 0, resume=True) as episode:
        assert episode.t == 5
        assert [row.exp_meta.step for row in episode.steps()] == [2, 3, 4]
        episode.append(**step(buffer))
    assert [row.exp_meta.step for row in buffer] == [3, 4, 5]


def write_in_block(episode, buffer):
    with episode:
        episode.append(**step(buffer))


def test_a_replaced_writer_does_not_touch_its_successor(opened, buffer_url):
    first, second = opened(), opened()
    for how in ("abort", "end", "block"):
        old = first.episode("t", episode_id=how)
        if how != "abort":  # one without a step
            old.append(**step(first))
            first.flush()
        new = second.episode("t", episode_id=how, resume=True)
        new.append(**step(second))
        second.flush()
        old.append(**step(first))
        with pytest.raises(EpisodeTakenError):
            first.flush()
        call = {"abort": old.abort, "end": old.end, "block": partial(write_in_block, old, first)}
        with pytest.raises(EpisodeTakenError):
            call[how]()
        new.append(**step(second))
        new.end(reward=0.5)
    states = "SELECT status, length, reward FROM v_episodes ORDER BY episode_id"
    assert run(buffer_url, states) == [
        ("complete", 2, 0.5), ("complete", 3, 0.5), ("complete", 3, 0.5),
    ]  # fmt: skip


def test_two_writers_of_one_process_are_told_apart(opened, buffer_url):
    buffer = opened()
    old = begun(buffer)
    new = buffer.episode("t", episode_id="e", resume=True)
    for call in (lambda: old.append(**step(buffer, 9.0)), old.end, old.abort):
        with pytest.raises(EpisodeTakenError, match="in this process"):
            call()
    new.end(reward=1.0)
    assert run(buffer_url, STATE) == [("complete", 2, 2.0, 2)]


def test_an_id_begins_again_after_its_episode_was_deleted(opened, buffer_url):
    buffer = opened()
    begun(buffer, 2)
    begun(buffer, 0, resume=True)
    assert buffer.delete_episodes(["e"], task_ids=["t"]) == 1
    with begun(buffer, 1) as episode:
        episode.append(**step(buffer))
    assert run(buffer_url, STATE) == [("complete", 2, 2.0, 1)]


def test_an_end_keeps_the_verdict_that_came_before_it(opened, buffer_url):
    buffer, other = opened(), opened()
    episode = begun(buffer)
    other.annotate_episode("e", reward=0.7)
    episode.end()
    assert run(buffer_url, "SELECT reward FROM v_episodes") == [(0.7,)]
    second = buffer.episode("t", episode_id="f")
    second.append(**step(buffer))
    buffer.flush()
    other.end_episode("f")
    with pytest.raises(EpisodeEndedError):
        second.end(reward=1.0)


def test_steps_with_numbers_of_their_own_are_not_continued(opened):
    buffer = opened()
    names = {"obs" if buffer.fields else "state": [0.0, 1.0]}
    buffer.extend(names, task_id="t", episode_id="e", step=[10, 11])
    with pytest.raises(OutOfOrderError, match="newest step is 11, and a writer would go on with 2"):
        begun(buffer, 0, resume=True)


def test_a_thousand_refused_writers_are_no_problem(opened):
    first, second = opened(max_pending=5_000), opened()
    episodes = [first.episode("t", episode_id=f"e{i}") for i in range(1_100)]
    second.end_episodes([episode.episode_id for episode in episodes[:20]], status="aborted")
    for episode in episodes:
        episode.append(**step(first))
    with pytest.raises(EpisodeEndedError):
        first.flush()
    assert len(second) == 1_080


def test_a_mirror_draws_a_continued_episode_as_sql_does(buffer_url):
    with ReplayBuffer(buffer_url, **LAYOUTS["typed"]) as buffer, buffer.mirror() as mirror:
        begun(buffer, 4).abort()
        assert len(mirror.sample_arrays(8).obs) == 8
        with begun(buffer, 0, 5, resume=True) as episode:
            for i in range(4, 7):
                episode.append(**step(buffer, float(i)))
            episode.end(obs=7.0)
        for source in (buffer, mirror):
            batch = source.sample_transitions(400, n_step=1)
            pairs = set(zip(batch.obs.tolist(), batch.next_obs.tolist(), strict=True))
            assert pairs == {(float(i), float(i + 1)) for i in range(7)}
        assert buffer.delete(QueryBuilder().eq("model_version", 5).build()) == 3


def shown(url, name):
    """Return what the views show of the steps and of the episodes of a buffer."""
    steps = "SELECT episode_id, step, attempt, reward FROM v_experiences WHERE buffer = :name"
    whole = "SELECT episode_id, status, length, attempt FROM v_episodes WHERE buffer = :name"
    return [sorted(run(url, statement, name=name)) for statement in (steps, whole)]


@pytest.mark.parametrize("target", ["sqlite", "postgresql"])
def test_copies_and_exports_keep_attempts_and_go_on(
    opened, buffer_url, make_database_url, layout, tmp_path, target
):
    buffer, url = opened(), make_database_url(target, schema=True)
    begun(buffer)
    with begun(buffer, 0, 5, resume=True) as episode:
        episode.append(**step(buffer, 2.0), terminated=True)
    for i in range(2):
        buffer.add(task_id="t", episode_id="f", **step(buffer), step=i, terminated=i == 1)
    buffer.annotate([1], reward=5.0)
    with ReplayBuffer(url, "copy", create=True, config=buffer.config) as copy:
        buffer.copy_to(copy)
    export_parquet(buffer, tmp_path / "out")
    import_parquet(tmp_path / "out", url, "restored")
    for name in ("copy", "restored"):
        assert shown(url, name) == shown(buffer_url, "default")
        with ReplayBuffer(url, name, create=False) as other:
            other.add(task_id="t", episode_id="f", **step(other), step=2)
            other.end_episode("f", status="aborted")
            with other.episode("t", episode_id="f", resume=True) as episode:
                assert episode.t == 3
                episode.append(**step(other))
        assert ("f", "complete", 4, 2) in shown(url, name)[1]


def keep_writing(url, layout, number, path):
    """Continue the episode and append steps; write down how many a flush has stored."""
    rng = random.Random(number)
    with ReplayBuffer(url, flush_s=0.001, **layout) as buffer, open(path, "a") as acknowledged:
        try:
            episode = buffer.episode("t", episode_id="e", model_version=number, resume=True)
            while True:
                t = episode.t
                episode.append(**step(buffer, float(t)))
                if rng.random() < 0.5:
                    buffer.flush()
                    print(t + 1, file=acknowledged, flush=True)
        except EpisodeTakenError:
            return


@pytest.mark.thorough
def test_a_killed_writer_is_continued_without_loss(buffer_url, layout, tmp_path):
    """Half of the writers are killed, and half are replaced while they write."""
    context = multiprocessing.get_context(FRESH)
    paths, living = [], []
    ReplayBuffer(buffer_url, **layout).close()
    rng = random.Random(KILLS)
    for number in range(KILLS):
        paths.append(tmp_path / f"{number}.txt")
        process = context.Process(
            target=keep_writing, args=(buffer_url, layout, number, paths[-1]), daemon=True
        )
        process.start()
        living.append(process)
        wait_until(lambda path=paths[-1]: path.exists() and path.stat().st_size, "it has stored")
        time.sleep(rng.uniform(0, 0.05))
        if rng.random() < 0.5:
            os.kill(process.pid, signal.SIGKILL)
            process.join(30)
    for process in living:
        process.kill()
        process.join(30)
    said = [int(path.read_text().rpartition("\n")[0].split()[-1]) for path in paths]
    with ReplayBuffer(buffer_url, **layout) as buffer:
        episode = buffer.episode("t", episode_id="e", resume=True)
        rows = episode.steps()
        assert [row.exp_meta.step for row in rows] == list(range(episode.t))
        values = [row.fields["obs"] if layout else row.exp_data.state for row in rows]
        assert values == [float(t) for t in range(episode.t)]
        of_writers = [row.exp_meta.model_version for row in rows]
        assert of_writers == sorted(of_writers)
        n_until = {number: t + 1 for t, number in enumerate(of_writers)}
        assert all(n_until[number] >= n for number, n in enumerate(said))
        assert sorted(n_until) == list(range(KILLS))
