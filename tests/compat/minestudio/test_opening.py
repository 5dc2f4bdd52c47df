"""What a buffer is made with, and how it is found."""

import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat import minestudio
from sqlbuffer.compat.minestudio import (
    Config,
    FragmentError,
    FragmentStore,
    FragmentTypeError,
    ReplayBufferInterface,
)
from sqlbuffer.compat.minestudio.alternatives import ALTERNATIVES
from tests.compat.minestudio.conftest import CONFIG, Make
from tests.compat.minestudio.fragments import indices, make_fragment, send, send_all

SHIPPED = {
    "max_chunks": 4800,
    "max_reuse": 2,
    "max_staleness": 2,
    "fragments_per_report": 40,
    "fragments_per_chunk": 1,
    "database_config": {"path": "output/replay_buffer_cache", "num_shards": 8},
}


def test_takes_the_config_that_minestudio_ships_as_a_dict_and_as_a_dict_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ReplayBufferInterface(SHIPPED) as buffer:
        send(buffer, "w", 0)
    folder = tmp_path / "output" / "replay_buffer_cache"
    assert (folder / "replay.sqlite").exists()
    monkeypatch.chdir("/")
    config = OmegaConf.create({"base": str(folder), "buffer": SHIPPED})
    config.buffer.database_config.path = "${base}"
    with ReplayBufferInterface(config.buffer) as buffer:
        assert buffer.database_config == {"path": str(folder), "num_shards": 8}
        assert buffer.get_database_config() == buffer.database_config
        ((_, id_),) = buffer.fetch_fragments(1, timeout=0)
        with FragmentStore(**buffer.database_config) as store:
            assert store.get_fragment(id_).index == make_fragment().index


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_chunks": 0}, r"max_chunks: .*1, got 0; how many chunks"),
        ({"max_chunks": -1}, "got -1"),
        ({"max_reuse": 0}, r"max_reuse: .* got 0; how often .* 1: once"),
        ({"max_staleness": -1}, r"max_staleness: .* got -1; .* 0: only the current"),
        ({"fragments_per_chunk": True}, "fragments_per_chunk: .* got True"),
        ({"fragments_per_report": 0}, "fragments_per_report: .* leave it out for never"),
        ({"max_chunks": None}, "got None"),
        ({"max_chunks": 1.5}, "got 1.5"),
        ({"max_chunks": float("nan")}, "got nan"),
        ({"max_chunks": "9"}, "got '9'"),
        ({"max_bytes": 0}, "max_bytes: .* leave it out for any"),
        ({"max_chunk": 3}, "max_chunk: unknown; is it max_chunks"),
        ({"größe": 3}, "größe: unknown; there are max_chunks"),
        ({"database_config": {"pth": "x"}}, r"database_config.pth: unknown; is it path"),
        ({"database_config": {"path": 3}}, "path: .* a folder"),
        ({"database_config": None}, "a mapping with path"),
        ({"database_config": {"path": "a", "url": "sqlite://"}}, "at a path or at a url"),
    ],
)
def test_names_what_is_wrong_in_a_config_and_what_is_right(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FragmentError, match=message):
        ReplayBufferInterface({**CONFIG, "database_config": {"path": "a"}, **changes})
    assert not list(tmp_path.iterdir())


def test_names_every_key_that_is_missing() -> None:
    with pytest.raises(FragmentError) as error:
        Config.parse({})
    for name in CONFIG:
        assert f"{name}: missing; " in str(error.value)
    for nothing in (3, "config", [CONFIG]):
        with pytest.raises(FragmentTypeError, match="a dict or a DictConfig"):
            Config.parse(nothing)


def test_without_config_attaches_to_what_there_is(
    make: Make, attach: Make, buffer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"not initialized.*config=\.\.\.") as error:
        attach()
    assert "create=True" not in str(error.value)
    send(make(), "w", 0)
    monkeypatch.setenv("SQLBUFFER_URL", buffer_url)
    with ReplayBufferInterface() as buffer:
        assert indices(buffer.fetch_fragments(1, timeout=0)) == [("w", 0)]
    with pytest.raises(FragmentError, match="not initialized"):
        attach(name="other")
    with ReplayBuffer(buffer_url, name="plain"), pytest.raises(FragmentError, match="no chunks"):
        attach(name="plain")


def test_a_config_that_is_stored_attaches_and_another_names_what_differs(make: Make) -> None:
    send(make(), "w", 0)
    again = make(fragments_per_report=3)  # decides about no fragment
    assert len(again.fetch_fragments(1, timeout=0)) == 1
    with pytest.raises(ValueError, match=r"max_reuse: stored 2 vs passed 5"):
        make(max_reuse=5)


def test_clear_empties_on_purpose_and_changes_the_rules_for_all(make: Make) -> None:
    old = make()
    send_all(old, "w", range(3))
    old.fetch_fragments(1, timeout=0)
    new = make(clear=True, fragments_per_chunk=2)
    assert new.prepared_fragments() == []
    assert new.store.get_disk_space() == 0
    assert new.stats()["replay_buffer/fragments"] == 0
    send_all(new, "w", range(2))  # numbers begin anew
    with pytest.raises(AssertionError, match=r"multiple of fragments_per_chunk \(2\)"):
        old.fetch_fragments(1)
    assert indices(old.fetch_fragments(2, timeout=0)) == [("w", 0), ("w", 1)]


def test_refuses_a_buffer_of_another_part_of_the_package(buffer_url: str) -> None:
    with (
        ReplayBuffer(buffer_url, name="typed", fields={"x": "float32"}),
        pytest.raises(FragmentError, match="another part"),
    ):
        ReplayBufferInterface(CONFIG, url=buffer_url, name="typed")


def test_names_what_undoes_a_resize_of_its_rows(make: Make, buffer_url: str) -> None:
    make()
    with ReplayBuffer(buffer_url, name="replay_buffer") as rows:
        rows.resize(3)
        with pytest.raises(FragmentError, match=r"resize\(None\)"):
            make()
        rows.resize(None)
    send(make(), "w", 0)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": 3},
        {"name": "a\0"},
        {"name": "\ud800"},
        {"name": "a" * 601},
        {"seed": -1},
        {"seed": True},
        {"report": 3},
    ],
)
def test_checks_its_options(options: dict[str, Any]) -> None:
    with pytest.raises(FragmentError, match=next(iter(options))):
        ReplayBufferInterface(CONFIG, url="sqlite://", **options)


def test_names_a_path_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FragmentError, match="cannot be made a folder"):
            ReplayBufferInterface({**CONFIG, "database_config": {"path": path}})


@pytest.mark.parametrize("where", [{"path": "ca che"}, {"url": "sqlite:///relative.db"}])
def test_w_distribution_a_relative_path_is_the_same_for_every_process(
    where: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ReplayBufferInterface({**CONFIG, "database_config": where}) as buffer:
        send(buffer, "w", 0)
        ((_, id_),) = buffer.fetch_fragments(1, timeout=0)
        monkeypatch.chdir("/")  # as another process
        with pickle.loads(pickle.dumps(buffer)) as other:
            assert len(other.prepared_fragments()) == 1
        with FragmentStore(**buffer.database_config) as store:
            assert store.get_fragment(id_).fid_in_worker == 0


def test_an_object_can_be_pickled_and_says_where_it_is_without_a_password(make: Make) -> None:
    buffer = make()
    send(buffer, "w", 0)
    with pickle.loads(pickle.dumps(buffer)) as other:
        fetched = other.fetch_fragments(1, timeout=0)
        assert buffer.prepared_fragments() == fetched
        assert buffer.load_fragment(fetched[0][1]).index == fetched[0][0]
    assert repr(buffer).startswith("ReplayBufferInterface('")
    assert buffer.actor.prepared_fragments() == fetched


def test_names_the_alternative_of_what_is_not_here() -> None:
    for name in ALTERNATIVES:
        with pytest.raises(ImportError, match=f"no {name} of MineStudio; instead, "):
            getattr(minestudio, name)
    with pytest.raises(ImportError, match="no actor of MineStudio"):
        importlib.import_module("sqlbuffer.compat.minestudio.actor")
    with pytest.raises(AttributeError):
        minestudio.nothing  # noqa: B018
    for path in ("interface", "fragment_store", "datatypes"):
        assert importlib.import_module(f"sqlbuffer.compat.minestudio.{path}")
