"""Configs, types and names."""

import copy
import importlib
import sys

import numpy as np
import pytest

import sqlbuffer.compat.ding as ding
from sqlbuffer.compat.ding import (
    NaiveReplayBuffer,
    ReplayConfigError,
    UnknownBufferError,
    create_buffer,
    get_buffer_cls,
)
from sqlbuffer.compat.ding.config import AttributeDict
from sqlbuffer.errors import MissingExtraError, URLError
from tests.compat.ding.conftest import held

KINDS = ["naive", "elastic", "sequence", "episode"]


@pytest.fixture(params=["with easydict", "without easydict"])
def config(request, monkeypatch):
    """The default config of a naive buffer, with easydict installed and not."""
    if request.param == "without easydict":
        monkeypatch.setitem(sys.modules, "easydict", None)
    else:
        pytest.importorskip("easydict", reason="allowed: easydict is not installed")
    return NaiveReplayBuffer.default_config()


def test_a_default_config_has_the_defaults_of_di_engine_as_attributes(config):
    assert config == {
        "type": "naive", "replay_buffer_size": 10_000, "deepcopy": False,
        "enable_track_used_data": False, "periodic_thruput_seconds": 60,
        "cfg_type": "NaiveReplayBufferDict",
    }  # fmt: skip
    config.replay_buffer_size = 3
    buffer = create_buffer(copy.deepcopy(config), tb_logger=None)
    assert buffer.replay_buffer_size == 3
    assert NaiveReplayBuffer.default_config().replay_buffer_size == 10_000
    buffer.close()


def test_a_dict_with_attributes_is_one_all_the_way_down():
    config = AttributeDict(a={"b": 1})
    config.c = {"d": [2]}
    other = copy.deepcopy(config)
    other.c.d.append(3)
    del other.a
    assert (config.a.b, config.c.d, "a" in other) == (1, [2], False)
    for call in (lambda: config.x, lambda: delattr(config, "x")):
        with pytest.raises(AttributeError, match="x"):
            call()


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_made_by_name(kind):
    cls = get_buffer_cls({"type": kind})
    default = cls.default_config()
    assert (default.type, default.cfg_type) == (kind, f"{cls.__name__}Dict")
    buffer = create_buffer(default)
    assert type(buffer) is cls
    buffer.close()


@pytest.mark.parametrize("kind", ["nothing", None, 3, ["naive"]])
def test_an_unknown_type_names_those_there_are(kind):
    with pytest.raises(UnknownBufferError, match=r"not support buildable-object type: .*episode"):
        create_buffer({"type": kind})
    with pytest.raises(KeyError, match="naive"):
        get_buffer_cls({"type": kind})


@pytest.mark.parametrize("name", ["DequeBuffer", "BufferedData", "use_time_check", "padding"])
def test_what_there_is_not_names_what_there_is(name):
    with pytest.raises(ImportError, match=f"sqlbuffer has no {name} of DI-engine; instead, "):
        getattr(ding, name)


def test_the_type_deque_and_its_module_name_the_alternative():
    for call in (create_buffer, get_buffer_cls):
        with pytest.raises(ImportError, match="no deque of DI-engine; instead, create_buffer"):
            call({"type": "deque"})
    for module in ("buffer", "data.buffer"):
        with pytest.raises(ImportError, match="no buffer of DI-engine; instead, create_buffer"):
            importlib.import_module(f"sqlbuffer.compat.ding.{module}")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ding.Nothing


def test_keys_that_a_compiled_config_has_pass():
    keys = {
        "cfg_type": "NaiveReplayBufferDict", "import_names": ["json"], "priority": False,
        "replay_buffer_start_size": 10, "max_use": float("inf"), "monitor": {"x": 1}, "n_sample": 3,
    }  # fmt: skip
    create_buffer({"type": "naive", **keys}).close()


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("replay_bufer_size", "replay_buffer_size"),
        ("enable_track_use_data", "enable_track_used_data"),
        ("periodic_thruput_second", "periodic_thruput_seconds"),
        ("max_staless", "max_staleness"),
    ],
)
def test_a_misspelt_key_names_the_right_one(key, right):
    kind = "advanced" if right == "max_staleness" else "naive"
    with pytest.raises(ReplayConfigError, match=f"unknown key '{key}'; did you mean '{right}'?"):
        create_buffer({"type": kind, key: 3})


BAD = [
    ("replay_buffer_size", value) for value in (0, -1, 2.5, None, "3", True, float("nan"))
] + [
    ("enable_track_used_data", 1), ("deepcopy", "yes"), ("seed", -1), ("seed", "x"), ("url", 3),
    ("url", ""), ("name", 3), ("name", "a\0b"), ("set_buffer_size", 3), ("episode_length", 0),
    ("set_buffer_size", lambda envstep: 0), ("periodic_thruput_seconds", 0),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_value_out_of_range_is_refused_at_the_door(key, value, tmp_path):
    path = tmp_path / "replay.db"
    kind = {"set_buffer_size": "elastic", "episode_length": "sequence"}.get(key, "naive")
    with pytest.raises(ReplayConfigError, match=key.removeprefix("periodic_thruput_")):
        create_buffer({"type": kind, "url": path, key: value})
    assert not path.exists()


@pytest.mark.parametrize("config", [None, [], "naive"])
def test_a_config_is_a_dict(config):
    with pytest.raises(ReplayConfigError, match="config is a dict"):
        create_buffer(config)


def test_whole_numbers_may_be_floats_as_configs_have_them():
    buffer = create_buffer({"type": "naive", "replay_buffer_size": 1e3})
    assert buffer.replay_buffer_size == 1000
    buffer.close()


@pytest.mark.parametrize("size", [-1, True, 1.0, None, "3", float("nan")])
def test_a_size_that_is_no_number_of_items_is_refused(make, size):
    buffer = make()
    with pytest.raises(ValueError if size == -1 else TypeError, match="size is a number of items"):
        buffer.sample(size, 0)
    with pytest.raises(TypeError, match="sample_range is a slice"):
        buffer.sample(1, 0, sample_range=(0, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_a_seed_repeats_what_is_drawn(make, kind):
    drawn = []
    for name in ("first", "second"):
        buffer = make(kind, size=500, seed=7, name=name)
        buffer.push([{"obs": i} for i in range(500)], 0)
        batches = [buffer.sample(5, 0) for _ in range(3)]
        batches.append(buffer.sample(5, 0, slice(-20, None)))
        drawn.append([[item["obs"] for item in batch] for batch in batches])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_the_same_buffer_made_otherwise_says_how(buffer_url):
    config = {"type": "naive", "url": buffer_url, "replay_buffer_size": 5}
    buffer = create_buffer(config)
    with pytest.raises(ReplayConfigError, match="stored with replay_buffer_size=5, and was opened"):
        create_buffer({**config, "replay_buffer_size": 6})
    with pytest.raises(ReplayConfigError, match="was made as type 'naive', not 'episode'"):
        create_buffer({**config, "type": "episode"})
    buffer.push([1], 0)
    other = create_buffer({**config, "type": "episode", "name": "episodes"})
    assert (other.count(), held(buffer)) == (0, [1])
    buffer.close()
    other.close()


def test_a_buffer_of_the_core_with_rows_is_left_alone(buffer_url):
    from sqlbuffer import ReplayBuffer

    with ReplayBuffer(buffer_url, name="mine", max_capacity=10_000) as core:
        core.add(state=1, actions=[0], reward=1.0, task_id="t", step=0)
        with pytest.raises(ReplayConfigError, match="was made by another part of this package"):
            create_buffer({"type": "naive", "url": buffer_url, "name": "mine"})
        assert len(core) == 1


def test_a_path_names_a_sqlite_file(tmp_path):
    path = tmp_path / "replay.sqlite"
    buffer = create_buffer({"type": "naive", "url": str(path)})
    buffer.push([1], 0)
    buffer.close()
    assert path.exists()
    assert repr(buffer).startswith("NaiveReplayBuffer('sqlite:///")


def test_without_torch_all_works_but_reading_tensors(buffer_url, monkeypatch):
    torch = pytest.importorskip("torch")
    buffer = create_buffer({"type": "naive", "url": buffer_url})
    # Under a key that no other test has read.
    buffer.push({"without_torch": torch.ones(2)}, 0)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[torch\]'"):
        buffer.sample(1, 0)
    buffer.clear()
    buffer.push({"x": np.ones(2)}, 0)
    assert buffer.sample(1, 0)[0]["x"].tolist() == [1, 1]
    buffer.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_url_of_memory_is_private(url):
    buffer = create_buffer({"type": "naive", "url": url})
    assert not buffer.is_shared
    buffer.close()


def test_a_url_of_another_database_is_refused():
    with pytest.raises(URLError, match="speaks SQLite and PostgreSQL, not mysql"):
        create_buffer({"type": "naive", "url": "mysql://host/db"})


def test_a_subclass_of_the_user_is_made_by_its_type(monkeypatch):
    from sqlbuffer.compat.ding import base_buffer

    monkeypatch.setattr(base_buffer, "_classes", dict(base_buffer._classes))

    @ding.register_buffer("twice")
    class Twice(NaiveReplayBuffer):
        def push(self, data, cur_collector_envstep):
            super().push([data, data], cur_collector_envstep)

    buffer = create_buffer({"type": "twice"}, instance_name="mine")
    buffer.push(3, 0)
    assert held(buffer) == [3, 3]
    buffer.close()
