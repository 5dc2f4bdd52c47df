"""Annotations by several processes at once, and over connections that are cut."""

from typing import Any

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.support.processes import run_at_once
from tests.support.proxy import proxied
from tests.support.sql import run, scalar

FIELDS = {"x": "int64"}
N_JUDGES, N_ROUNDS, N_EPISODES = 3, 8, 16
LIMITS: dict[str, dict[str, Any]] = {
    "unlimited": {},
    "row": {"max_capacity": 100},
    "episode": {"max_episodes": 12},
}


def write(url: str) -> None:
    """Store episodes of eight steps whose rewards are 1, step by step, two at once."""
    with ReplayBuffer(url) as buffer:
        for _ in range(N_EPISODES // 2):
            both = [buffer.episode(), buffer.episode()]
            for t in range(8):
                for episode in both:
                    episode.append(x=t, reward=1.0)
                if t % 3 == 0:
                    buffer.flush()
            for episode in both:
                episode.end()


def judge(url: str, own: int, n_judges: int) -> None:
    """Label all rows that there are, in any order; each version is used once, by one judge."""
    rng = np.random.default_rng(own)
    with ReplayBuffer(url) as buffer:
        for i in range(N_ROUNDS):
            there = [seq for (seq,) in run(url, "SELECT seq FROM v_experiences")]
            if there:
                version = int(rng.permutation(N_ROUNDS)[i]) * n_judges + own
                seqs = rng.permutation(there)
                buffer.annotate(seqs, reward=seqs * 1000.0 + version, version=version)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_judges_of_the_same_rows_agree_with_writers_beside_them(
    buffer_url: str, limit: str
) -> None:
    ReplayBuffer(buffer_url, fields=FIELDS, **LIMITS[limit]).close()
    judges = [(judge, buffer_url, own, N_JUDGES) for own in range(N_JUDGES)]
    run_at_once([(write, buffer_url), *judges])
    judge(buffer_url, 0, N_JUDGES)  # what was written after the others had looked
    highest = dict(run(buffer_url, "SELECT seq, max(version) FROM v_labels GROUP BY seq"))
    rewards = dict(run(buffer_url, "SELECT seq, reward FROM v_experiences"))
    assert rewards == {seq: 1000.0 * seq + version for seq, version in highest.items()}
    assert len(rewards) >= 90
    if limit == "row":
        return
    # Of episodes that are held whole the return is the sum of what holds.
    sums = dict(
        run(buffer_url, "SELECT episode_id, sum(reward) FROM v_experiences GROUP BY episode_id")
    )
    returns = dict(run(buffer_url, "SELECT episode_id, episode_return FROM v_episodes"))
    assert {key: returns[key] for key in sums} == pytest.approx(sums)
    assert len(sums) >= 12


def note_versions(url: str, n: int) -> None:
    with ReplayBuffer(url) as buffer:
        for _ in range(n):
            buffer.annotate([3, 1, 2], reward=1.0)


@pytest.mark.thorough
@pytest.mark.slow
def test_each_annotation_without_a_version_has_its_own(buffer_url: str) -> None:
    with ReplayBuffer(buffer_url) as buffer:
        for i in range(3):
            buffer.add(state=i)
    run_at_once([(note_versions, buffer_url, 10)] * 3)
    versions = run(buffer_url, "SELECT version, count(*) FROM v_labels GROUP BY 1 ORDER BY 1")
    assert versions == [(version, 3) for version in range(1, 31)]


@pytest.mark.thorough
@pytest.mark.parametrize("cuts", [["before"], ["after"], ["after", "before"], ["before", "after"]])
def test_an_annotation_whose_connection_is_cut_is_written_once(
    postgres_url: str, cuts: list[str | None]
) -> None:
    with proxied(postgres_url) as proxy, ReplayBuffer(proxy.url, create=True) as buffer:
        buffer.store_episode({"state": [0, 1], "reward": [1.0, 1.0]})
        proxy.cuts = list(cuts)
        assert buffer.annotate([1, 2], reward=[5.0, 6.0]) == 2
        assert proxy.n_cut == len(cuts)
        assert run(postgres_url, "SELECT seq, version FROM v_labels ORDER BY 1") == [
            (1, 1),
            (2, 1),
        ]
        assert scalar(postgres_url, "SELECT episode_return FROM v_episodes") == 11.0
        engine_for(resolve_url(proxy.url)).dispose()


def test_one_that_came_meanwhile_is_not_written_over_by_the_second_attempt(
    postgres_url: str,
) -> None:
    with proxied(postgres_url) as proxy, ReplayBuffer(proxy.url, create=True) as buffer:
        buffer.add(state=0)
        direct = ReplayBuffer(postgres_url)
        proxy.cuts = ["after"]
        proxy.on_cut = lambda: direct.annotate([1], reward=9.0)
        buffer.annotate([1], reward=5.0)
        assert scalar(postgres_url, "SELECT reward FROM v_experiences") == 9.0
        engine_for(resolve_url(proxy.url)).dispose()
