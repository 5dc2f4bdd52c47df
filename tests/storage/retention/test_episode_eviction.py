"""Buffers with a limit of episodes: which rows they hold, whoever writes and however."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import BufferConfigError
from tests.support.processes import run_at_once, wait_until
from tests.support.sql import buffer_id, numbered, run, scalar
from tests.support.stepped_rows import make_rows

FIELDS = {"obs": "float32"}


def store(buffer, key, n):
    return buffer.store_episode({"obs": np.arange(n), "reward": np.ones(n)}, episode_id=key)


def held(url):
    """Return the steps held of each episode, in the order in which they began."""
    rows = run(
        url,
        "SELECT episode_id, count(*) FROM v_experiences GROUP BY episode_id ORDER BY min(seq)",
    )
    return [(key, int(n)) for key, n in rows]


def counts_agree(buffer, url):
    """Tell whether what is counted beside the rows is what the rows are."""
    n_rows = scalar(url, "SELECT count(*) FROM step_numbers")
    n_episodes = scalar(url, "SELECT count(DISTINCT episode_id) FROM step_numbers")
    assert run(url, "SELECT live_rows, live_episodes FROM buffers") == [(n_rows, n_episodes)]
    assert (
        run(
            url,
            "SELECT p.key FROM episodes p WHERE coalesce(n_rows, 0) <> (SELECT count(*) FROM "
            "step_numbers e WHERE e.episode_id = p.id)",
        )
        == []
    )
    assert len(buffer) == buffer.size() == n_rows
    assert len(buffer.sample(10_000)) == n_rows
    return True


def test_the_episodes_that_began_first_leave_whole(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_episodes=2) as buffer:
        assert (buffer.max_episodes, buffer.evict_by, buffer.max_capacity) == (2, "episode", None)
        for i in range(5):
            store(buffer, f"e{i}", i + 2)
        assert held(buffer_url) == [("e3", 5), ("e4", 6)]
        assert counts_agree(buffer, buffer_url)
        lengths = "SELECT episode_id, length FROM v_episodes ORDER BY first_seq"
        assert run(buffer_url, lengths) == [(f"e{i}", i + 2) for i in range(5)]
    with ReplayBuffer(buffer_url, max_episodes=2) as again:
        assert store(again, "e5", 1).inserted == 1
        assert held(buffer_url) == [("e4", 6), ("e5", 1)]


def test_open_episodes_stay_until_they_end(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_episodes=2) as buffer:
        writers = [buffer.episode(episode_id=f"open-{i}") for i in range(4)]
        for writer in writers:
            writer.append(obs=0.0)
        buffer.flush()
        store(buffer, "whole", 3)
        # The one that has ended leaves at once: the open ones began before it, and stay.
        assert [key for key, _ in held(buffer_url)] == [f"open-{i}" for i in range(4)]
        for writer in writers:
            writer.append(obs=1.0)
            writer.end()
            assert counts_agree(buffer, buffer_url)
        assert held(buffer_url) == [("open-2", 2), ("open-3", 2)]


def test_abandoned_episodes_leave(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_episodes=1, open_timeout_s=0.1) as buffer:
        writer = buffer.episode(episode_id="left")
        writer.append(obs=0.0)
        buffer.flush()
        status = "SELECT status FROM v_episodes WHERE episode_id = 'left'"
        wait_until(lambda: scalar(buffer_url, status) == "abandoned", "nobody writes")
        store(buffer, "next", 2)
        assert held(buffer_url) == [("next", 2)]
        assert counts_agree(buffer, buffer_url)


def test_rows_leave_as_well_where_both_limits_are_set(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_episodes=3, max_capacity=10) as buffer:
        for i in range(4):
            store(buffer, f"e{i}", 4)
        assert held(buffer_url) == [("e1", 2), ("e2", 4), ("e3", 4)]
        store(buffer, "long", 30)
        assert held(buffer_url) == [("long", 10)]
        assert counts_agree(buffer, buffer_url)
        # Rows of no episode count as rows.
        buffer.extend({"obs": np.zeros(4)})
        assert held(buffer_url) == [("long", 6), (None, 4)]
        assert len(buffer) == 10


def test_plain_sql_counts(buffer_url):
    with ReplayBuffer(buffer_url, max_episodes=2) as buffer:
        number = buffer_id(buffer_url)
        for i in range(4):
            run(
                buffer_url,
                f"INSERT INTO episodes (buffer_id, key, task_id) VALUES ({number}, 'e{i}', 't')",
            )
            id_ = scalar(buffer_url, f"SELECT id FROM episodes WHERE key = 'e{i}'")
            for t in range(2):
                columns, values = numbered(buffer_url, str(number), str(2 * i + t + 1))
                run(
                    buffer_url,
                    f"INSERT INTO experiences "
                    f"({columns}, task_id, agent_id, step, episode_id, terminated) "
                    f"VALUES ({values}, 't', 'a', {t}, {id_}, {'true' if t else 'false'})",
                )
        assert held(buffer_url) == [("e2", 2), ("e3", 2)]
        run(buffer_url, "DELETE FROM experiences WHERE seq = 8")
        assert counts_agree(buffer, buffer_url)
        run(buffer_url, "DELETE FROM experiences")
        assert counts_agree(buffer, buffer_url)


def test_deletes_and_clear_are_counted(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_episodes=3) as buffer:
        for i in range(3):
            store(buffer, f"e{i}", 4)
        assert buffer.delete(QueryBuilder().eq("exp_meta.task_id", "e1")) == 4
        assert buffer.delete(QueryBuilder().eq("exp_meta.step", 0)) == 2
        assert counts_agree(buffer, buffer_url)
        store(buffer, "e3", 1)
        assert held(buffer_url) == [("e0", 3), ("e2", 3), ("e3", 1)]
        assert buffer.clear() == 7
        assert counts_agree(buffer, buffer_url)
        assert run(buffer_url, "SELECT 1 FROM v_episodes") == []
        assert store(buffer, "e0", 2).inserted == 2


def test_the_limits_change(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_episodes=4) as buffer:
        for i in range(4):
            store(buffer, f"e{i}", 3)
        buffer.resize(max_episodes=2)
        assert held(buffer_url) == [("e2", 3), ("e3", 3)]
        buffer.resize(4)
        assert held(buffer_url) == [("e2", 1), ("e3", 3)]
        assert (buffer.max_capacity, buffer.max_episodes) == (4, 2)
        buffer.resize(None, max_episodes=None)
        for i in range(4, 9):
            store(buffer, f"e{i}", 3)
        assert len(held(buffer_url)) == 7
        assert counts_agree(buffer, buffer_url)
        with pytest.raises(TypeError, match=r"max_capacity=\.\.\., max_episodes="):
            buffer.resize()
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(BufferConfigError, match="max_episodes is an integer from 1 on"):
                buffer.resize(max_episodes=wrong)


def test_settings_that_do_not_go_together_are_refused(buffer_url):
    with pytest.raises(BufferConfigError, match="leave out evict_by='task'"):
        ReplayBuffer(buffer_url, max_episodes=2, evict_by="task")
    for wrong in (0, 2.0, "3"):
        with pytest.raises(BufferConfigError, match="max_episodes is an integer from 1 on"):
            ReplayBuffer(buffer_url, max_episodes=wrong)
        with pytest.raises(BufferConfigError, match="keep_episodes is an integer from 1 on"):
            ReplayBuffer(buffer_url, keep_episodes=wrong)
    buffer = ReplayBuffer(buffer_url, max_episodes=2)
    with pytest.raises(BufferConfigError, match="max_episodes=2, and was opened with max_ep"):
        ReplayBuffer(buffer_url, max_episodes=3)
    with pytest.raises(BufferConfigError, match="evict_by='episode', and was opened with"):
        ReplayBuffer(buffer_url, evict_by="row")
    rows = ReplayBuffer(buffer_url, name="rows")
    with pytest.raises(BufferConfigError, match="evicts by row; a limit of episodes takes"):
        rows.resize(max_episodes=3)
    assert (rows.max_episodes, buffer.max_episodes) == (None, 2)


def write_some(url, name, n):
    with ReplayBuffer(url) as buffer:
        for i in range(n):
            if i % 2:
                store(buffer, f"{name}-{i}", 3)
                continue
            with buffer.episode(episode_id=f"{name}-{i}") as writer:
                for t in range(5):
                    writer.append(obs=t)
                    if t == 2:
                        buffer.flush()


def read_until(url, n):
    """Return the largest numbers of ended episodes and of rows that were ever seen."""
    most = [0, 0]
    with ReplayBuffer(url) as buffer:
        while True:
            ended, rows = run(
                url,
                "SELECT (SELECT count(*) FROM episodes WHERE n_rows > 0 AND status <> 'open'), "
                "(SELECT count(*) FROM v_experiences)",
            )[0]
            most = [max(most[0], ended), max(most[1], rows)]
            assert len(buffer) <= 40
            done = scalar(url, "SELECT count(*) FROM episodes WHERE status = 'complete'")
            if done == n:
                return most


@pytest.mark.thorough
@pytest.mark.slow
def test_both_limits_hold_under_concurrent_writers(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_episodes=6, max_capacity=40) as buffer:
        calls = [(write_some, buffer_url, name, 20) for name in "abcd"]
        *_, most = run_at_once([*calls, (read_until, buffer_url, 80)])
        ended, rows = most
        assert 1 <= ended <= 6
        assert 1 <= rows <= 40
        assert len(held(buffer_url)) <= 6
        assert counts_agree(buffer, buffer_url)
        assert scalar(buffer_url, "SELECT count(*) FROM v_episodes") == 80


@pytest.mark.thorough
@pytest.mark.slow
def test_the_list_of_episodes_has_a_limit_of_its_own(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=6, keep_episodes=5) as buffer:
        other = ReplayBuffer(buffer_url, name="other", fields=FIELDS)
        for i in range(20):
            store(buffer, f"e{i}", 2)
            store(other, f"e{i}", 2)
        listed = run(
            buffer_url,
            "SELECT episode_id FROM v_episodes WHERE buffer = 'default' ORDER BY first_seq",
        )
        # The limit, and the one that began since it was looked at.
        assert [key for (key,) in listed] == [f"e{i}" for i in range(15, 20)]
        assert scalar(buffer_url, "SELECT count(*) FROM v_episodes WHERE buffer = 'other'") == 20
        buffer.resize(None)
        for i in range(20, 40):
            store(buffer, f"e{i}", 2)
        # Those whose steps are held stay.
        listed = scalar(buffer_url, "SELECT count(*) FROM v_episodes WHERE buffer = 'default'")
        assert listed == 23


def test_tasks_and_rows_evict_as_before(buffer_url):
    with ReplayBuffer(buffer_url, name="t", evict_by="task", max_capacity=4) as buffer:
        buffer.store_batch(make_rows(range(9)))
        assert len(buffer) == 4
        assert run(buffer_url, "SELECT live_episodes FROM buffers") == [(0,)]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("whole"), st.integers(1, 4)),
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 2)),
        st.tuples(st.just("rows"), st.integers(1, 3)),
    ),
    max_size=25,
)


PROGRAMS = given(
    actions=ACTIONS, max_episodes=st.integers(1, 3), max_capacity=st.none() | st.integers(1, 9)
)


# The integrations run more of them.
@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@PROGRAMS
def test_it_holds_what_a_model_in_memory_holds(buffer_url, actions, max_episodes, max_capacity):
    check_program(buffer_url, actions, max_episodes, max_capacity)


def check_program(buffer_url, actions, max_episodes, max_capacity):
    ReplayBuffer(buffer_url, name="model", create=True)
    ReplayBuffer.drop(buffer_url, "model")
    buffer = ReplayBuffer(
        buffer_url,
        name="model",
        fields=FIELDS,
        max_episodes=max_episodes,
        max_capacity=max_capacity,
        flush_s=1_000,
    )
    model, writers = Model(max_episodes, max_capacity), {}
    for n, (what, number) in enumerate(actions):
        if what == "whole":
            store(buffer, f"w{n}", number)
            model.add(f"w{n}", number)
            model.end(f"w{n}")
        elif what == "append":
            if number not in writers:
                writers[number] = buffer.episode(episode_id=f"o{n}")
            writers[number].append(obs=1.0)
            buffer.flush()
            model.add(writers[number].episode_id, 1)
        elif what == "end" and number in writers:
            writers[number].end()
            model.end(writers.pop(number).episode_id)
        elif what == "rows":
            buffer.extend({"obs": np.zeros(number)})
            model.add(None, number)
        found = run(
            buffer_url,
            "SELECT episode_id FROM v_experiences WHERE buffer = 'model' ORDER BY seq",
        )
        assert [key for (key,) in found] == model.rows
        assert len(buffer) == len(model.rows)


class Model:
    """What a buffer holds: the episode of each row, oldest first."""

    def __init__(self, max_episodes, max_capacity):
        self.max_episodes, self.max_capacity = max_episodes, max_capacity
        self.rows, self.order, self.ended = [], [], set()

    def add(self, key, n):
        self.rows += [key] * n
        if key not in self.order:
            self.order.append(key)
        self.evict()

    def end(self, key):
        self.ended.add(key)
        self.evict()

    def evict(self):
        while len({key for key in self.rows if key}) > self.max_episodes:
            ended = [key for key in self.order if key in self.rows and key in self.ended]
            if not ended:
                break
            self.rows = [key for key in self.rows if key != ended[0]]
        if self.max_capacity:
            self.rows = self.rows[-self.max_capacity :]
