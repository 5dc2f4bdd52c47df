"""No page of episodes or groups reads more than it shows, or than it says that it looks at (I9)."""

import pytest

from sqlbuffer.storage.browsing.buffers import GROUP_SORTS, group_of, group_page
from sqlbuffer.storage.browsing.rollouts import (
    INDEXED_SORTS,
    SORTS,
    RolloutFilter,
    RolloutQuery,
    group_rewards,
    rollout_page,
)
from sqlbuffer.storage.buffers.catalog import find_buffer
from sqlbuffer.storage.database.transactions import driver_of
from tests.support.sql import buffer_id, connected, fill, is_sqlite
from tests.support.watch import TABLES, watched

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_EPISODES = 100_000
READ = (*TABLES, "rollout_stats", "group_stats", "group_changes")
_NUMBERS = {
    True: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {n}) ",
    False: "WITH n(i) AS (SELECT generate_series(1, {n})) ",
}
# Tasks of ten episodes, and one of half of all.
_TASK = "CASE WHEN i % 2 = 0 THEN 'large' ELSE 't' || (i / 20) END"


def fill_large(url):
    """Fill three buffers with episodes of one step each, one of them without returns."""
    for name, n, returns in (
        ("other", 1_000, "i % 977"),
        ("rows", N_EPISODES, "i % 977"),
        ("unrewarded", N_EPISODES // 4, "NULL"),
    ):
        fill(url, 10, name=name).close()
        add_episodes(url, buffer_id(url, name), n, returns)


def add_episodes(url, id_, n, returns):
    numbers = _NUMBERS[is_sqlite(url)].format(n=n)
    with connected(url) as connection:
        driver = driver_of(connection)
        for statement in (
            "INSERT INTO episodes (id, buffer_id, key, task_id, agent_id, status, length, "
            f'"return", first_seq, last_seq) {{numbers}} SELECT {id_} * 1000000 + i, {id_}, '
            f"'e' || i, {_TASK}, 'a', 'complete', 1, i % 977, i, i FROM n",
            "INSERT INTO rollout_stats (buffer_id, task_id, episode_id, length, "
            f'"return", first_seq, last_seq, group_id) {{numbers}} SELECT {id_}, {_TASK}, '
            f"{id_} * 1000000 + i, i % 91, {returns}, i, i, {_TASK} FROM n",
        ):
            before, select = statement.split("{numbers}")
            driver.execute(f"{numbers} {before} {select}")


@pytest.mark.parametrize("sort", INDEXED_SORTS)
def test_a_page_of_episodes_reads_what_it_shows(large_url, sort):
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, "rows")
        first = rollout_page(connection, info, RolloutQuery(sort=sort))
        second = rollout_page(connection, info, RolloutQuery(sort=sort, after=first.after))
        connection.rollback()
    assert len({row.number for row in first.rollouts + second.rollouts}) == 100
    assert_bounded(watch, 6_000, 150_000)


def assert_bounded(watch, most_rows, most_steps):
    assert watch.rows_scanned < 3_000
    assert watch.rows_fetched < most_rows
    assert watch.steps < most_steps


def test_a_page_by_the_spread_of_small_tasks_reads_what_it_shows(large_url):
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, "rows")
        query = RolloutQuery(sort="spread", after=[500.0, "", 0.0, 0])  # behind the large task
        found = rollout_page(connection, info, query)
        connection.rollback()
    assert len({row.task_id for row in found.rollouts}) == 5
    assert_bounded(watch, 1_000, 150_000)


@pytest.mark.parametrize("sort", ["best", "worst", "spread", "alike"])
def test_a_page_of_rollouts_without_returns_reads_what_it_shows(large_url, sort):
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, "unrewarded")
        if sort in GROUP_SORTS:
            first = group_page(connection, info.id, sort)
            second = group_page(connection, info.id, sort, first.after)
            found = {group.group_id for group in first.groups + second.groups}
        else:
            first = rollout_page(connection, info, RolloutQuery(sort=sort))
            second = rollout_page(connection, info, RolloutQuery(sort=sort, after=first.after))
            found = {row.number for row in first.rollouts + second.rollouts}
        connection.rollback()
    assert len(found) == 100
    assert_bounded(watch, 1_000, 30_000)


@pytest.mark.parametrize(("task", "sort"), [("large", "best"), ("t77", "spread")])
def test_a_filtered_page_reads_what_it_looks_at(large_url, task, sort):
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, "rows")
        found = rollout_page(connection, info, RolloutQuery(sort, filters=(of("task", task),)))
        filters = (of("agent", "a"), of("status", "complete"))
        rollout_page(connection, info, RolloutQuery(sort, filters=filters))
        connection.rollback()
    assert len(found.rollouts) == (50 if task == "large" else 10)
    assert_bounded(watch, 130_000, 8_000_000)


def of(name, value):
    return RolloutFilter(name, "=", value)


def test_an_old_episode_is_found_by_its_id_without_a_look_at_others(large_url):
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, "rows")
        (found,) = rollout_page(
            connection, info, RolloutQuery(filters=(of("episode", "e77"),))
        ).rollouts
        connection.rollback()
    assert found.episode_id == "e77"
    assert_bounded(watch, 1_000, 60_000)


@pytest.mark.parametrize("word", ["e77", "t77", "E9", "none"])
def test_words_are_looked_for_in_the_newest_and_as_whole_ids(large_url, word):
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, "rows")
        found = rollout_page(connection, info, RolloutQuery(words=(word,)))
        connection.rollback()
    assert bool(found.rollouts) == (word != "none")
    assert_bounded(watch, 130_000, 8_000_000)


@pytest.mark.each_value
@pytest.mark.parametrize("sort", [sort for sort in SORTS if sort not in INDEXED_SORTS])
def test_an_order_without_an_index_reads_the_newest(large_url, sort):
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        info = find_buffer(connection, "rows")
        first = rollout_page(connection, info, RolloutQuery(sort=sort))
        second = rollout_page(connection, info, RolloutQuery(sort=sort, after=first.after))
        connection.rollback()
    assert first.looked_at == second.looked_at == 10_000
    assert len({row.number for row in first.rollouts + second.rollouts}) == 100
    assert_bounded(watch, 130_000, 8_000_000)


@pytest.mark.parametrize("sort", GROUP_SORTS)
def test_a_page_of_groups_reads_what_it_shows(large_url, sort):
    id_ = buffer_id(large_url, "rows")
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        first = group_page(connection, id_, sort)
        second = group_page(connection, id_, sort, first.after)
        group_of(connection, id_, "large")
        connection.rollback()
    assert len({group.group_id for group in first.groups + second.groups}) == 100
    # Other orders have no index: they read the row of each group, and no step.
    is_indexed = sort.split()[0] not in ("mean", "deviation", "episodes")
    assert_bounded(watch, *((1_000, 30_000) if is_indexed else (130_000, 8_000_000)))


def test_the_rewards_of_a_group_are_read_up_to_their_limit(large_url):
    id_ = buffer_id(large_url, "rows")
    with watched(large_url, tables=READ) as watch, watch.engine.connect() as connection:
        assert len(group_rewards(connection, id_, "large", 500)) == 500
        assert len(group_rewards(connection, id_, "t77", 500)) == 10
        connection.rollback()
    assert_bounded(watch, 1_000, 30_000)
