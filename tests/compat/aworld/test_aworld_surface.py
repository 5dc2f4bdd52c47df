"""AWorld's names are where its users look for them, and what is missing names its alternative."""

import importlib

import pytest

import sqlbuffer.compat.aworld
from sqlbuffer.compat.aworld import ActionModel, DataRow, Experience, ExpMeta, Observation

NAMES = {
    "": ["ReplayBuffer", "DataRow", "ExpMeta", "Experience"],
    ".base": [
        *("DataRow", "ExpMeta", "Experience", "Storage", "InMemoryStorage", "ReplayBuffer"),
        *("Sampler", "TaskSampler", "RandomTaskSample", "Converter", "DefaultConverter"),
        *("ActionModel", "Observation"),
    ],
    ".query_filter": ["QueryBuilder", "QueryFilter", "QueryCondition"],
    ".storage.multi_proc_mem": ["MultiProcMemoryStorage"],
    ".common": ["ActionModel", "ActionResult", "Observation"],
}
ABSENT = {
    ".storage.redis": "RedisStorage",
    ".storage.odps": "OdpsStorage",
    ".event_replay_buffer": "EventReplayBuffer",
    ".processor": "ReplayBufferExporter",
}


@pytest.mark.parametrize("module", NAMES)
def test_module_has_aworlds_names(module):
    found = importlib.import_module(f"sqlbuffer.compat.aworld{module}")
    assert set(NAMES[module]) <= set(found.__all__ if hasattr(found, "__all__") else vars(found))


def test_names_of_all_modules_are_the_same_objects():
    from sqlbuffer.compat.aworld import base

    for name in base.__all__:
        if name in sqlbuffer.compat.aworld.__all__:
            assert getattr(base, name) is getattr(sqlbuffer.compat.aworld, name)


@pytest.mark.parametrize("module", ABSENT)
def test_absent_module_names_the_alternative(module):
    with pytest.raises(ImportError, match=rf"no {ABSENT[module]} of AWorld; instead, .*\w+\.\w+"):
        importlib.import_module(f"sqlbuffer.compat.aworld{module}")


@pytest.mark.parametrize("name", ABSENT.values())
def test_absent_name_names_the_alternative(name):
    with pytest.raises(ImportError, match=rf"no {name} of AWorld; instead"):
        exec(f"from sqlbuffer.compat.aworld import {name}")


def test_unknown_name_is_an_ordinary_error():
    assert not hasattr(sqlbuffer.compat.aworld, "Nonsense")


def test_rows_are_made_by_position_in_aworlds_order():
    meta = ExpMeta("task", "name", "agent", 1, 2.0, "before")
    data = Experience("state", ["action"], 0.5, 0.25, 0.125, [{"role": "user"}])
    assert DataRow(meta, data, "row_1").to_dict() == {
        "exp_meta": {
            "task_id": "task",
            "task_name": "name",
            "agent_id": "agent",
            "step": 1,
            "execute_time": 2.0,
            "pre_agent": "before",
        },
        "exp_data": {
            "state": "state",
            "actions": ["action"],
            "reward_t": 0.5,
            "adv_t": 0.25,
            "v_t": 0.125,
            "messages": [{"role": "user"}],
        },
        "id": "row_1",
    }


def test_rows_without_an_id_get_different_ones():
    meta, data = ExpMeta("t", "n", "a", 1, 2.0), Experience()
    assert DataRow(meta, data).id != DataRow(meta, data).id


def test_models_are_made_without_arguments_and_share_nothing():
    assert ActionModel().model_dump() == {
        "tool_name": None,
        "tool_call_id": None,
        "agent_name": None,
        "action_name": None,
        "params": {},
        "policy_info": None,
    }
    one, other = Observation(), Observation()
    one.info["done"] = True
    one.images.append("x")
    assert (other.info, other.images, other.is_tool_result) == ({}, [], False)
