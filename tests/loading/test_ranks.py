"""Loaders warn where several ranks would read the same rows."""

import warnings

import pytest

from sqlbuffer import ReplayBuffer, mix
from sqlbuffer.loading.ranks import RanksWarning


@pytest.fixture
def buffer():
    with ReplayBuffer("sqlite://", fields={"x": "int64"}) as buffer:
        buffer.extend({"x": range(8)})
        yield buffer


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"epochs": 1}, "visits all rows.*DistributedSampler"),
        ({"shuffle": False}, "visits all rows.*DistributedSampler"),
        ({"seed": 3}, "the same seed draw the same.*leave out seed"),
    ],
)
def test_a_loader_warns_once_in_one_of_two_ranks(buffer, monkeypatch, options, advice):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(RanksWarning, match=rf"WORLD_SIZE is 2.*{advice}") as caught:
        loader = buffer.loader("step", 4, **options)
    assert len(next(iter(loader))) == 4
    assert [warning.filename for warning in caught] == [__file__]


def test_a_mixture_with_a_seed_warns_too(buffer, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(RanksWarning, match="the same seed"):
        mix({buffer: 1.0}).loader("step", 4, seed=3)


@pytest.mark.parametrize("size", [None, "", "1", "many"])
def test_without_several_ranks_nothing_is_said(buffer, monkeypatch, size):
    if size is None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.loader("step", 4, epochs=1, seed=3)


def test_ranks_that_draw_by_chance_are_not_warned(buffer, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.loader("step", 4)
        mix({buffer: 1.0}).loader("step", 4)
