"""Typed fields of episodes."""

import json
import pickle

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import FieldError
from tests.support.sql import run

FIELDS = {"obs": ("float32", (2,))}
META = {
    "level": "int64",
    "seed": ("uint8", (), 7),
    "scale": ("float32", (2,), [0.5, 1.5]),
    "name": ("U8", (), "none"),
}
STEPS = {"obs": np.zeros((2, 2), np.float32), "reward": [1.0, 2.0]}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, meta_fields=META) as buffer:
        yield buffer


def meta_of(url):
    """Return the meta of each episode, as analysts read it."""
    found = run(url, "SELECT meta FROM v_episodes ORDER BY first_seq")
    return [json.loads(meta) if isinstance(meta, str) else meta for (meta,) in found]


def test_what_is_declared_is_cast_and_kept_beside_what_is_not(buffer_url, buffer):
    buffer.store_episode(STEPS, level=np.int32(3), map="maze", scale=(1, 2), name=np.str_("ä"))
    buffer.store_episode(STEPS, level=True, seed=8)
    defaults = {"seed": 7, "scale": [0.5, 1.5], "name": "none"}
    assert meta_of(buffer_url) == [
        {"level": 3, "map": "maze", "seed": 7, "scale": [1.0, 2.0], "name": "ä"},
        {"level": 1, **defaults, "seed": 8},
    ]


@pytest.mark.parametrize("episode_id", [None, "e"])
def test_an_episode_that_is_written_step_by_step_has_them_too(buffer_url, buffer, episode_id):
    for meta in ({}, {"level": 1.5}):
        with pytest.raises(FieldError, match="level"):
            buffer.episode(episode_id=episode_id, **meta)
    with buffer.episode(episode_id=episode_id, level=np.int8(3), map="maze") as episode:
        episode.append(obs=[0.0, 0.0])
    expected = {"level": 3, "map": "maze", "seed": 7, "scale": [0.5, 1.5], "name": "none"}
    assert meta_of(buffer_url) == [expected]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "meta field 'level' is missing: expected int64"),
        ({"level": None}, "meta field 'level' is missing: expected int64"),
        ({"level": 1.5}, "'level': expected int64, got float64"),
        ({"level": "3"}, "'level': expected int64"),
        ({"level": [3]}, r"'level': expected shape \(\), got \(1,\)"),
        ({"level": 2**70}, "out of the range of int64"),
        ({"level": 1, "seed": -1}, "-1 is out of the range of uint8"),
        ({"level": 1, "scale": [1.0]}, r"'scale': expected shape \(2,\), got \(1,\)"),
        ({"level": 1, "scale": [1.0, 1e300]}, "too large for float32"),
        ({"level": 1, "name": "much too long"}, "a text of 13 is longer than U8"),
        ({"level": 1, "other": np.ones(2)}, "meta: arrays and bytes are not kept"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(buffer_url, buffer, meta, message):
    with pytest.raises(FieldError, match=message):
        buffer.store_episode(STEPS, **meta)
    assert len(buffer) == 0
    assert meta_of(buffer_url) == []


def test_unsafe_casts_are_made_when_asked_for(buffer_url, buffer):
    buffer.store_episode(STEPS, level=1.9, seed=257, casting="unsafe")
    assert meta_of(buffer_url)[0]["level"] == 1
    assert meta_of(buffer_url)[0]["seed"] == 1


def test_a_buffer_opened_again_knows_its_meta_fields(buffer_url, buffer):
    shown = {"level": "int64", "seed": "uint8", "scale": "float32(2,)", "name": "U8"}
    for again in (
        ReplayBuffer(buffer_url),
        ReplayBuffer(buffer_url, fields=FIELDS),
        ReplayBuffer(buffer_url, meta_fields=META),
        pickle.loads(pickle.dumps(buffer)),
    ):
        assert {name: str(spec) for name, spec in again.meta_fields.items()} == shown
        assert list(again.fields) == ["obs"]
    with pytest.raises(FieldError, match="'level' is missing"):
        again.store_episode(STEPS)


def test_others_than_the_stored_ones_are_refused(buffer_url, buffer):
    with pytest.raises(
        FieldError, match=r"meta field 'level' is stored as int64, .* given as int8"
    ):
        ReplayBuffer(buffer_url, meta_fields={**META, "level": "int8"})
    with pytest.raises(
        FieldError, match=r"meta field 'seed' is stored as uint8, default 7.*nothing"
    ):
        ReplayBuffer(buffer_url, meta_fields={"level": "int64"})
    with pytest.raises(FieldError, match=r"meta field 'level' is stored as int64.*nothing"):
        ReplayBuffer(buffer_url, fields=FIELDS, meta_fields={})
    ReplayBuffer(buffer_url, name="plain")
    with pytest.raises(FieldError, match="meta field 'level' is stored as nothing"):
        ReplayBuffer(buffer_url, name="plain", meta_fields=META)


def test_a_buffer_may_have_meta_fields_alone(buffer_url):
    with ReplayBuffer(buffer_url, name="alone", meta_fields={"level": "int64"}) as buffer:
        buffer.store_episode({"state": [{"x": 1}, {"x": 2}], "reward": [1.0, 2.0]}, level=3)
        buffer.add(state={"x": 3})
        assert [row.exp_data.state["x"] for row in buffer] == [1, 2, 3]
    assert meta_of(buffer_url) == [{"level": 3}]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"obs": "int64"}, "'obs' is declared in fields and in meta_fields"),
        ({"final": "int64"}, "meta field 'final': the name is reserved"),
        ({"casting": "int64"}, "meta field 'casting': the name is reserved"),
        ({"arrays": "int64"}, "meta field 'arrays': the name is reserved"),
        ({"task_id": "int64"}, "'task_id': the name is reserved"),
        ({"episode_id": "U8"}, "'episode_id': the name is reserved"),
        ({"model_version": "U8"}, "'model_version': the name is reserved"),
        ({"level": {"dtype": "int64", "column": True}}, "'level': conditions are about steps"),
        ({"level": "S4"}, "'level': numbers of up to 64 bits.*this is S4"),
        ({"level": "complex64"}, "'level': numbers of up to 64 bits"),
        ({"level": "float31"}, "field 'level': 'float31' is not a numpy dtype"),
        (["level"], "meta_fields is a dict such as"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(buffer_url, declared, message):
    with pytest.raises(FieldError, match=message):
        ReplayBuffer(buffer_url, name="new", fields=FIELDS, meta_fields=declared)
    assert "new" not in ReplayBuffer.list(buffer_url)
