"""Declarations, the constructor and its attributes (spec 1.1 to 1.3)."""

import importlib

import numpy as np
import pytest

import sqlbuffer.compat.memmap as memmap
from sqlbuffer.compat.memmap import MemmapError, MemmapTypeError, ReplayBuffer
from sqlbuffer.compat.memmap.errors import ALTERNATIVES, METHODS
from sqlbuffer.compat.memmap.fields import (
    Config,
    DeclaredField,
    core_fields,
    core_names,
    parse_fields,
)
from sqlbuffer.errors import StorageUnreachableError
from tests.support.sql import run

SIZES = {"max_episodes": 2, "max_timesteps": 3}


def test_a_declaration_is_a_type_a_shape_and_a_default():
    tracks = parse_fields(
        {"a": "int", "b": ("float", 8), "c": ("bool", (2, 3)), "d": ("uint8", (), 7)}, "fields"
    )
    assert list(tracks.values()) == [
        DeclaredField("a", "int"), DeclaredField("b", "float", (8,)),
        DeclaredField("c", "bool", (2, 3)), DeclaredField("d", "uint8", (), 7),
    ]  # fmt: skip
    assert [track.dtype.str for track in tracks.values()] == ["<i4", "<f4", "|b1", "|u1"]
    assert [track.fill.item() for track in tracks.values()] == [0, 0.0, False, 7]


def test_other_declarations_are_refused():
    for bad in (
        "float64", "double", 3, None, ("int",), ("int", 2, 0, 0), ["int", 2], ("int", (), None),
        ("int", "8"), ("int", [2]), ("int", True), ("int", (2.0,)), ("int", (), "1"),
        ("int", (), [1]),
    ):  # fmt: skip
        with pytest.raises(MemmapTypeError, match="fields 'x': a declaration is"):
            parse_fields({"x": bad}, "fields")
    for bad, message in (
        (("int", -1), "negative"),
        (("uint8", (), 300), "from 0 to 255"),
        (("int", (), float("nan")), "a default of 'int'"),
        (("float", 10**9), "bytes"),
    ):
        with pytest.raises(MemmapError, match=message):
            parse_fields({"x": bad}, "fields")
    for bad in (None, [("x", "int")], "int"):
        with pytest.raises(TypeError, match="fields is a dict"):
            parse_fields(bad, "fields")
    with pytest.raises(TypeError, match="a name is a text"):
        parse_fields({1: "int"}, "fields")


def test_names_that_cannot_be_fields_are_refused():
    def parsed(fields, meta=None):
        return Config.parse(2, 3, fields, meta, False, {})

    for name in ("_x", "class", "a b", "1a", ""):
        with pytest.raises(ValueError, match="field name"):
            parsed({name: "int"})
    for fields, meta in (({"x": "int"}, {"x": "int"}), ({"episode_lens": "int"}, None)):
        with pytest.raises(ValueError, match="must be disjoint"):
            parsed(fields, meta)
    assert list(parsed({"ä": "int"}, {"with space": "int"}).meta) == [
        "with space", "episode_lens", "_initted",
    ]  # fmt: skip


def test_names_that_the_core_keeps_for_itself_are_stored_under_others():
    names = ("state", "state_", "reward", "action", "x_lens", "keys")
    assert core_names({name: DeclaredField(name, "int") for name in names}) == {
        "state": "state_", "state_": "state__", "reward": "reward_", "action": "action",
        "x_lens": "x_lens_", "keys": "keys_",
    }  # fmt: skip
    fields = core_fields(
        {"state": DeclaredField("state", "float", (2,), 1.5), "r": DeclaredField("r", "int")}
    )
    assert fields.specs["state_"].default_value.tolist() == [1.5, 1.5]
    assert (fields.specs["r"].column, fields.specs["state_"].column) == (True, False)


def test_any_name_that_upstream_takes_is_stored(make):
    names = ["state", "actions", "reward", "t", "seq", "self_", "mask", "lens", "values"]
    buffer = make(fields=dict.fromkeys(names, "int"), meta_fields={"task_id": "int", "a b": "int"})
    buffer.store_episode(**{name: [i, i + 1] for i, name in enumerate(names)}, **{"a b": 3})
    assert [buffer.data[name][0, 1] for name in names] == list(range(1, 10))
    assert buffer.meta_data["a b"][0] == 3


def test_the_attributes_of_upstream_are_there(make):
    buffer = make()
    assert (buffer.max_episodes, buffer.max_timesteps, buffer.circular, buffer.read_only) == (
        3, 4, False, False,
    )  # fmt: skip
    assert buffer.fieldnames == {"s", "r", "a"}
    assert buffer.meta_fieldnames == {"task", "goal", "episode_lens", "_initted"}
    assert buffer.internal_meta_fieldnames == {"episode_lens", "_initted"}
    assert buffer.shapes == {"s": (2,), "r": (), "a": ()}
    assert buffer.dtypes == {"s": np.float32, "r": np.float32, "a": np.int32}
    assert buffer.defaults == {"s": None, "r": -1.0, "a": None}
    assert buffer.meta_shapes["goal"] == (3,)
    assert buffer.meta_dtypes["_initted"] is np.bool_
    assert buffer.meta_defaults["task"] == -1
    assert buffer.memory_namedtuple._fields == ("s", "r", "a")
    assert (buffer.store_step, buffer.should_flush, buffer.flush_every_store_step) == (0, True, 1)
    assert buffer.meta_data["_initted"].tolist() == [False] * 3
    buffer.store(r=1)
    assert (buffer.store_step, buffer.is_new_episode) == (1, False)
    assert buffer.meta_data["_initted"].tolist() == [True, False, False]
    assert make(flush_every_store_step=0).should_flush is False


def test_bad_arguments_are_refused(tmp_path):
    def made(**changes):
        return ReplayBuffer(**{"folder": tmp_path, **SIZES, "fields": {"r": "float"}, **changes})

    for changes in (
        {"max_episodes": 0}, {"max_timesteps": -1}, {"max_episodes": 2**31},
        {"flush_every_store_step": -1},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(changes))):
            made(**changes)
    for changes in (
        {"max_episodes": True}, {"max_timesteps": "3"}, {"max_episodes": None}, {"circular": 1},
        {"overwrite": "no"}, {"read_only": 0}, {"flush_every_store_step": None}, {"name": ""},
        {"folder": None}, {"folder": 3}, {"folder": ""}, {"fields": None},
    ):  # fmt: skip
        with pytest.raises(TypeError):
            made(**changes)
    assert not (tmp_path / "replay.sqlite").exists()


def test_a_misspelt_keyword_is_refused_and_others_are_kept(tmp_path):
    given = {**SIZES, "fields": {"r": "float"}}
    for name in ("circuler", "overwite", "readonly", "meta_field"):
        with pytest.raises(TypeError, match=f"unexpected keyword '{name}'; is it"):
            ReplayBuffer(tmp_path, **given, **{name: True})
    with pytest.raises(TypeError, match="kept with the buffer as JSON"):
        ReplayBuffer(tmp_path, **given, env=object())
    ReplayBuffer(tmp_path, **given, env="CartPole", seeds=[1, 2]).close()
    ReplayBuffer(tmp_path, **given, env="CartPole", seeds=[1, 2], overwrite=False).close()
    with pytest.raises(ValueError, match=r"extra 'env': stored CartPole vs passed Ant"):
        ReplayBuffer(tmp_path, **given, env="Ant", seeds=[1, 2], overwrite=False)


@pytest.mark.thorough
def test_a_folder_is_overwritten_unless_told_otherwise_and_a_url_is_not(tmp_path, make):
    folder = tmp_path / "new" / "data"
    first = make(folder=str(folder))
    first.store_episode(r=[1.0])
    assert (folder / "replay.sqlite").exists()
    assert len(make(folder=folder, overwrite=False)) == 1
    assert len(make(folder=folder)) == 0
    first = make()
    first.store_episode(r=[1.0])
    assert len(make()) == 1
    assert len(make(overwrite=True)) == 0


def test_another_configuration_is_told_apart(make):
    make().close()
    make(fields={"s": ("float", (2,)), "r": ("float", (), -1.0), "a": "int"}).close()
    for changes in (
        {"max_episodes": 4}, {"max_timesteps": 5}, {"circular": True}, {"meta_fields": None},
        {"fields": {"s": ("float", 2), "r": "float", "a": "int"}},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="different config"):
            make(**changes)
    assert make(name="another", max_episodes=4).max_episodes == 4


def test_read_only_wants_a_buffer_that_is_there_and_does_not_write(make, buffer_url, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(AssertionError, match="read-only"):
        make(folder=empty, read_only=True)
    with pytest.raises(AssertionError, match="read-only"):
        make(overwrite=True, read_only=True)
    for folder in (empty, tmp_path / "missing"):
        with pytest.raises(AssertionError, match=r"metadata\.pkl"):
            make(folder=folder, overwrite=False, read_only=True)
        with pytest.raises(ValueError, match=r"metadata\.pkl"):
            ReplayBuffer.from_folder(folder)
    assert list(empty.iterdir()) == []
    make().store_episode(r=[1.0])
    reader = make(overwrite=False, read_only=True)
    calls = {
        "store": {"r": 1}, "store_batch": {"r": [1]}, "store_meta_batch": {"task": [1]},
        "store_episode": {"r": [1]}, "advance_episode": {}, "update": {"r": [[1]]}, "clear": {},
        "store_datapoint": {"episode_index": 0, "timestep_index": 0, "name": "r", "datapoint": 1},
        "store_meta_datapoint": {"episode_index": 0, "name": "task", "datapoint": 1},
        "store_batch_datapoint": {
            "episode_indices": [0], "timestep_index": 0, "name": "r", "datapoints": [1],
        },
        "store_batch_meta_datapoint": {"episode_indices": [0], "name": "task", "datapoints": [1]},
    }  # fmt: skip
    for call, given in calls.items():
        with pytest.raises(ValueError, match=f"cannot call `{call}` in read-only mode"):
            getattr(reader, call)(**given)
    for block in (reader.one_episode(), reader.batched_episode(1)):
        with pytest.raises(ValueError, match="_episode` in read-only mode"):
            block.__enter__()
    with pytest.raises(ValueError, match="read-only"):
        reader.reset_()
    with pytest.raises(ValueError, match="read-only"):
        reader.data["r"][0, 0] = 3
    with pytest.raises(ValueError, match="read-only"):
        reader.num_episodes = 0
    reader.flush()
    assert (len(reader), reader.data["r"][0, 0]) == (1, 1)
    with pytest.raises(ValueError, match="different config"):
        make(max_episodes=9, read_only=True)


def test_a_buffer_of_the_core_is_not_taken_for_one(make, buffer_url):
    from sqlbuffer import ReplayBuffer as CoreBuffer

    CoreBuffer(buffer_url, name="memmap", fields={"x": "float32"}).close()
    for overwrite in (None, True):
        with pytest.raises(MemmapError, match="another part of this package"):
            make(overwrite=overwrite)


def test_counters_may_be_set(make):
    buffer = make(circular=True)
    for i in range(3):
        buffer.store_episode(r=[float(i)])
    buffer.num_episodes, buffer.episode_index = 1, 1
    assert (buffer.num_episodes, buffer.episode_index) == (1, 1)
    buffer.store_episode(r=[9.0])
    assert buffer.data["r"][:, 0].tolist() == [0, 9, 2]
    buffer.store(r=1)
    with pytest.raises(MemmapError, match="an episode is open"):
        buffer.episode_index = 0
    buffer.timestep_index = 0
    assert buffer.data["r"][:, 0].tolist() == [0, 9, -1]
    for bad in (-1, 4, True, "1"):
        with pytest.raises(ValueError, match="num_episodes"):
            buffer.num_episodes = bad


def test_steps_may_be_left_out_by_setting_timestep_index(make):
    buffer = make(circular=True)
    buffer.store_episode(r=[1.0])
    buffer.timestep_index = 2
    assert (buffer.timestep_index, buffer.is_new_episode, buffer.episode_index) == (2, False, 1)
    buffer.store_batch(r=[5, 6])
    assert buffer.episode_lens.tolist() == [1, 3, 3]
    buffer.advance_episode(2)
    assert (buffer.num_episodes, buffer.episode_lens.tolist()) == (3, [1, 3, 3])
    assert buffer.data["r"].tolist() == [[1, -1, -1, -1], [-1, -1, 5, -1], [-1, -1, 6, -1]]
    buffer.store(r=7.0)
    buffer.store(r=8.0)
    with pytest.raises(MemmapError, match="is 2 and cannot go back to 1, since later steps are"):
        buffer.timestep_index = 1
    buffer.timestep_index = 3
    assert buffer.episode_lens[0] == 3
    buffer.advance_episode()
    assert buffer.data["r"][0].tolist() == [7, 8, -1, -1]
    assert buffer.get_all_data(("r",))["r"].shape == (3, 3)


def test_clear_leaves_nothing(make, reopen):
    for clear in ("clear", "reset_"):
        buffer = make(circular=True)
        buffer.store_episode(r=[1.0], task=3)
        buffer.store(r=2)
        getattr(buffer, clear)()
        for each in (buffer, reopen()):
            assert (each.num_episodes, len(each), each.episode_index, each.timestep_index) == (
                0, 0, 0, 0,
            )  # fmt: skip
            assert each.data["r"].tolist() == [[-1] * 4] * 3
            assert each.meta_data["task"].tolist() == [-1] * 3


def test_what_is_not_here_names_the_alternative():
    for name in ALTERNATIVES:
        with pytest.raises(ImportError, match=f"no {name} of memmap-replay-buffer; instead, "):
            getattr(memmap, name)
    for module in ("replay_buffer_h5py", "video", "frontend"):
        with pytest.raises(ImportError, match="of memmap-replay-buffer; instead, "):
            importlib.import_module(f"sqlbuffer.compat.memmap.{module}")
    with pytest.raises(AttributeError, match="nope"):
        memmap.nope  # noqa: B018


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_not_here_names_the_alternative(tmp_path, name):
    buffer = memmap.ReplayBuffer(tmp_path, 1, 2, {"r": "float"})
    with pytest.raises(AttributeError, match=f"no {name} of memmap-replay-buffer; instead, "):
        getattr(buffer, name)
    assert not hasattr(buffer, name)
    with pytest.raises(AttributeError, match="'ReplayBuffer' object has no attribute 'nope'"):
        buffer.nope  # noqa: B018
    buffer.close()


def test_the_modules_of_upstream_have_their_names():
    pytest.importorskip("torch")
    for module, names in {
        "replay_buffer": [
            "ReplayBuffer", "ReplayDataset", "ReplayDatasetTrajectory", "ReplayDatasetTimestep",
            "ReplayDatasetNStep", "ReplayDatasetTimeWindow",
        ],
        "concat_replay_buffer": ["ConcatReplayBuffer"],
        "episode_collector": ["EpisodeCollector"],
    }.items():  # fmt: skip
        found = importlib.import_module(f"sqlbuffer.compat.memmap.{module}")
        assert {name: getattr(found, name) for name in names} == {
            name: getattr(memmap, name) for name in names
        }
    assert memmap.ReplayDataset is memmap.ReplayDatasetTrajectory
    with pytest.raises(ImportError, match="no ReplayBufferBase of memmap-replay-buffer; instead"):
        from sqlbuffer.compat.memmap.replay_buffer import ReplayBufferBase  # noqa: F401
    with pytest.raises(ImportError, match="nope"):
        from sqlbuffer.compat.memmap.replay_buffer import nope  # noqa: F401


@pytest.mark.thorough
def test_a_buffer_whose_maker_died_before_it_had_slots_is_gone_on_with(make, buffer_url):
    make().close()
    run(buffer_url, "DELETE FROM documents")
    buffer = make()
    buffer.store_episode(r=[1.0])
    assert make(overwrite=False).num_episodes == 1


def test_a_folder_that_cannot_be_made_says_why(make, tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(StorageUnreachableError, match=r"cannot make the folder .*: .*may be"):
            make(folder=folder)
