"""What is wanted of a row, and what is left of its payload then. No database."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.codec.decoder import decode, untag
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.equality import equal
from sqlbuffer.errors import FieldError
from sqlbuffer.query.selected_fields import (
    MISSING,
    PLAIN,
    SelectedFields,
    pruned,
    references,
)
from sqlbuffer.steps import PAYLOADS
from tests.support.payloads import payloads


def tree_of(value):
    encoder = Encoder()
    return encoder.tree(value, "state"), bytes(encoder.blob)


def part_of(value, *names):
    tree, blob = tree_of(value)
    found = pruned(tree, SelectedFields.parse(names).fields["state"])
    return found if found is MISSING else untag(found, blob)


STATE = {
    "obs": {"image": np.arange(6), "depth": 2.5},
    "id": 7,
    "agents": [{"pos": (1, 2), "name": "a"}, {"name": "b"}, 3],
    "pair": ({"x": 1}, {"x": 2}),
    "by_number": {0: "zero", 1: {"x": 1}, "1": "text"},
    "a.b": {"$c": 1},
    "$array": 5,
    "none": None,
}


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["state.id"], {"id": 7}),
        (["state.obs.image", "state.obs.depth"], {"obs": STATE["obs"]}),
        (["state.obs.depth", "state.obs"], {"obs": STATE["obs"]}),
        (["state.obs", "state.obs.depth"], {"obs": STATE["obs"]}),
        (["state.agents.pos"], {"agents": [{"pos": (1, 2)}, None, None]}),
        (["state.agents[1]"], {"agents": [None, {"name": "b"}, None]}),
        (["state.agents[-1]", "state.agents.name"], {"agents": [{"name": "a"}, {"name": "b"}, 3]}),
        (["state.pair.x"], {"pair": ({"x": 1}, {"x": 2})}),
        (["state.pair[0]"], {"pair": ({"x": 1}, None)}),
        (["state.by_number[0]"], {"by_number": {0: "zero"}}),
        (["state.by_number[1].x"], {"by_number": {1: {"x": 1}}}),
        (['state."a.b".$c'], {"a.b": {"$c": 1}}),
        (["state.$array"], {"$array": 5}),
        (["state.none"], {"none": None}),
        (["state.nothing"], MISSING),
        (["state.id.inside"], MISSING),
        (["state.obs.image.inside"], MISSING),
        (["state.agents.nothing"], MISSING),
        (["state.agents[9]"], MISSING),
        (["exp_data.state.id", "state.nothing"], {"id": 7}),
        (["state"], STATE),
    ],
)
def test_what_is_wanted_is_left(names, left):
    found = part_of(STATE, *names)
    assert found is left if left is MISSING else equal(found, left)


def test_a_wanted_part_of_a_set_is_missing_or_a_list():
    assert part_of({"s": {("a", 1), ("b", 2)}}, "state.s[0]") == {"s": [("a", 1), None]}
    assert part_of({"s": {1, 2}}, "state.s.x") is MISSING


@pytest.mark.thorough
@pytest.mark.slow
@given(payloads)
def test_all_of_a_payload_is_the_payload(payload):
    tree, blob = tree_of(payload)
    assert equal(untag(pruned(tree, None), blob), payload, strict=True)


@pytest.mark.thorough
@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=4), payloads, min_size=1, max_size=4), st.data())
def test_a_key_leads_to_its_value_whatever_it_is_called(mapping, data):
    key = data.draw(st.sampled_from(sorted(mapping)))
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert equal(part_of(mapping, f'state."{quoted}"'), {key: mapping[key]}, strict=True)


@pytest.mark.slow
@given(payloads)
def test_references_are_all_bytes_that_a_payload_has(payload):
    encoder = Encoder()
    tree = encoder.tree(payload, "state")
    covered = sum(reference[-1] for reference in references(tree))
    assert covered <= len(encoder.blob) < covered + 64 * 64


def test_plain_fields_and_the_short_name_of_the_reward_are_known():
    wanted = SelectedFields.parse(["reward", "terminated"])
    assert wanted.is_whole("reward_t")
    assert not wanted.is_whole("truncated")
    assert set(SelectedFields.parse([*PAYLOADS, *PLAIN]).fields) == {*PAYLOADS, *PLAIN}
    assert SelectedFields.parse(()).fields == {}


def test_keys_may_be_named_though_they_come_along_always():
    names = ["task_id", "exp_meta.step", "seq", "episode_id", "reward", "level"]
    found = SelectedFields.parse(names, ["level"])
    assert (found.fields, found.typed) == ({"reward_t": None}, ("level",))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("state", "a list of names"),
        (5, "a list of names"),
        ({"state": 1}, "a list of names"),
        ([5], r"fields is a list of names .*'state.image'.* got \[5\]"),
        ([None], "fields is a list of names"),
        ([True], "fields is a list of names"),
        ([b"state"], "fields is a list of names"),
        (["stat"], "unknown field 'stat'; there are state, actions"),
        (["states"], "unknown field"),
        ([""], "unknown field"),
        (["exp_meta.stepp"], "unknown field 'exp_meta.stepp'.*did you mean exp_meta.step"),
        (["rewards"], "did you mean reward"),
        (["reward_t.x"], "reward_t is a single value"),
        (["terminated[0]"], "terminated is a single value"),
        (["state."], "malformed path"),
        (["state..x"], "malformed path"),
        (["state[x]"], "malformed path"),
        (["Ⅷ"], "unknown field"),
    ],
)
def test_what_is_no_field_is_refused(names, message):
    with pytest.raises(FieldError, match=message):
        SelectedFields.parse(names)


@pytest.mark.each_value
@pytest.mark.parametrize("make", [np.ndarray.copy, np.asfortranarray], ids=["c", "fortran"])
@pytest.mark.parametrize(
    "index",
    [
        np.s_[:],
        np.s_[::-1],
        np.s_[:, ::2],
        np.s_[:, :, ::-3],
        np.s_[None],
    ],
)
@pytest.mark.parametrize("dtype", ["u1", "f8", "M8[s]", "U2", [("a", "i1"), ("b", "f4")]])
def test_large_arrays_come_back_however_they_lie_in_memory(make, index, dtype):
    numbers = np.arange(60 * 50 * 60).reshape(60, 50, 60) % 251
    if isinstance(dtype, list):
        array = np.zeros(numbers.shape, dtype)
        array["a"], array["b"] = numbers % 100, numbers
    else:
        array = numbers.astype(dtype)
    array = make(array)[index]
    encoder = Encoder()
    text = encoder.json({"first": b"odd", "array": array}, "state")
    for blob in (bytes(encoder.blob), memoryview(encoder.blob)):
        found = decode(text, blob)["array"]
        assert equal(found, np.array(array), strict=True)
        assert found.flags.writeable
        assert found.flags.aligned
    assert found.base is not None


def test_only_bytes_of_one_row_alone_are_viewed():
    encoder = Encoder()
    text = encoder.json({"x": np.zeros(100_000)}, "state")
    own = memoryview(encoder.blob)
    view, copy = decode(text, own)["x"], decode(text, encoder.blob)["x"]
    view[0] = 5
    assert decode(text, own)["x"][0] == 5
    copy[1] = 6
    assert decode(text, own)["x"][1] == 0
    assert np.shares_memory(view, np.frombuffer(own, np.uint8))


def test_large_arrays_are_compared_without_copies_of_them():
    array = np.arange(200_000.0)
    other = array.copy()
    assert equal(array, other, strict=True)
    assert equal(array[::2], other[::2], strict=True)
    other[-1] = np.nan
    assert not equal(array, other)
    assert equal(other, other.copy())
    other[-1] = array[-1]
    other[0] = -0.0
    assert equal(array, other)
    assert not equal(array, other, strict=True)
