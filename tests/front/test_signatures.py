import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

from sqlbuffer import EpisodeWriter, ReplayBuffer
from sqlbuffer.aio import AsyncEpisodeWriter, AsyncReplayBuffer
from sqlbuffer.fields import Casting
from sqlbuffer.loading.modes import TAKES, LoaderSettings, Mode
from sqlbuffer.steps import StepKeys

KEYWORD = inspect.Parameter.KEYWORD_ONLY


def named(call: Callable[..., Any]) -> list[str]:
    """Return the parameters of a call that are given by name."""
    parameters = inspect.signature(call).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is KEYWORD]


def test_add_and_append_show_their_fixed_names() -> None:
    assert {"state", "reward", "task_id", "step", "priority"} <= set(named(ReplayBuffer.add))
    assert {"state", "reward", "terminated", "extra"} <= set(named(EpisodeWriter.append))
    assert "**fields" in str(inspect.signature(ReplayBuffer.add))
    assert "**fields" in str(inspect.signature(EpisodeWriter.append))


@pytest.mark.thorough
@pytest.mark.parametrize("name", named(ReplayBuffer.add))
@pytest.mark.parametrize("fields", [None, {"obs": "float32"}], ids=["rows", "typed"])
def test_a_fixed_name_of_add_that_is_none_is_left_out(
    fields: dict[str, str] | None, name: str, sqlite_url: str
) -> None:
    values = {"obs": 1.0} if fields else {"extra": {"x": 1}} if name != "extra" else {"state": 1}
    with ReplayBuffer(sqlite_url, fields=fields) as buffer:
        buffer.add(**values, **{name: None})
        buffer.add(**values)
        given, left_out = buffer.get_all()
    for row in (given, left_out):
        row.exp_meta.execute_time = row.exp_meta.step = 0
        row.id = ""
    assert given == left_out


def test_append_takes_each_of_its_fixed_names(sqlite_url: str) -> None:
    values = {name: 0.5 if name == "priority" else None for name in named(EpisodeWriter.append)}
    with ReplayBuffer(sqlite_url, priorities=True) as buffer, buffer.episode("t") as episode:
        episode.append(**values)
    assert episode.length == 1


def test_a_loader_takes_the_options_that_its_types_name() -> None:
    options = {*get_type_hints(LoaderSettings), "to_named_tuple", "mirror"}
    assert set(named(ReplayBuffer.loader)) == options
    assert get_args(Mode) == tuple(TAKES)


@pytest.mark.parametrize("casting", get_args(Casting))
def test_extend_takes_the_keys_and_castings_that_its_types_name(
    casting: Casting, sqlite_url: str
) -> None:
    keys = dict.fromkeys(get_type_hints(StepKeys))
    with ReplayBuffer(sqlite_url, fields={"obs": "float32"}) as buffer:
        assert buffer.extend({"obs": [1.0]}, casting=casting, **keys).inserted == 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (AsyncReplayBuffer.open, ReplayBuffer),
        (AsyncEpisodeWriter.append, EpisodeWriter.append),
        (AsyncEpisodeWriter.end, EpisodeWriter.end),
    ],
    ids=["open", "append", "end"],
)
def test_asyncio_takes_the_same_arguments(ours: Any, theirs: Any) -> None:
    own, given = (inspect.signature(call).parameters.values() for call in (ours, theirs))
    assert list(map(str, own)) == list(map(str, given))
